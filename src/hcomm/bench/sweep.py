"""All points in their order, on every rank of a job. The method is the same for every library:

1. write the input, make one call, and check its result;
2. in each iteration, on every rank: rewrite the whole input (untimed, so that caches hold what a training step leaves
   in them), meet at a barrier, time one call; of each iteration the slowest rank's time counts;
3. check the last result.

Lines that are measured side by side take turns in rounds, so that a slow spell of the machine hits them all.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hcomm.bench.cases import Case
from hcomm.bench.libraries import Call, Gloo, Hcomm, Library, Unsupported
from hcomm.bench.machine import busy_seconds, describe
from hcomm.bench.meeting import Barrier, meeting_of
from hcomm.bench.memory import Memory, need
from hcomm.bench.mpi import Mpi
from hcomm.bench.order import Line, Order, Point
from hcomm.bench.results import Row, Timing
from hcomm.communicator import Communicator
from hcomm.errors import HcommError

Advance = Callable[[int, int], None]

#: Untimed calls, and the least number of timed ones, for small and for large messages.
_LARGE = 1 << 20
_WARM_UP, _WARM_UP_LARGE = 20, 2
_LEAST_CALLS, _MOST_CALLS = 5, 2000


class Contest:
    """One form of one line at one point, on one rank: its case, its call, its times."""

    def __init__(self, line: Line, library: Library, case: Case, call: Call) -> None:
        self.line = line
        self.library = library
        self.case = case
        self.call = call
        self.calls = 0
        self.times: list[float] = []
        self.wrong: int | None = None


class Sweep:
    """The measurement of one job, on one rank.

    Args:
        world: all ranks.
        order: what is measured.
    """

    def __init__(self, world: Communicator, order: Order) -> None:
        need(order.arrays, order.dtypes, order.peers, order.zero_copy)
        if order.root >= world.size:
            raise HcommError(f"--root {order.root}: there are {world.size} ranks, 0 to {world.size - 1}")
        self._world = world
        self._order = order
        self._memory = Memory(order.arrays, order.zero_copy)
        # A peer must not profit from hcomm's buffers, nor pay for them.
        self._plain = Memory(order.arrays, False) if order.zero_copy else self._memory
        made: dict[str, Callable[[Communicator], Library]] = {"gloo": Gloo, "mpi4py": Mpi}
        self.libraries: dict[str, Library] = {"hcomm": Hcomm(world)}
        self.libraries.update({peer: made[peer](world) for peer in order.peers})
        self._meeting: Barrier = meeting_of(world)
        self._turn = 0
        self._begin = time.monotonic(), busy_seconds(), time.process_time()

    def foreign(self) -> float:
        """The share of the busiest host's processors that other work took since the start, 0 to 1. Collective."""
        world = self._world
        elapsed, busy, own = self._begin
        used = np.array([time.process_time() - own])
        everyone = world.all_gather(used)
        mine = next(members for members in world.hosts if world.rank in members)
        other = busy_seconds() - busy - sum(float(everyone[rank]) for rank in mine)
        took = (time.monotonic() - elapsed) * (os.cpu_count() or 1)
        return self._most([max(0.0, other / took)])[0]

    def about(self) -> dict[str, Any]:
        """Where and how it is measured, as plain data."""
        world, order = self._world, self._order
        packages = ("numpy", "torch") if order.arrays == "torch" else ("numpy",)
        return {
            "ranks": world.size,
            "hosts": sorted(set(world.host_names)),
            "pid": os.getpid(),
            "backend": world.backend_name,
            "transport": order.transport,
            "arrays": order.arrays,
            "zero_copy": order.zero_copy,
            "refilled": order.refill,
            "checked": order.check,
            "rounds": order.rounds,
            "barrier": self._meeting.how,
            "libraries": {name: library.version for name, library in self.libraries.items()},
            "machine": describe(packages),
        }

    def rows(self, advance: Advance) -> Iterator[Row]:
        """Measure everything; the rows, on every rank.

        Args:
            advance: told (points done, points in all) as it goes.

        Raises:
            HcommError: an operation failed.
        """
        points = list(self._order.points(self._world.size))
        gc.disable()
        try:
            for done, point in enumerate(points):
                advance(done, len(points))
                yield from self._point(point)
                gc.collect()
        finally:
            gc.enable()
        advance(len(points), len(points))

    def leave(self) -> None:
        """Leave the peers' groups."""
        for library in self.libraries.values():
            library.leave()

    def _point(self, point: Point) -> list[Row]:
        """All lines at one point."""
        found: dict[tuple[Line, bool], Timing] = {}
        notes: dict[Line, str] = {}
        lines = self._order.lines(point.operation)
        # One form after the other, so that no more memory is held than a user would need.
        for in_place in (False, True) if point.definition.in_place else (False,):
            contests = []
            cases = self._cases(point, in_place)
            for line in lines:
                contest, note = self._contest(line, cases[line.library == "hcomm"])
                if contest is None:
                    notes.setdefault(line, note)
                else:
                    contests.append(contest)
            for number in range(self._order.rounds):
                for contest in contests:
                    self._round(contest, last=number == self._order.rounds - 1)
            for contest in contests:
                found[contest.line, in_place] = self._timing(contest)
        return [
            Row(
                point.operation,
                point.dtype,
                point.operator,
                point.root,
                point.count,
                point.nbytes,
                line.library,
                line.algorithm,
                found.get((line, False)),
                found.get((line, True)),
                notes.get(line, ""),
            )
            for line in lines
        ]

    def _cases(self, point: Point, in_place: bool) -> dict[bool, Case]:
        """The case of hcomm (True) and that of its peers: the same one, unless only hcomm's is zero copy."""
        world = self._world
        ours = Case(point, world.rank, world.size, self._memory, in_place)
        if self._plain is self._memory or not self._order.peers:
            return {True: ours, False: ours}
        return {True: ours, False: Case(point, world.rank, world.size, self._plain, in_place)}

    def _contest(self, line: Line, case: Case) -> tuple[Contest | None, str]:
        """Make the first call, check it, and find out how many are affordable; or why there is no such form."""
        library = self.libraries[line.library]
        error = ""
        try:
            contest = Contest(line, library, case, library.call(case, line))
        except Unsupported as unsupported:
            return None, str(unsupported)
        self._turn += 1
        case.refill(self._turn)
        try:
            contest.call()
        except (TypeError, ValueError, RuntimeError, NotImplementedError) as failure:
            # Before anything is sent: a type or an algorithm that the library does not have. All ranks agree.
            self._world._check_alive()
            error = " ".join(f"{type(failure).__name__}: {failure}".split())
        if self._most([float(bool(error))])[0]:
            return None, error or "failed on another rank"
        if self._order.check:
            contest.wrong = case.wrong(self._turn, library.keeps_input)
        took = 0.0
        warm_up = _WARM_UP_LARGE if case.point.nbytes >= _LARGE else _WARM_UP
        for _ in range(min(warm_up, self._order.iterations or warm_up)):
            begin = time.perf_counter()
            self._iterate(contest)
            took = time.perf_counter() - begin
        contest.calls = self._order.iterations
        if not contest.calls:
            affordable = self._order.budget / max(self._most([took])[0], 1e-9)
            contest.calls = max(_LEAST_CALLS, min(_MOST_CALLS, int(affordable)))
        return contest, ""

    def _iterate(self, contest: Contest) -> float:
        """One call, in seconds on this rank."""
        self._turn += 1
        if self._order.refill:
            contest.case.refill(self._turn)
        self._meeting.barrier()
        start = time.perf_counter()
        contest.call()
        return time.perf_counter() - start

    def _round(self, contest: Contest, last: bool) -> None:
        """This round's share of the timed calls, after one untimed; after the last one the result is checked."""
        self._iterate(contest)
        for _ in range(-(-contest.calls // self._order.rounds)):
            contest.times.append(self._iterate(contest))
        if not last or contest.wrong is None:
            return
        if not self._order.refill:
            self._turn += 1
            contest.case.refill(self._turn)
            contest.call()
        contest.wrong += contest.case.wrong(self._turn, contest.library.keeps_input)

    def _timing(self, contest: Contest) -> Timing:
        """Of all ranks together."""
        slowest = self._most(contest.times)
        if contest.case.point.operation == "ping_pong":
            slowest = [seconds / 2 for seconds in slowest]
        wrong = None
        if contest.wrong is not None:
            cells = np.array([contest.wrong], "int64")
            self._world.all_reduce(cells)
            wrong = int(cells[0])
        return Timing.of(slowest, wrong)

    def _most(self, seconds: list[float]) -> list[float]:
        """Of each value, the greatest of all ranks'."""
        cells = np.array(seconds, "float64")
        self._world.all_reduce(cells, "max")
        found: list[float] = cells.tolist()
        return found
