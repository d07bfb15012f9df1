"""Times programs with the engine of a running communicator, within an agreed budget.

Every rank calls everything here, in the same order. Whether there is time left is decided by the slowest rank's clock,
which all hear of: so all stop at the same program.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hcomm import _native
from hcomm.codes import DTYPES, OPERATIONS, OPERATORS
from hcomm.diagnose.callsite import caller
from hcomm.diagnose.report import Call
from hcomm.planning.builder import Builder, Requirement
from hcomm.planning.program import Program
from hcomm.plans import Signature, agreement

if TYPE_CHECKING:
    from hcomm.communicator import Communicator

#: Bytes of an element of the vectors (float32).
ITEM = 4
#: Seconds that all runs of one program should take, after the first two.
_SHARE = 0.005
#: How often a program runs.
REPEATS = 8


class OutOfTime(Exception):
    """The budget is spent; on all ranks at once."""


class Stopwatch:
    """Times programs of one communicator, on one rank.

    Args:
        world: the communicator.
        address: of this rank's vectors.
        patience: seconds that any one program may take.
        budget: seconds after which no other program is begun.

    Attributes:
        used: seconds since the start, as all ranks agreed after the first run of the last program.
    """

    def __init__(self, world: Communicator, address: int, patience: float, budget: float) -> None:
        self._world = world
        self._address = address
        self._patience = patience
        self._budget = budget
        self._begin = time.perf_counter()
        self.used = 0.0

    def time(
        self,
        write: Callable[[Builder], None],
        nbytes: int,
        requires: Requirement = Requirement.LINKS,
        repeats: int = REPEATS,
    ) -> float:
        """Seconds of the fastest of some runs of a program, on vectors of `nbytes`: other work only ever adds.

        It runs twice, since the first run touches memory that never was, and more often as far as a few ms allow.

        Raises:
            OutOfTime: the budget is spent.
        """
        if self.used >= self._budget:
            raise OutOfTime
        plan = self._plan(write, nbytes, requires)
        took = [self._once(plan)]
        longest, self.used = self._most(took[0], time.perf_counter() - self._begin)
        left = self._budget - self.used
        more = int(min(_SHARE, left / 3) / longest)
        took += [self._once(plan) for _ in range(max(int(longest < left), min(repeats - 1, more)))]
        return min(took)

    def slowest(self, value: float) -> float:
        """The largest of all ranks' values."""
        return self._most(value)[0]

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums of all ranks' values, the same bits everywhere."""
        return self._combine("sum", values)

    def _most(self, *values: float) -> list[float]:
        return self._combine("max", values)

    def _combine(self, op: str, values: Sequence[float]) -> list[float]:
        cells = array("d", values)
        count = len(cells)
        plan = self._world._plan(Signature("all_reduce", "float64", op, -1, count, count, count, 8 * count))
        self._run(plan, _native.address_of(cells, True)[0])
        return list(cells)

    def _plan(self, write: Callable[[Builder], None], nbytes: int, requires: Requirement) -> _native.Plan:
        world = self._world
        p = Builder(
            "all_reduce",
            world.rank,
            world.size,
            cliques=world.cliques,
            algorithm="measurement",
            requires=requires,
        )
        write(p)
        count = nbytes // ITEM
        return world._native.plan(
            p.build().encode(),
            Program(()).encode() if requires is Requirement.ACCESS else b"",
            operation=OPERATIONS["all_reduce"],
            dtype=DTYPES["float32"][0],
            op=OPERATORS["sum"],
            root=-1,
            count=count,
            n_in=count,
            n_out=count,
            bounds_in=[],
            bounds_out=[],
            algorithm=agreement("measurement", nbytes),
            agreed=0,
            tile_bytes=0,
        )

    def _once(self, plan: _native.Plan) -> float:
        """Seconds of one run, begun by all ranks at about the same time."""
        self._world.barrier(timeout=self._patience)
        start = time.perf_counter()
        self._run(plan, self._address)
        return max(time.perf_counter() - start, math.ulp(1.0))

    def _run(self, plan: _native.Plan, address: int) -> None:
        status = self._world._native.run(plan, address, address, self._patience)
        if status:
            raise self._world._fail(status, Call("measuring the costs of links", caller(), self._patience))


def largest(world: Communicator, value: float, seconds: float = 60.0) -> float:
    """The largest of all ranks' values. Collective."""
    return Stopwatch(world, 0, seconds, 0.0).slowest(value)
