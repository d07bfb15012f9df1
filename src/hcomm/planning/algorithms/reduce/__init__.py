"""Algorithms for `reduce`, one per file."""
