"""Times all_reduce on one rank. The method is the same for every library:

1. warm up, and check the first result;
2. in each iteration, on every rank: rewrite the whole input (untimed, so caches hold what a training step leaves in
   them), meet at a barrier, time one call, and take the longest of all ranks' times;
3. check the last result. A wrong one is reported as wrong and gets no time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.libraries import Library, join
from hcomm.bench.meeting import Meeting

#: Values that a buffer repeats. A prime: no chunk of a power of two begins with the same values as another.
_TILE = 1021
#: Inputs are whole numbers below this, so that sums are exact and no two successive ones are alike.
_VALUES = 13
_LARGE = 1 << 20
_HUGE = 64 << 20
_MOST = 1000


@dataclass(frozen=True)
class Timing:
    """One size in one launch: seconds of the slowest rank, median over the iterations; None if a result was wrong."""

    nbytes: int
    seconds: float | None
    iterations: int


class Vector:
    """The tensor that is reduced, what each iteration writes into it, and what must come out.

    Args:
        nbytes: its size; whole float32s, at least one.
        rank: of this process.
        size: ranks that reduce.
    """

    def __init__(self, nbytes: int, rank: int, size: int) -> None:
        self.tensor = torch.empty(max(1, nbytes // 4), dtype=torch.float32)
        whole = self.tensor.numel() // _TILE * _TILE
        self._rows = self.tensor[:whole].view(-1, _TILE)
        self._rest = self.tensor[whole:]
        self._inputs = [_tile([rank], turn) for turn in range(_VALUES)]
        self._sums = [_tile(range(size), turn) for turn in range(_VALUES)]

    def refill(self, turn: int) -> None:
        """Write this rank's input of iteration `turn`."""
        values = self._inputs[turn % _VALUES]
        self._rows.copy_(values.expand_as(self._rows))
        self._rest.copy_(values[: self._rest.numel()])

    def correct(self, turn: int) -> bool:
        """Whether the tensor holds the sum of all ranks' inputs of iteration `turn`."""
        values = self._sums[turn % _VALUES]
        rest = values[: self._rest.numel()]
        return bool((self._rows == values).all()) and torch.equal(self._rest, rest)


def _tile(ranks: Any, turn: int) -> torch.Tensor:
    index = torch.arange(_TILE)
    total = sum(((7 * index + 3 * rank + turn) % _VALUES for rank in ranks), torch.zeros(_TILE))
    return total.to(torch.float32)


def measure(
    vector: Vector, call: Callable[[torch.Tensor], object], meeting: Meeting, budget: float
) -> Timing:
    """Time one size.

    Args:
        vector: what is reduced.
        call: the library's all_reduce.
        meeting: of all ranks.
        budget: seconds that the iterations may take, rewriting included; at least 7 are made.
    """
    nbytes = vector.tensor.numel() * 4
    turn = 0
    took = 0.0

    def iterate() -> float:
        nonlocal turn, took
        turn += 1
        begin = time.perf_counter()
        vector.refill(turn)
        meeting.barrier()
        start = time.perf_counter()
        call(vector.tensor)
        end = time.perf_counter()
        took = end - begin
        return meeting.maximum(end - start)

    def wrong() -> bool:
        return meeting.maximum(float(not vector.correct(turn))) > 0

    iterate()
    if wrong():
        return Timing(nbytes, None, 1)
    for _ in range(2 if nbytes >= _LARGE else 20):
        iterate()
    least = 7 if nbytes >= _HUGE else 20
    times = [iterate() for _ in range(max(least, min(_MOST, int(budget / meeting.maximum(took)))))]
    return Timing(nbytes, None if wrong() else statistics.median(times), len(times))


def run(library: str, sizes: list[int], budget: float, folder: Path, meeting: Meeting) -> dict[str, Any]:
    """What one rank does in one launch: join, measure every size, leave."""
    group: Library = join(library, folder, meeting.rank, meeting.size)
    meeting.barrier(patient=True)
    timings = []
    for nbytes in sizes:
        vector = Vector(nbytes, meeting.rank, meeting.size)
        timings.append(asdict(measure(vector, group.all_reduce, meeting, budget)))
    backend = group.backend
    group.leave()
    return {"backend": backend, "timings": timings}
