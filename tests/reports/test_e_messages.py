"""Field reports E: point-to-point. Sources are named in each test."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from support.inside import attempt

TRANSPORTS = ("shm", "tcp")


# E1: pytorch/pytorch#94819, pytorch/pytorch#125079, pytorch/pytorch#30723, pytorch/gloo#308


def tags() -> Any:
    import hcomm

    shape = (2000, 2000)
    if hcomm.rank() == 0:
        ones, zeros = np.ones(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
        first = hcomm.send(ones, dst=1, tag=1)
        time.sleep(0.2)
        second = hcomm.send(zeros, dst=1, tag=2)
        first.wait()
        second.wait()
        for work in [hcomm.send(np.array([i]), dst=1, tag=9) for i in range(100)]:
            work.wait()
        return None
    a, b = np.full(shape, 5, dtype=np.float32), np.full(shape, 5, dtype=np.float32)
    second = hcomm.recv(b, src=0, tag=2, async_op=True)
    first = hcomm.recv(a, src=0, tag=1, async_op=True)
    second.wait()
    first.wait()
    order = []
    for _ in range(100):
        x = np.zeros(1, dtype=np.int64)
        hcomm.recv(x, src=0, tag=9)
        order.append(int(x[0]))
    return float(a.min()), float(a.max()), float(b.min()), float(b.max()), order


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_e1_tags_match_and_one_tag_keeps_its_order(job: Any, transport: str) -> None:
    assert job(2, tags, transport=transport)[1] == (1.0, 1.0, 0.0, 0.0, list(range(100)))


def poll(count: int) -> Any:
    import hcomm

    hcomm.barrier()
    if hcomm.rank() == 0:
        time.sleep(0.3)
        work = hcomm.send(np.ones(count), dst=1)
    else:
        x = np.zeros(count)
        work = hcomm.recv(x, src=0, async_op=True)
    end = time.monotonic() + 1.3
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.005)
    return work.is_completed()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("count", [1, 1_000_000])
def test_e1_polling_ends_within_a_second(job: Any, count: int, transport: str) -> None:
    assert job(2, poll, args=(count,), transport=transport) == [True, True]


# E2: pytorch/pytorch#11275, meta-pytorch/torchcomms#2992, pytorch/pytorch#172668

SIZES = (1024, 64 << 20)


def both_send_first(nbytes: int) -> bool:
    import hcomm

    me = hcomm.rank()
    size = hcomm.world_size()
    out = np.full(nbytes, me + 1, dtype=np.uint8)
    incoming = np.zeros(nbytes, dtype=np.uint8)
    sending = hcomm.send(out, dst=(me + 1) % size)
    receiving = hcomm.recv(incoming, src=(me - 1) % size, async_op=True)
    sending.wait()
    receiving.wait()
    return bool((incoming == (me - 1) % size + 1).all())


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("nbytes", SIZES)
def test_e2_everybody_sends_first(job: Any, world: int, nbytes: int, transport: str) -> None:
    assert job(world, both_send_first, args=(nbytes,), transport=transport) == [True] * world


def both_block_in_send(nbytes: int) -> Any:
    import hcomm

    me = hcomm.rank()
    incoming = np.zeros(nbytes, dtype=np.uint8)
    work = hcomm.send(np.full(nbytes, me + 1, dtype=np.uint8), dst=1 - me, timeout=2.0)
    failure = attempt(work.wait)
    if failure is None:
        hcomm.recv(incoming, src=1 - me)
        return bool((incoming == 2 - me).all())
    return failure


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("nbytes", SIZES)
def test_e2_both_wait_for_their_send_before_they_receive(outcomes: Any, nbytes: int, transport: str) -> None:
    """It completes, or ends by the timeout with a diagnosis."""
    for outcome in outcomes(2, both_block_in_send, args=(nbytes,), transport=transport, timeout=20):
        answer = outcome.value
        if answer is True:
            continue
        assert answer.kind in ("CollectiveTimeout", "BrokenCommunicator", "PeerLost"), str(outcome)
        assert answer.seconds < 3.5
        assert "send" in answer.text


# E3: meta-pytorch/torchcomms#2964


def messages_between_collectives() -> Any:
    import hcomm

    me = hcomm.rank()
    sums = []
    pair = hcomm.new_group([0, 1]) if me < 2 else None
    for group in (None, pair):
        if me == 0:
            for i in range(5):
                hcomm.send(np.array([i]), dst=1, group=group).wait()
        elif me == 1:
            for _ in range(5):
                hcomm.recv(np.zeros(1, dtype=np.int64), src=0, group=group)
        hcomm.barrier()
        sums.append(float(hcomm.all_reduce(np.array([me + 1.0]))[0]))
    return sums


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_e3_messages_do_not_count_as_collectives(job: Any, transport: str) -> None:
    assert job(4, messages_between_collectives, transport=transport) == [[10.0, 10.0]] * 4


# Spare: pytorch/pytorch#106164, pytorch/gloo#344


def to_oneself() -> Any:
    import hcomm

    me = hcomm.rank()
    x, y = np.zeros(1000), np.zeros(300_000)
    works = [
        hcomm.recv(y, src=me, tag=2, async_op=True),
        hcomm.send(np.full(1000, me + 1.0), dst=me, tag=1),
        hcomm.send(np.full(300_000, me + 2.0), dst=me, tag=2),
    ]
    hcomm.recv(x, src=me, tag=1)
    for work in works:
        work.wait()
    return bool((x == me + 1).all() and (y == me + 2).all()), float(hcomm.all_reduce(np.ones(1))[0])


@pytest.mark.parametrize("world", [1, 2])
def test_a_message_to_oneself(job: Any, world: int) -> None:
    assert job(world, to_oneself) == [(True, world)] * world
