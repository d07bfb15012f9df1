"""Algorithms for `all_to_all`, one per file."""
