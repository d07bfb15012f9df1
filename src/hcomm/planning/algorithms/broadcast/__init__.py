"""Algorithms for `broadcast`, one per file."""
