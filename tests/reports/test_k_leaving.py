"""Leaving: finalize() waits for what runs, drops nothing silently, and tells what nobody has been told."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pytest
from support.inside import attempt, meet
from support.job import report

TRANSPORTS = ("shm", "tcp")


def finalize_at_once() -> Any:
    import hcomm

    x = np.full(2_000_000, 1.0)
    hcomm.all_reduce_async(x)
    hcomm.finalize()
    return int((x == 2.0).sum())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_finalize_waits_for_what_runs(job: Any, transport: str) -> None:
    assert job(2, finalize_at_once, transport=transport) == [2_000_000] * 2


def finalize_what_never_ends() -> Any:
    import hcomm

    refused = attempt(hcomm.finalize, timeout=-1)
    hcomm.recv_async(np.ones(3), src=1 - hcomm.rank(), tag=5)
    meet("both receive", 2)
    start = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hcomm.finalize(timeout=1.0)
    return refused, time.monotonic() - start, [str(w.message) for w in caught]


def test_finalize_names_what_it_drops(job: Any) -> None:
    for refused, seconds, told in job(2, finalize_what_never_ends):
        assert "ValueError" in refused.kinds
        assert seconds < 3.0
        assert any("finalize() dropped" in text and "recv(float64, 3 elements" in text for text in told), told


def exit_while_it_runs() -> Any:
    import hcomm

    hcomm.init()
    hcomm.recv_async(np.ones(3), src=1 - hcomm.rank(), tag=5)
    meet("both receive", 2)


def test_nothing_is_waited_for_at_exit(outcomes: Any) -> None:
    done = outcomes(2, exit_while_it_runs, init=False)
    assert [o.code for o in done] == [0, 0], report(done)
    assert max(o.seconds for o in done) < 8, report(done)


def aborted_unheard() -> Any:
    import hcomm

    if hcomm.rank() == 1:
        hcomm.default_communicator().abort("enough of it")
        meet("aborted", 2)
        return attempt(hcomm.finalize)
    meet("aborted", 2)
    time.sleep(0.5)
    failure = attempt(hcomm.finalize)
    return failure, hcomm.is_initialized()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_finalize_tells_what_nobody_has_been_told(job: Any, transport: str) -> None:
    (failure, initialized), own = job(2, aborted_unheard, transport=transport)
    assert failure is not None
    assert "CommunicatorError" in failure.kinds
    assert "enough of it" in failure.text
    assert not initialized, "everything was cleaned up before"
    assert own is None, "who aborted knows"


def group_with_the_dead(how: str) -> Any:
    import os
    import signal

    import hcomm

    if hcomm.rank() == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        hcomm.finalize()
        time.sleep(1.5)  # alive, but not a member any more
        return None
    time.sleep(0.5)
    return attempt(hcomm.new_group, [0, 1])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("how", ["killed", "finalised"])
def test_a_group_with_a_rank_that_is_gone(outcomes: Any, how: str, transport: str) -> None:
    done = outcomes(2, group_with_the_dead, args=(how,), transport=transport)
    failure = done[0].value
    assert failure.kind == "PeerLost", report(done)
    assert failure.ranks == (1,)
    assert failure.seconds < 2.0
    assert "rank 1 (pid" in failure.text


def groups_in_threads() -> Any:
    import threading

    import hcomm

    found: dict[int, Any] = {}

    def make(number: int) -> None:
        group = hcomm.new_group([0, 1], name=f"of thread {number}")
        found[number] = float(group.all_reduce(np.array([float(number)]))[0])

    order = range(4) if hcomm.rank() == 0 else reversed(range(4))
    threads = [threading.Thread(target=make, args=(number,)) for number in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_named_groups_of_several_threads(job: Any, transport: str) -> None:
    assert job(2, groups_in_threads, transport=transport) == [{n: 2.0 * n for n in range(4)}] * 2


def group_that_nobody_joins_in_time() -> Any:
    import hcomm

    failure = attempt(hcomm.new_group, [0, 1], timeout=1.0) if hcomm.rank() == 0 else None
    meet("through", 2)
    return failure


def test_the_timeout_of_a_group_bounds_its_making(job: Any) -> None:
    failure = job(2, group_that_nobody_joins_in_time)[0]
    assert failure is not None
    assert "InitError" in failure.kinds
    assert "ranks [1] did not come" in failure.text
    assert 1.0 <= failure.seconds < 2.0
