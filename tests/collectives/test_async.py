"""Many operations in flight, mixed kinds, dropped Work objects, several communicators and threads."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest

TRANSPORTS = ("shm", "tcp")


def many_in_flight(count: int) -> list[bool]:
    import hcomm

    rank, size = hcomm.rank(), hcomm.world_size()
    vectors = [np.full(1 + 37 * i, rank + i, dtype=np.int64) for i in range(count)]
    works = [hcomm.all_reduce_async(v) for v in vectors]
    for work in reversed(works):  # in any order of waiting
        work.wait()
    total = size * (size - 1) // 2
    return [bool((v == total + size * i).all()) and len(v) == 1 + 37 * i for i, v in enumerate(vectors)]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world", [2, 3])
def test_many_operations_in_flight(job: Any, world: int, transport: str) -> None:
    for answers in job(world, many_in_flight, args=(200,), transport=transport):
        assert all(answers)


def large_in_flight() -> list[float]:
    import hcomm

    vectors = [np.full(2_000_000, hcomm.rank() + 1.0 + i, dtype=np.float32) for i in range(6)]
    works = [hcomm.all_reduce_async(v) for v in vectors]
    for work in works:
        work.wait()
    return [float(v.min()) for v in vectors] + [float(v.max()) for v in vectors]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_large_operations_in_flight(job: Any, transport: str) -> None:
    """1 + 2 + 2i."""
    for answers in job(2, large_in_flight, transport=transport):
        assert answers == [3.0 + 2 * i for i in range(6)] * 2


def every_kind_at_once() -> dict[str, Any]:
    import hcomm

    rank, size = hcomm.rank(), hcomm.world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    found: dict[str, list[Any]] = {}
    for turn in range(20):
        base = 100 * turn + rank
        a = np.array([base], dtype=np.int64)
        b = np.array([base, -base], dtype=np.int64)
        c = np.array([base], dtype=np.int64)
        incoming = np.zeros(1000, dtype=np.int64)
        outgoing = np.full(1000, base, dtype=np.int64)
        recv = hcomm.recv(incoming, src=left, tag=turn, async_op=True)
        works = [
            hcomm.all_reduce_async(a, op="max"),
            hcomm.broadcast_async(b, src=turn % size),
            hcomm.all_gather_async(c),
            hcomm.send(outgoing, dst=right, tag=turn),
            hcomm.barrier_async(),
        ]
        blocking = hcomm.all_reduce(np.array([base], dtype=np.int64), op="min")
        for work in works:
            work.wait()
        recv.wait()
        found.setdefault("max", []).append(int(a[0]))
        found.setdefault("root", []).append(b.tolist())
        found.setdefault("gathered", []).append(works[2].result().tolist())
        found.setdefault("min", []).append(int(blocking[0]))
        found.setdefault("received", []).append(sorted(set(incoming.tolist())))
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_collectives_and_messages_interleaved(job: Any, transport: str) -> None:
    size = 3
    for rank, found in enumerate(job(size, every_kind_at_once, transport=transport)):
        turns = range(20)
        assert found["max"] == [100 * t + size - 1 for t in turns]
        assert found["min"] == [100 * t for t in turns]
        assert found["root"] == [[100 * t + t % size, -100 * t - t % size] for t in turns]
        assert found["gathered"] == [[100 * t + r for r in range(size)] for t in turns]
        assert found["received"] == [[100 * t + (rank - 1) % size] for t in turns]


def drop_work() -> float:
    import hcomm

    for i in range(50):
        hcomm.all_reduce_async(np.full(10_000, float(i)))  # neither the Work nor the array is kept
        if hcomm.world_size() > 1 and hcomm.rank() < 2:
            other = 1 - hcomm.rank()
            hcomm.send(np.full(5_000, float(i)), dst=other, tag=i)
            hcomm.recv(np.zeros(5_000), src=other, tag=i, async_op=True)
        gc.collect()
    return float(hcomm.all_reduce(np.array([hcomm.rank() + 1.0]))[0])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_dropped_work_keeps_its_memory(job: Any, transport: str) -> None:
    """The operation completes although nobody holds its Work or its buffer."""
    assert job(3, drop_work, transport=transport) == [6.0] * 3


def poll() -> tuple[bool, bool, float]:
    import hcomm

    late = hcomm.rank() == 1
    if late:
        time.sleep(0.3)
    work = hcomm.all_reduce_async(np.ones(100_000, dtype=np.float32))
    at_once = work.is_completed()
    end = time.monotonic() + 10
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.001)
    return at_once, work.is_completed(), float(work.result()[99_999])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_polling_makes_progress(job: Any, transport: str) -> None:
    answers = job(2, poll, transport=transport)
    assert answers[0] == (False, True, 2.0)
    assert answers[1][1:] == (True, 2.0)


def wait_twice() -> float:
    import hcomm

    if hcomm.rank() == 1:
        time.sleep(0.2)
    work = hcomm.all_reduce_async(np.ones(3))
    work.wait()
    work.wait()
    return float(work.result()[0])


def test_work_can_be_waited_for_twice(job: Any) -> None:
    assert job(2, wait_twice) == [2.0, 2.0]


def two_threads(rounds: int) -> list[int]:
    """Two communicators at once, each driven by its own thread; and the world from the main thread."""
    import hcomm

    rank, size = hcomm.rank(), hcomm.world_size()
    groups = [hcomm.new_group(list(range(size))), hcomm.new_group(list(reversed(range(size))))]
    wrong = [0, 0, 0]

    def drive(index: int) -> None:
        for i in range(rounds):
            count = 1 if i % 3 else 70_000
            x = np.full(count, rank + i * (index + 1), dtype=np.int64)
            group = groups[index] if index < 2 else None
            hcomm.all_reduce(x, group=group)
            wrong[index] += int((x != size * (size - 1) // 2 + size * i * (index + 1)).any())

    threads = [threading.Thread(target=drive, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    drive(2)
    for thread in threads:
        thread.join()
    return wrong


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_communicators_in_several_threads(job: Any, transport: str) -> None:
    assert job(2, two_threads, args=(100,), transport=transport) == [[0, 0, 0]] * 2


def errors_stay_with_their_work() -> Any:
    import hcomm

    group = hcomm.new_group([0, 1])
    x = np.ones(3 if hcomm.rank() == 0 else 4)
    work = hcomm.all_reduce_async(x, group=group)
    kinds = []
    try:
        work.wait()
    except hcomm.errors.CollectiveMismatch as error:
        kinds.append(type(error).__name__)
    kinds.append(type(work.exception()).__name__)
    return kinds, work.is_completed(), float(hcomm.all_reduce(np.ones(1))[0])


def test_a_failed_group_leaves_the_world_alone(job: Any) -> None:
    for answer in job(2, errors_stay_with_their_work):
        assert answer == (["CollectiveMismatch", "CollectiveMismatch"], True, 2.0)
