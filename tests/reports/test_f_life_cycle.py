"""Field reports F: groups, life cycle, exit paths. Sources are named in each test."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest
from support.inside import attempt, open_descriptors, resident_bytes, thread_count
from support.job import free_port, report

TRANSPORTS = ("shm", "tcp")


# F1: pytorch/pytorch#130102, pytorch/pytorch#134314, pytorch/pytorch#25390


def disjoint_groups() -> Any:
    import hcomm

    me = hcomm.rank()
    sums = []
    for _ in range(10):
        group = hcomm.new_group([0, 3] if me in (0, 3) else [1, 2])
        group.barrier()
        sums.append(int(hcomm.all_reduce(np.array([10**me]), group=group)[0]))
    if me == 0:
        alone = hcomm.new_group([0])
        sums.append(int(alone.all_reduce(np.array([7]))[0]))
    hcomm.barrier()
    return sums


@pytest.mark.parametrize("transport", [*TRANSPORTS, None])
def test_f1_only_members_make_a_group(job: Any, transport: str | None) -> None:
    answers = job(4, disjoint_groups, transport=transport)
    assert answers == [[1001] * 10 + [7], [110] * 10, [110] * 10, [1001] * 10]


def lists_disagree() -> Any:
    import hcomm

    start = time.monotonic()
    lists = [[0, 1], [1, 0], [2, 1]]
    failure = attempt(hcomm.new_group, lists[hcomm.rank()])
    return failure, time.monotonic() - start


def test_f1_lists_that_disagree(job: Any) -> None:
    answers = job(3, lists_disagree, env={"HCOMM_INIT_TIMEOUT": "4"})
    for failure, seconds in answers:
        assert failure is not None
        assert "HcommError" in failure.kinds
        assert seconds < 6.0
    assert any("[0, 1]" in f.text and "[1, 0]" in f.text for f, _ in answers[:2]), answers


# F2: pytorch/pytorch#176126, pytorch/pytorch#75755


def group_order() -> Any:
    import hcomm

    me = hcomm.rank()
    group = hcomm.new_group([3, 2, 1, 0])
    order = hcomm.all_gather(np.array([me]), group=group).tolist()
    bad = [attempt(hcomm.new_group, ranks) for ranks in ([0, 0, 1], [0, 9], [], [-1, 0])]
    stranger = attempt(hcomm.new_group, [(me + 1) % 4])
    return order, hcomm.rank(group), bad, stranger


def test_f2_the_order_given_is_kept_and_bad_lists_are_refused(job: Any) -> None:
    for me, (order, position, bad, stranger) in enumerate(job(4, group_order)):
        assert order == [3, 2, 1, 0]
        assert position == 3 - me
        for failure in bad:
            assert failure is not None
            assert "ValueError" in failure.kinds
        assert stranger is not None  # only members call new_group


# F3: pytorch/pytorch#55967, pytorch/pytorch#114585, meta-pytorch/torchcomms#1007


def cycles(count: int) -> Any:
    import hcomm

    sums, states = [], []
    for turn in range(count):
        hcomm.init()
        sums.append(float(hcomm.all_reduce(np.array([hcomm.rank() + 1.0]))[0]))
        hcomm.all_reduce(np.ones(100_000))
        hcomm.finalize()
        if turn in (9, count - 1):
            time.sleep(0.05)
            states.append((open_descriptors(), thread_count(), resident_bytes()))
    return sums, states


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_f3_fifty_lives_on_one_port(job: Any, transport: str) -> None:
    before = set(os.listdir("/dev/shm"))
    port = free_port()
    for sums, (early, late) in job(
        2, cycles, args=(50,), transport=transport, init=False, port=port, timeout=100
    ):
        assert sums == [3.0] * 50
        assert early[:2] == late[:2], "descriptors and threads"
        assert late[2] - early[2] < 5e6, "resident memory"
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "hcomm" in name]


def one_leaves_first() -> float:
    import hcomm

    hcomm.init()
    hcomm.all_reduce(np.ones(1))
    if hcomm.rank() == 1:
        time.sleep(0.5)
    hcomm.finalize()
    hcomm.init()
    total = float(hcomm.all_reduce(np.array([hcomm.rank() + 1.0]))[0])
    hcomm.finalize()
    return total


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_f3_one_rank_leaves_before_the_other(job: Any, transport: str) -> None:
    assert job(2, one_leaves_first, init=False, transport=transport, port=free_port()) == [3.0, 3.0]


def last_call(what: str) -> int:
    """Rank 1 comes late to the last operation of the job; the others leave as soon as their part is done."""
    import hcomm

    me = hcomm.rank()
    x = np.arange(4000, dtype=np.uint8)
    hcomm.barrier()
    if me == 1:
        time.sleep(0.1)
    if what == "scatter":
        return int(hcomm.scatter(x if me == 0 else None, src=0, out=np.zeros(1000, dtype=np.uint8)).sum())
    if what == "broadcast":
        return int(hcomm.broadcast(x if me == 0 else np.zeros_like(x), src=0).sum())
    if what == "gather":
        gathered = hcomm.gather(x, dst=1)
        return len(gathered) if me == 1 else 0
    if what == "reduce":
        return int(hcomm.reduce(x.astype(np.int32), dst=1)[-1])
    if me == 1:
        hcomm.recv(x, src=0)
    elif me == 0:
        hcomm.send(x[::-1], dst=1).wait()
    return int(x[0])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("what", ["scatter", "broadcast", "gather", "reduce", "message"])
def test_f3_a_rank_that_has_done_its_part_may_leave(job: Any, what: str, transport: str) -> None:
    x = [k % 256 for k in range(4000)]
    expected = {
        "scatter": [sum(x[1000 * r : 1000 * r + 1000]) for r in range(4)],
        "broadcast": [sum(x)] * 4,
        "gather": [0, 16_000, 0, 0],
        "reduce": [x[-1], 4 * x[-1], x[-1], x[-1]],
        "message": [0, x[-1], 0, 0],
    }
    assert job(4, last_call, args=(what,), transport=transport) == expected[what]


# F4: pytorch/pytorch#179291, pytorch/pytorch#31467


def leave(how: str) -> None:
    import hcomm

    hcomm.init()
    hcomm.all_reduce(np.ones(10))
    pending = []
    if "pending" in how:
        pending = [
            hcomm.all_reduce_async(np.ones(1_000_000)),
            hcomm.recv(np.ones(5), src=0, tag=77, async_op=True),
        ]
    if "half" in how and hcomm.rank() == 0:
        pending.append(hcomm.all_reduce_async(np.ones(3_000_000)))  # the others never join
    if "exit 3" in how:
        sys.exit(3)
    if "exception" in how:
        raise ValueError("on purpose")
    if "os._exit" in how:
        os._exit(7)
    if "global" in how:
        globals()["kept"] = pending


ENDS = {
    "forgets finalize": 0,
    "pending": 0,
    "pending global": 0,
    "half pending": 0,
    "exit 3": 3,
    "pending exit 3": 3,
    "exception": 1,
    "pending exception": 1,
    "pending os._exit": 7,
}


@pytest.mark.parametrize(("world", "transport"), [(1, None), (2, "shm"), (2, "tcp")])
@pytest.mark.parametrize("how", ENDS)
def test_f4_every_way_to_leave(launch: Any, how: str, world: int, transport: str | None) -> None:
    """Exit codes are the program's; nobody aborts; each is gone < 2 s after its peer."""
    done = launch(world, leave, args=(how,), init=False, transport=transport).wait(20)
    assert [o.code for o in done] == [ENDS[how]] * world, report(done)
    assert max(o.seconds for o in done) - min(o.seconds for o in done) < 2.0, report(done)
    for outcome in done:
        assert "Fatal Python error" not in outcome.err, report(done)
        assert "Exception ignored" not in outcome.err, report(done)


