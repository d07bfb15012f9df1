"""Times every all_reduce algorithm on one rank, beside the one that hcomm chooses by itself.

Programs are run by the core, without Python's part of a call, which is the same for all of them. For each size,
in interleaved rounds: rewrite the input (untimed), meet, time a batch of calls, take the slowest rank's time. The order
is drawn anew for every round, alike on all ranks: what ran before must not always be the same.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import hcomm
from hcomm import _native
from hcomm.bench.meeting import Meeting
from hcomm.communicator import Communicator
from hcomm.errors import UnknownAlgorithm
from hcomm.planning.registry import algorithms
from hcomm.plans import Signature

#: Calls in a row that are timed together, for vectors up to so many bytes.
_BATCHES = ((4 << 10, 50), (64 << 10, 10))
#: After so many rounds whatever takes this many times as long as the best is out of the running: the time is better
#: spent on those that may be the best.
_HOPELESS = {3: 1.7, 8: 1.3}
_LEAST_ROUNDS, _MOST_ROUNDS = 20, 100
_SECONDS = 60.0


@dataclass(frozen=True)
class Race:
    """One size: the algorithm that hcomm chooses, and seconds per call of each (median of the rounds).

    Those that were out of the running after the first rounds are in `seconds` with what they took in these.
    """

    nbytes: int
    chosen: str
    seconds: dict[str, float]
    rounds: int


def run(sizes: list[int], also: list[str], budget: float, meeting: Meeting) -> dict[str, Any]:
    """Join, race all algorithms at every size, leave.

    Args:
        sizes: bytes of the vectors, whole float32s.
        also: further entries, as `algorithm=` of a call has them: `ring(chunk=1MB)`.
        budget: seconds for each size.
        meeting: of all ranks.
    """
    world = hcomm.init()
    meeting.barrier(patient=True)
    races = [asdict(_race(world, nbytes, also, budget, meeting)) for nbytes in sizes]
    backend = world.backend_name
    hcomm.finalize()
    return {"backend": backend, "races": races}


def _race(world: Communicator, nbytes: int, also: list[str], budget: float, meeting: Meeting) -> Race:
    data = np.empty(nbytes // 4 + 16, dtype=np.float32)
    vector = data[-(data.ctypes.data // 4) % 16 :][: nbytes // 4]
    source = np.ones_like(vector)
    chosen = world._planner.choose("all_reduce", "float32", "sum", nbytes, None).algorithm  # type: ignore[attr-defined]
    plans: dict[str, _native.Plan] = {}
    for name in (*(entry.name for entry in algorithms("all_reduce")), *also):
        n = vector.size
        signature = Signature("all_reduce", "float32", "sum", -1, n, n, n, nbytes)
        # The choice itself, with the options that go with it; the others as somebody would ask for them.
        asked = "" if name == chosen else name
        try:
            plans[name] = world._plan(signature._replace(algorithm=asked))
        except UnknownAlgorithm:
            continue
    batch = next((calls for most, calls in _BATCHES if nbytes <= most), 1)
    address = vector.ctypes.data

    def once(plan: _native.Plan) -> float:
        vector[:] = source
        meeting.barrier()
        start = time.perf_counter()
        for _ in range(batch):
            if status := world._native.run(plan, address, address, _SECONDS):
                raise RuntimeError(f"status {status}")
        return meeting.maximum(time.perf_counter() - start) / batch

    times: dict[str, list[float]] = {name: [] for name in plans}
    for plan in plans.values():
        once(plan)
    rounds, planned, order = 0, _LEAST_ROUNDS, random.Random(nbytes)
    while rounds < planned:
        names = list(plans)
        order.shuffle(names)
        begin = time.perf_counter()
        for name in names:
            times[name].append(once(plans[name]))
        rounds += 1
        if rounds in _HOPELESS:
            limit = _HOPELESS[rounds] * min(map(statistics.median, times.values()))
            plans = {
                name: plan
                for name, plan in plans.items()
                if name == chosen or statistics.median(times[name]) < limit
            }
            took = meeting.maximum(time.perf_counter() - begin)
            planned = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(budget / took)))
    return Race(nbytes, chosen, {name: statistics.median(found) for name, found in times.items()}, rounds)
