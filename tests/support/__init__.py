"""What the end-to-end tests share: starting real processes, tables of cases, arithmetic that never asks hcomm."""
