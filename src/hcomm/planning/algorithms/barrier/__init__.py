"""Algorithms for `barrier`, one per file."""
