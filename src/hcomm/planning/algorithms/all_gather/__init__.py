"""Algorithms for `all_gather`, one per file."""
