"""Field reports H: death of a peer, timeouts. Sources are named in each test."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.inside import attempt, mark, meet
from support.job import report

TRANSPORTS = ("shm", "tcp")


# H1: horovod/horovod#2907, pytorch/elastic#134, meta-pytorch/torchft#164


def loop(fail_at: int, count: int) -> Any:
    """all_reduce until a peer is lost; returns the failure, when it was noticed, and what a later call says."""
    import hcomm

    me = hcomm.rank()
    for turn in range(1_000_000):
        if turn == 3:
            mark("looping")
        if me == 1 and turn == fail_at:
            raise ValueError("rank 1 gives up")
        x = np.full(count, me + 1.0, dtype=np.float32)
        failure = attempt(hcomm.all_reduce, x)
        noticed = time.time()
        if failure is not None:
            return failure, noticed, attempt(hcomm.barrier)
        assert x[0] == x[-1] == 10.0
    return None


def check_survivors(done: list[Any], dead: int, since: float) -> None:
    for outcome in done:
        if outcome.rank == dead:
            continue
        assert outcome.code == 0, report(done)
        failure, noticed, later = outcome.value
        assert failure.kind == "PeerLost", report(done) + failure.text
        assert failure.ranks == (dead,), report(done) + failure.text
        assert noticed - since < 2.0, report(done)
        assert later is not None
        assert later.kind == "BrokenCommunicator"
        assert "rebuil" in later.text or "broken" in later.text


def kill_one(launch: Callable[..., Any], transport: str, count: int, pause: float, dead: int = 2) -> None:
    job = launch(4, loop, args=(-1, count), transport=transport)
    job.marked("looping")
    time.sleep(pause)
    since = time.time()
    job.signal(dead)
    check_survivors(job.wait(20), dead, since)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("dead", "count"), [(2, 4 << 20), (2, 10), (0, 4 << 20), (3, 100_000)])
def test_h1_a_rank_is_killed(launch: Any, dead: int, count: int, transport: str) -> None:
    kill_one(launch, transport, count, pause=0.05, dead=dead)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_h1_fifty_kills(launch: Any, transport: str) -> None:
    chance = random.Random(7)
    for _ in range(50):
        kill_one(launch, transport, count=4 << 20, pause=chance.uniform(0.0, 0.3))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_h1_a_rank_raises_and_exits(launch: Any, transport: str) -> None:
    job = launch(4, loop, args=(10, 4 << 20), transport=transport)
    done = job.wait(20)
    assert done[1].error is not None
    assert done[1].error.kind == "ValueError"
    check_survivors(done, dead=1, since=time.time())
    assert max(o.seconds for o in done) - done[1].seconds < 2.0, report(done)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_h1_two_ranks_at_once(launch: Any, transport: str) -> None:
    """The survivors blame a dead rank, never each other."""
    job = launch(4, loop, args=(-1, 4 << 20), transport=transport)
    job.marked("looping")
    since = time.time()
    job.signal(2)
    job.signal(1)
    done = job.wait(20)
    for rank in (0, 3):
        failure, noticed, _ = done[rank].value
        assert failure.kind == "PeerLost", report(done)
        assert set(failure.ranks) <= {1, 2}, report(done)
        assert failure.ranks, report(done)
        assert noticed - since < 2.0


def wait_for_the_dead() -> Any:
    import hcomm

    x = np.ones(1000)
    if hcomm.rank() == 2:
        mark("ready")
        time.sleep(30)
    works = [hcomm.recv(x, src=2, async_op=True)] if hcomm.rank() == 0 else [hcomm.all_reduce_async(x)]
    mark("ready")
    return attempt(works[0].wait), time.time()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_h1_waiting_receives_and_work_notice(launch: Any, transport: str) -> None:
    job = launch(3, wait_for_the_dead, transport=transport)
    job.marked("ready")
    time.sleep(0.2)
    since = time.time()
    job.signal(2)
    done = job.wait(15)
    for outcome in done[:2]:
        failure, noticed = outcome.value
        assert failure.kind == "PeerLost", report(done)
        assert 2 in failure.ranks, report(done)
        assert noticed - since < 2.0, report(done)


# H2: pytorch/pytorch#158128, pytorch/pytorch#37571, pytorch/gloo#520


def calls(hcomm: Any, suffix: str, **options: Any) -> dict[str, Callable[[Any], Any]]:
    def call(name: str, *args: Any, **more: Any) -> Callable[[Any], Any]:
        return lambda group: getattr(hcomm, name + suffix)(*args, group=group, **options, **more)

    x = np.ones(4000)
    return {
        "all_reduce": call("all_reduce", x.copy()),
        "broadcast": call("broadcast", x.copy(), src=1),
        "reduce": call("reduce", x.copy(), dst=0),
        "all_gather": call("all_gather", x),
        "reduce_scatter": call("reduce_scatter", x),
        "all_to_all": call("all_to_all", x),
        "gather": call("gather", x, dst=0),
        "scatter": call("scatter", None, out=x.copy(), src=1),
        "barrier": call("barrier"),
    }


def late_peer(form: str) -> Any:
    """Every operation on its own group; rank 1 makes the groups and then stays away."""
    import hcomm

    me = hcomm.rank()
    suffix = "_async" if form != "blocking" else ""
    options = {} if form == "wait" else {"timeout": 0.5}
    table = calls(hcomm, suffix, **options)
    groups = {name: hcomm.new_group([0, 1]) for name in [*table, "recv"]}
    found = {}
    if me == 0:
        for name, call in table.items():
            if form == "blocking":
                found[name] = attempt(call, groups[name])
            elif form == "deadline":
                found[name] = attempt(lambda c=call, g=groups[name]: c(g).wait())
            else:
                found[name] = attempt(lambda c=call, g=groups[name]: c(g).wait(0.5))
        x = np.ones(3)
        if form == "blocking":
            found["recv"] = attempt(hcomm.recv, x, src=1, group=groups["recv"], timeout=0.5)
        else:
            found["recv"] = attempt(
                lambda: hcomm.recv(x, src=1, group=groups["recv"], async_op=True, **options).wait(
                    0.5 if form == "wait" else None
                )
            )
        found["after"] = attempt(groups["all_reduce"].barrier, timeout=0.5)
    meet("rank 0 is through", 2)
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("form", ["blocking", "deadline", "wait"])
def test_h2_timeouts_hold_for_every_operation(outcomes: Any, form: str, transport: str) -> None:
    """Default 300 s; 0.5 s for the call, or for the wait."""
    done = outcomes(2, late_peer, args=(form,), transport=transport, env={"HCOMM_TIMEOUT": "300"}, timeout=30)
    found = done[0].value
    after = found.pop("after")
    for name, failure in found.items():
        assert failure is not None, name
        assert failure.kind == "CollectiveTimeout", (name, failure)
        assert 0.5 <= failure.seconds < 1.5, (name, failure)
        assert failure.ranks == (1,) or form == "wait", (name, failure)
        assert name in failure.text, (name, failure)
    if form != "wait":
        assert after.kind == "BrokenCommunicator"


def setting_of_the_environment() -> Any:
    import hcomm

    failure = attempt(hcomm.barrier) if hcomm.rank() == 0 else None
    meet("through", 2)
    return failure


def test_h2_the_environment_sets_the_timeout(outcomes: Any) -> None:
    failure = outcomes(2, setting_of_the_environment, env={"HCOMM_TIMEOUT": "700ms"})[0].value
    assert failure.kind == "CollectiveTimeout"
    assert 0.7 <= failure.seconds < 1.7


def group_that_nobody_joins() -> Any:
    import hcomm

    failure = attempt(hcomm.new_group, [0, 1]) if hcomm.rank() == 0 else None
    meet("through", 2)
    return failure


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_h2_a_group_whose_members_do_not_come(outcomes: Any, transport: str) -> None:
    failure = outcomes(2, group_that_nobody_joins, transport=transport, env={"HCOMM_INIT_TIMEOUT": "2"})[
        0
    ].value
    assert failure is not None
    assert "HcommError" in failure.kinds
    assert 2.0 <= failure.seconds < 3.5
    assert "1" in failure.text
