"""Ranks that outnumber their processors: dealt out among them, each keeps its own until it has to wait."""

from __future__ import annotations

from collections import deque
from heapq import heappush


class Processors:
    """Processors that ranks share: a rank keeps its own until it has to wait, and then needs a turn to get it back.

    Args:
        core: rank → its processor, of the ranks that share one.
        turn: seconds until a rank that waited has it again.
        call: seconds for which a rank needs it at first.
    """

    def __init__(self, core: dict[int, tuple[int, int]], turn: float, call: float) -> None:
        self.ranks = core
        self._turn, self._call = turn, call
        self._begun: set[int] = set()
        self._holder: dict[tuple[int, int], int] = {}
        self._free: dict[tuple[int, int], float] = {}
        self._queue: dict[tuple[int, int], deque[int]] = {}

    def begin(self, rank: int, now: float, heap: list[tuple[float, int]]) -> bool:
        """Whether `rank`, which could go on, does so now; otherwise it is pushed again when it has its turn."""
        core = self.ranks.get(rank)
        if core is None:
            return True
        holder = self._holder.get(core)
        if holder == rank:
            return True
        if holder is not None:
            self._queue.setdefault(core, deque()).append(rank)
            return False
        self._holder[core] = rank
        # Others on it wait as well, and each looks for what it waits for in its turn.
        first = rank not in self._begun
        self._begun.add(rank)
        heappush(heap, (max(now, self._free.get(core, 0.0)) + (self._call if first else self._turn), rank))
        return False

    def end(self, rank: int, now: float, heap: list[tuple[float, int]]) -> None:
        """`rank` waits or is done: the next one has its turn."""
        core = self.ranks.get(rank)
        if core is None:
            return
        queue = self._queue.get(core)
        if queue:
            after = queue.popleft()
            self._holder[core] = after
            first = after not in self._begun
            self._begun.add(after)
            heappush(heap, (now + self._turn + (self._call if first else 0.0), after))
        else:
            self._free[core] = now
            del self._holder[core]
