"""Algorithms for `scatter`, one per file."""
