"""Algorithms for `gather`, one per file."""
