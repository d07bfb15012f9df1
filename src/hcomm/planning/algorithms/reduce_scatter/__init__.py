"""Algorithms for `reduce_scatter`, one per file."""
