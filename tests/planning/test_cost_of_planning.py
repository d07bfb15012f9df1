"""Planning costs nothing the second time, and little the first."""

from __future__ import annotations

import time

import pytest

from hcomm.codes import OPERATIONS
from hcomm.planning.planner import Planner

RANKS = 1024
ONE_HOST = (tuple(range(RANKS)),)
MANY_HOSTS = tuple(tuple(range(h, h + 8)) for h in range(0, RANKS, 8))
SINGLE = tuple((r,) for r in range(RANKS))
#: What the project promises on one core; a busy machine and a slow interpreter get four times as long.
SECONDS = 0.020
SLACK = 4


def planner(cliques: tuple[tuple[int, ...], ...]) -> Planner:
    return Planner(5, RANKS, cliques, window_bytes=64 << 20, access=False, settings={})


@pytest.mark.parametrize(
    "cliques", [ONE_HOST, MANY_HOSTS, SINGLE], ids=["one host", "hosts of 8", "hosts of 1"]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("nbytes", [64, 100 << 20])
@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_the_first_plan_of_1024_ranks(operation: str, nbytes: int, dtype: str, cliques) -> None:
    """Every default choice; the best of five counts, as other work on the machine is no cost of planning."""
    planner(cliques).choose(operation, dtype, "sum", nbytes, 3)  # loads the algorithms
    seconds = []
    for _ in range(5):
        fresh = planner(cliques)
        start = time.process_time()
        choice = fresh.choose(operation, dtype, "sum", nbytes, 3)
        seconds.append(time.process_time() - start)
        if seconds[-1] <= SECONDS:
            break
    assert fresh.built == 1, f"{choice.algorithm}: {fresh.built} programs for one choice"
    assert min(seconds) <= SECONDS * SLACK, f"{choice.algorithm}: {min(seconds) * 1e3:.1f} ms"


@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_the_second_plan_builds_nothing(operation: str) -> None:
    p = planner(MANY_HOSTS)
    first = p.choose(operation, "float32", "sum", 4 << 20, 3)
    built = p.built
    assert p.choose(operation, "float32", "sum", 4 << 20, 3) is first
    assert p.choose(operation, "int32", "max", (4 << 20) + 64, 3).program is first.program
    assert p.built == built
