"""Messages: sizes, tags, any source, all pairs at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.inside import attempt

TRANSPORTS = ("shm", "tcp")
SIZES = [0, 1, 8, 1000, 4096, 65_536, 1 << 20, (1 << 22) + 3, 64 << 20]


def pattern(src: int, dst: int, nbytes: int) -> np.ndarray[Any, Any]:
    """Bytes that tell who sent what to whom, and where in the message they lie."""
    return ((np.arange(nbytes, dtype=np.uint32) * 31 + 7 * src + 13 * dst + nbytes) % 251).astype(np.uint8)


def sizes_there_and_back() -> list[str]:
    import hcomm

    me, wrong = hcomm.rank(), []
    for nbytes in SIZES:
        work = hcomm.send(pattern(me, 1 - me, nbytes), dst=1 - me, tag=nbytes % 97)
        x = np.full(nbytes, 255, dtype=np.uint8)
        hcomm.recv(x, src=1 - me, tag=nbytes % 97)
        work.wait()
        if not np.array_equal(x, pattern(1 - me, me, nbytes)):
            wrong.append(f"{nbytes} bytes")
    return wrong


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sizes_from_nothing_to_64_megabytes(job: Any, transport: str) -> None:
    assert job(2, sizes_there_and_back, transport=transport) == [[], []]


def all_pairs() -> list[str]:
    import hcomm

    me, size, wrong = hcomm.rank(), hcomm.world_size(), []
    plan = [(peer, tag, 1 + 9999 * (tag % 3)) for peer in range(size) if peer != me for tag in range(6)]
    inbox = {(p, t): np.zeros(n, dtype=np.uint8) for p, t, n in plan}
    recvs = [hcomm.recv(inbox[p, t], src=p, tag=t, async_op=True) for p, t, _ in reversed(plan)]
    sends = [hcomm.send(pattern(me, p, n) + np.uint8(t), dst=p, tag=t) for p, t, n in plan]
    for work in [*sends, *recvs]:
        work.wait()
    for peer, tag, nbytes in plan:
        if not np.array_equal(inbox[peer, tag], pattern(peer, me, nbytes) + np.uint8(tag)):
            wrong.append(f"from {peer} tag {tag}")
    return wrong


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_pairs_all_tags(job: Any, transport: str) -> None:
    assert job(4, all_pairs, transport=transport) == [[]] * 4


def from_anyone() -> Any:
    import hcomm

    me, size = hcomm.rank(), hcomm.world_size()
    if me:
        for i in range(10):
            hcomm.send(np.array([me, i]), dst=0, tag=5).wait()
        return None
    got = []
    for _ in range(10 * (size - 1)):
        x = np.zeros(2, dtype=np.int64)
        work = hcomm.recv(x, src=None, tag=5, async_op=True)
        work.wait()
        got.append((work.source, *x.tolist()))
    return got


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_from_anyone_keeps_each_senders_order(job: Any, transport: str) -> None:
    got = job(4, from_anyone, transport=transport)[0]
    for sender in (1, 2, 3):
        assert [i for _, s, i in got if s == sender] == list(range(10))
    assert all(source == sender for source, sender, _ in got)


def strided_and_shaped() -> Any:
    import torch

    import hcomm

    if hcomm.rank() == 0:
        hcomm.send(torch.arange(12).view(3, 4).t(), dst=1).wait()
        hcomm.send(np.arange(10)[::-3], dst=1).wait()
        return None
    matrix = torch.full((4, 6), -1)
    hcomm.recv(matrix[:, ::2], src=0)
    line = np.full(8, -1)
    hcomm.recv(line[::2], src=0)
    return matrix.tolist(), line.tolist()


def test_strided_messages(job: Any) -> None:
    matrix, line = job(2, strided_and_shaped)[1]
    assert matrix == [[k, -1, k + 4, -1, k + 8, -1] for k in range(4)]
    assert line == [9, -1, 6, -1, 3, -1, 0, -1]


def small_messages_may_be_reused_at_once() -> Any:
    import hcomm

    if hcomm.rank() == 0:
        x = np.zeros(2, dtype=np.int64)
        works = []
        for i in range(200):
            x[:] = i
            works.append(hcomm.send(x.copy(), dst=1))
        for work in works:
            work.wait()
        return None
    hcomm_in = np.zeros(2, dtype=np.int64)
    got = []
    for _ in range(200):
        hcomm.recv(hcomm_in, src=0)
        got.append(int(hcomm_in[1]))
    return got


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_unexpected_messages_are_kept_in_order(job: Any, transport: str) -> None:
    assert job(2, small_messages_may_be_reused_at_once, transport=transport)[1] == list(range(200))


def does_not_fit(count: int, dtype: str) -> Any:
    import hcomm

    if hcomm.rank() == 0:
        work = hcomm.send(np.arange(4, dtype=np.float32), dst=1, tag=3)
        return attempt(work.wait)
    return attempt(hcomm.recv, np.zeros(count, dtype=dtype), src=0, tag=3)


@pytest.mark.parametrize(("count", "dtype"), [(3, "float32"), (5, "float32"), (4, "int32")])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_message_that_does_not_fit_is_refused(job: Any, count: int, dtype: str, transport: str) -> None:
    failure = job(2, does_not_fit, args=(count, dtype), transport=transport)[1]
    assert failure is not None
    assert failure.kind == "MessageMismatch"
    assert "4" in failure.text
    assert "float32" in failure.text


def bad_arguments() -> list[Any]:
    import hcomm

    x = np.zeros(1)
    return [
        attempt(hcomm.send, x, dst=2),
        attempt(hcomm.send, x, dst=-1),
        attempt(hcomm.recv, x, src=7),
        attempt(hcomm.send, "text", dst=0),
        attempt(hcomm.all_reduce, [1.0, 2.0]),
        attempt(hcomm.broadcast, x, src=2),
    ]


def test_bad_arguments_are_refused_before_anything_is_sent(job: Any) -> None:
    for failures in job(2, bad_arguments):
        assert all(f is not None for f in failures), failures
        assert all("ValueError" in f.kinds for f in failures[:3]), failures
        assert all("TypeError" in f.kinds for f in failures[3:5]), failures
        assert "ValueError" in failures[5].kinds
