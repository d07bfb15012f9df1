"""Rings as a building block: what several algorithms do along the rows and columns of theirs.

`ring` lists the ranks in order, this one among them; `pieces` lists as many regions, of which each rank of the ring is
given the one in its own place. `stage` is that of all steps in a tiled block.
"""

from __future__ import annotations

from collections.abc import Sequence

from .builder import Builder
from .program import Region


def ring_reduce_scatter(p: Builder, ring: Sequence[int], pieces: Sequence[Region], stage: int = 0) -> None:
    """Add up all pieces in place; afterwards each rank holds the sum of its own piece."""
    size, me = len(ring), ring.index(p.rank)
    for step in range(size - 1):
        p.send(ring[(me + 1) % size], pieces[(me - step - 1) % size], stage)
        p.recv_reduce(ring[me - 1], pieces[(me - step - 2) % size], stage)


def ring_all_gather(p: Builder, ring: Sequence[int], pieces: Sequence[Region], stage: int = 0) -> None:
    """Pass every rank's own piece to all."""
    size, me = len(ring), ring.index(p.rank)
    for step in range(size - 1):
        p.send(ring[(me + 1) % size], pieces[(me - step) % size], stage)
        p.recv(ring[me - 1], pieces[(me - step - 1) % size], stage)