# Spares: Ctrl-C (pytorch/pytorch#63802), fork, uneven number of calls (pytorch/pytorch#33148)


def wait_in(what: str) -> None:
    from support.inside import mark

    import hcomm

    if what == "init":
        mark("waiting")
        hcomm.init()
    hcomm.init()
    t = None
    if what == "recv, short way":
        import torch

        t = torch.zeros(10)
        for _ in range(2):
            if hcomm.rank() == 1:
                hcomm.send(t, 0).wait()
            else:
                hcomm.recv(t, src=1)
    if hcomm.rank() == 1:
        time.sleep(20)
    mark("waiting")
    x = np.ones(1_000)
    if what == "barrier":
        hcomm.barrier()
    elif what == "all_reduce":
        hcomm.all_reduce(x)
    elif what == "recv":
        hcomm.recv(x, src=1)
    elif what == "recv, short way":
        hcomm.recv(t, src=1)
    elif what == "work":
        hcomm.all_reduce_async(x).wait()


@pytest.mark.parametrize(
    ("what", "transport"),
    [
        (what, transport)
        for what in ("init", "barrier", "all_reduce", "recv", "work")
        for transport in TRANSPORTS
    ]
    + [("recv, short way", "shm")],
)
def test_ctrl_c_ends_a_wait_within_a_second(launch: Any, what: str, transport: str) -> None:
    ranks = [0] if what == "init" else None
    job = launch(
        2, wait_in, args=(what,), init=False, transport=transport, ranks=ranks, env={"HCOMM_TIMEOUT": "60"}
    )
    job.marked("waiting", [0])
    time.sleep(0.5)
    assert 0 in job.alive(), job.report()
    start = time.monotonic()
    job.signal(0, signal.SIGINT)
    while 0 in job.alive() and time.monotonic() < start + 5:
        time.sleep(0.01)
    seconds = time.monotonic() - start
    assert 0 not in job.alive(), "still waiting after 5 s"
    assert seconds < 1.5, f"{seconds:.1f} s"
    said = (job.directory / "err-0").read_text()
    assert "KeyboardInterrupt" in said
    assert "SystemError" not in said


