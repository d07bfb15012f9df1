"""Algorithms for `all_reduce`, one per file."""
