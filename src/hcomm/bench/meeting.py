"""Where ranks meet before each timed call: a barrier that belongs to none of the libraries measured."""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import Protocol

from hcomm.communicator import Communicator
from hcomm.errors import CollectiveTimeout

#: 8-byte words to a rank: two cache lines, so that no rank's stores disturb another's.
_STRIDE = 16
#: Where a rank's two values begin.
_VALUES = 8
_PATIENCE_SECONDS = 0.001
#: Looks between two at the clock.
_LOOKS = 1024


class Barrier(Protocol):
    """How ranks meet; `how` says it in words."""

    how: str

    def barrier(self) -> object:
        """Return when every rank has come."""


class Meeting:
    """Ranks of one host that meet through one small shared file, each writing only its own two cache lines.

    Args:
        path: a file of this launch's own; made by whoever comes first.
        rank: of the caller.
        size: ranks that meet.
        seconds: that a rank waits for the others.
    """

    how = "at a barrier in a shared file, of none of the libraries"

    def __init__(self, path: Path, rank: int, size: int, seconds: float = 300.0) -> None:
        self.rank = rank
        self.size = size
        self._seconds = seconds
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
        """Return when every rank has come. Raises CollectiveTimeout when one does not.

        Args:
            patient: sleep between looks, for ranks that may be seconds late. Otherwise the caller only yields: a
                core that went idle would make the operation that follows some microseconds slower.
        """
        self._turn += 1
        self._counts[self.rank * _STRIDE] = self._turn
        looks = 0
        deadline = 0.0
        for rank in range(self.size):
            while self._counts[rank * _STRIDE] < self._turn:
                if patient:
                    time.sleep(_PATIENCE_SECONDS)
                else:
                    os.sched_yield()
                looks += 1
                if looks % _LOOKS == 0:
                    deadline = deadline or time.monotonic() + self._seconds
                    if time.monotonic() > deadline:
                        raise CollectiveTimeout(
                            f"rank {self.rank}: rank {rank} did not come to the barrier before a timed call "
                            f"within {self._seconds:g} s",
                            (rank,),
                        )

    def maximum(self, value: float) -> float:
        """The greatest of all ranks' values."""
        place = _VALUES + self._turn % 2  # no rank is ever two barriers ahead: two places are enough
        self._values[self.rank * _STRIDE + place] = value
        self.barrier()
        return max(self._values[rank * _STRIDE + place] for rank in range(self.size))


class ByHcomm:
    """hcomm's own barrier, where the ranks have no file in common."""

    how = "at hcomm's barrier"

    def __init__(self, world: Communicator) -> None:
        self.barrier = world.barrier


def meeting_of(world: Communicator) -> Barrier:
    """How the ranks of `world` meet: at a shared file where all have it in common. Every rank calls it."""
    import numpy as np

    name = np.frombuffer(secrets.token_bytes(16), "uint8").copy()
    world.broadcast(name)
    path = Path(tempfile.gettempdir(), f"hcomm-bench-{name.tobytes().hex()}")
    found = np.zeros(world.size, "int64")
    meeting = None
    if len(world.hosts) == 1:
        try:
            meeting = Meeting(path, world.rank, world.size, world.timeout)
            found[world.rank] = path.stat().st_ino
        except OSError:
            meeting = None
    world.all_reduce(found)  # containers on one host may share memory, and no folder
    if world.rank == 0 or meeting is not None:
        path.unlink(missing_ok=True)
    if meeting is None or len(set(found.tolist())) != 1:
        return ByHcomm(world)
    return meeting