def use_in_a_child() -> Any:
    import hcomm

    child = os.fork()
    if child == 0:
        failures = [attempt(hcomm.all_reduce, np.ones(1)), attempt(hcomm.barrier), attempt(hcomm.rank)]
        kinds = {f.kind for f in failures[:2] if f is not None}
        os._exit(5 if kinds == {"ForkedProcess"} else 6)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    hcomm.all_reduce(np.ones(10))
    second = os.fork()
    if second == 0:
        sys.exit(9)  # runs the child's exit handlers, which must leave the parent's job alone
    try:
        ended = os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
    except ChildProcessError:
        ended = -1
    return code, ended, float(hcomm.all_reduce(np.array([hcomm.rank() + 1.0]))[0])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_forked_child_is_told_and_does_no_harm(job: Any, transport: str) -> None:
    for code, ended, total in job(2, use_in_a_child, transport=transport):
        assert code == 5
        assert ended != -1
        assert total == 3.0


def one_call_more() -> Any:
    import hcomm

    for _ in range(4):
        hcomm.all_reduce(np.ones(3))
    return attempt(hcomm.all_reduce, np.ones(3), timeout=5.0) if hcomm.rank() == 0 else None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_rank_makes_a_call_more(job: Any, transport: str) -> None:
    """Rank 1 finalises after four calls; rank 0 is told so at once."""
    failure = job(2, one_call_more, transport=transport)[0]
    assert failure is not None
    assert failure.kind == "PeerLost"
    assert failure.ranks == (1,)
    assert "4" in failure.text
    assert "final" in failure.text.lower()
    assert failure.seconds < 2.0


def mistakes_around_init() -> Any:
    import hcomm

    early = attempt(hcomm.all_reduce, np.ones(1))
    hcomm.init()
    twice = attempt(hcomm.init)
    still = float(hcomm.all_reduce(np.ones(1))[0])
    group = hcomm.new_group([0, 1])
    hcomm.finalize()
    late = attempt(hcomm.all_reduce, np.ones(1))
    stale = attempt(group.all_reduce, np.ones(1))
    return early, twice, still, late, stale


def test_use_before_init_and_after_finalize(job: Any) -> None:
    for early, twice, still, late, stale in job(2, mistakes_around_init, init=False):
        assert early.kind == "NotInitialized"
        assert "init" in early.text
        assert twice.kind == "AlreadyInitialized"
        assert still == 2.0
        assert late.kind == "NotInitialized"
        assert stale is not None
        assert "HcommError" in stale.kinds
