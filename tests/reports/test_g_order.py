"""Field reports G: wrong order, missing calls. Sources are named in each test."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from support.inside import attempt, meet

TRANSPORTS = ("shm", "tcp")


# G1: NVIDIA/nccl#296, pytorch/pytorch#72843


def opposite_order(counts: tuple[int, int]) -> Any:
    import hcomm

    x, y = np.ones(counts[0]), np.ones(counts[1])
    hcomm.barrier()
    if hcomm.rank() == 0:
        failure = attempt(hcomm.all_reduce, x)
        return failure or attempt(hcomm.broadcast, y, src=0)
    failure = attempt(hcomm.broadcast, y, src=0)
    return failure or attempt(hcomm.all_reduce, x)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("counts", [(100, 100), (100, 7), (1_000_000, 1_000_000)], ids=str)
def test_g1_opposite_order(job: Any, counts: tuple[int, int], transport: str) -> None:
    """An error on both ranks at the first call that differs, with both calls and both source lines."""
    for failure in job(2, opposite_order, args=(counts,), transport=transport):
        assert failure is not None
        assert failure.kind == "CollectiveMismatch"
        assert failure.seconds < 3.0
        for word in (
            "all_reduce",
            "broadcast",
            "rank 0",
            "rank 1",
            f"{counts[0]} elements",
            f"{counts[1]} elements",
        ):
            assert word in failure.text, failure.text


def differ_in(what: str) -> Any:
    import hcomm

    r = hcomm.rank()
    x = np.ones(6)
    calls = {
        "operator": lambda: hcomm.all_reduce(x, op=["sum", "max"][r]),
        "root": lambda: hcomm.broadcast(x, src=r),
        "dtype": lambda: hcomm.broadcast(x.astype(["float32", "int32"][r]), src=0),
        "barrier": lambda: hcomm.barrier() if r else hcomm.all_reduce(x),
        "sizes": lambda: hcomm.reduce_scatter(x, sizes=[[2, 4], [3, 3]][r]),
        "algorithm": lambda: hcomm.new_group([0, 1], algorithm=["ring", "star"][r]).all_reduce(x),
    }
    # The root of a broadcast over TCP only sends: it may be through before anybody knows. Its next call fails.
    return attempt(calls[what]) or attempt(hcomm.barrier)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("what", ["operator", "root", "dtype", "barrier", "sizes", "algorithm"])
def test_g1_every_difference_is_found(job: Any, what: str, transport: str) -> None:
    for failure in job(2, differ_in, args=(what,), transport=transport):
        assert failure is not None
        assert "HcommError" in failure.kinds
        if what != "algorithm":
            assert failure.kind == "CollectiveMismatch"
        assert "rank 0" in failure.text
        assert "rank 1" in failure.text
        assert failure.seconds < 3.0


def lines() -> Any:
    import hcomm

    if hcomm.rank() == 0:
        return attempt(lambda: hcomm.all_reduce(np.ones(2)))  # line of rank 0
    return attempt(lambda: hcomm.all_reduce(np.ones(3)))  # line of rank 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_g1_the_source_lines_of_both_ranks(job: Any, transport: str) -> None:
    with open(__file__) as file:
        wanted = [
            n
            for n, line in enumerate(file, 1)
            if line.rstrip().endswith(("# line of rank 0", "# line of rank 1"))
        ]
    for failure in job(2, lines, transport=transport):
        for number in wanted:
            assert f"test_g_order.py:{number}" in failure.text, failure.text


def groups_in_opposite_order() -> Any:
    import hcomm

    groups = [hcomm.new_group([0, 1]), hcomm.new_group([0, 1])]
    if hcomm.rank() == 1:
        groups.reverse()
    x = np.ones(1000)
    return attempt(hcomm.all_reduce, x, group=groups[0], timeout=1.5) or attempt(
        hcomm.all_reduce, x, group=groups[1], timeout=1.5
    )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_g1_two_groups_in_opposite_order(job: Any, transport: str) -> None:
    for failure in job(2, groups_in_opposite_order, transport=transport):
        assert failure is not None
        assert failure.kind in ("CollectiveTimeout", "PeerLost", "BrokenCommunicator")
        assert failure.seconds < 3.0


# G2: pytorch/pytorch#138322, pytorch/pytorch#54059, pytorch/pytorch#55010


def skip_a_barrier(how: str) -> Any:
    import hcomm

    hcomm.all_reduce(np.ones(5))
    if hcomm.rank() == 3:
        if how == "exits":
            return None
        if how == "goes on":
            return attempt(hcomm.all_reduce, np.ones(5), timeout=2.0)
        meet("the others gave up", 4)
        return None
    failure = attempt(hcomm.barrier, timeout=2.0)
    if how == "sleeps":
        meet("the others gave up", 4)
    return failure


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("how", ["sleeps", "exits", "goes on"])
def test_g2_one_rank_skips_a_barrier(outcomes: Any, how: str, transport: str) -> None:
    """Nobody passes; everybody who waits is told about rank 3 and only about rank 3."""
    failures = [o.value for o in outcomes(4, skip_a_barrier, args=(how,), transport=transport)][:3]
    for failure in failures:
        assert failure is not None
        if how == "sleeps":
            assert failure.kind == "CollectiveTimeout"
            assert 1.9 <= failure.seconds < 3.0  # the first rank to give up tells the others
        else:
            assert failure.kind == {"exits": "PeerLost", "goes on": "CollectiveMismatch"}[how]
            assert failure.seconds < 2.0
        if how != "goes on":
            assert failure.ranks == (3,), failure
        assert "rank 3" in failure.text, failure
        if how == "goes on":
            assert "all_reduce" in failure.text


def freeze_and_go_on() -> Any:
    import hcomm

    me, sums = hcomm.rank(), []
    from support.inside import mark

    for turn in range(60):
        x = hcomm.all_reduce(np.full(500_000, me + 1.0, dtype=np.float32))
        sums.append(bool((x == 10).all()))
        if turn == 5:
            mark("running")
    return all(sums)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_g4_a_rank_that_is_stopped_for_a_while(launch: Any, transport: str) -> None:
    """Three ranks wait one second for a frozen one; then everything goes on with right sums."""
    import signal

    job = launch(4, freeze_and_go_on, transport=transport)
    job.marked("running")
    job.signal(2, signal.SIGSTOP)
    time.sleep(1.0)
    job.signal(2, signal.SIGCONT)
    done = job.wait(40)
    assert [o.value for o in done] == [True] * 4, "\n".join(map(str, done))
