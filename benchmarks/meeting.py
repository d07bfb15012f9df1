"""A barrier and a maximum over the ranks of this machine that belong to none of the libraries measured."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

#: 8-byte words to a rank: two cache lines, so that no rank's stores disturb another's.
_STRIDE = 16
#: Where a rank's two values begin.
_VALUES = 8
_PATIENCE_SECONDS = 0.001


class Meeting:
    """Ranks that meet through one small shared file, each writing only its own two cache lines.

    Args:
        path: a file of this launch's own; made by whoever comes first.
        rank: of the caller.
        size: ranks that meet.
    """

    def __init__(self, path: Path, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._turn = 0
        length = 8 * _STRIDE * size
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            os.ftruncate(descriptor, length)
            memory = memoryview(mmap.mmap(descriptor, length))
        finally:
            os.close(descriptor)
        self._counts = memory.cast("q")
        self._values = memory.cast("d")

    def barrier(self, *, patient: bool = False) -> None:
        """Return when every rank has come.

        Args:
            patient: sleep between looks, for ranks that may be seconds late. Otherwise the caller only yields: a
                core that went idle would make the operation that follows some microseconds slower.
        """
        self._turn += 1
        self._counts[self.rank * _STRIDE] = self._turn
        for rank in range(self.size):
            while self._counts[rank * _STRIDE] < self._turn:
                if patient:
                    time.sleep(_PATIENCE_SECONDS)
                else:
                    os.sched_yield()

    def maximum(self, value: float) -> float:
        """The greatest of all ranks' values."""
        place = _VALUES + self._turn % 2  # no rank is ever two barriers ahead: two places are enough
        self._values[self.rank * _STRIDE + place] = value
        self.barrier()
        return max(self._values[rank * _STRIDE + place] for rank in range(self.size))
