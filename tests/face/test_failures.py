"""Statuses of the core become exceptions that name ranks, calls and lines; works, forks and closing."""

from __future__ import annotations

import gc
import os
import weakref
from types import ModuleType
from typing import Any

import pytest
import torch

import hcomm
from hcomm import (
    BrokenCommunicator,
    CollectiveMismatch,
    CollectiveTimeout,
    ForkedProcess,
    MessageMismatch,
    PeerLost,
)


def _failing(
    fake: ModuleType, status: int, failure: Any, told: list[Any], rank: int = 0, size: int = 4
) -> Any:
    comm, native = fake.communicator(rank, size)
    native.status, native.first_failure, native.told = status, failure, told
    return comm, native


def test_a_mismatch_names_both_calls(fake: ModuleType) -> None:
    told = [fake.Report(1, what="broadcast(float32, 100 elements, root 0)", where="train.py:12")]
    comm, native = _failing(fake, fake.MISMATCH, fake.Failure(fake.MISMATCH, [0, 1], 5), told, size=2)
    with pytest.raises(CollectiveMismatch) as error:
        comm.all_reduce(torch.zeros(100))
    assert str(error.value).startswith(
        "operation #5 differs between ranks: rank 0: all_reduce(float32, 100 elements, sum) at "
    )
    assert "test_failures.py:" in str(error.value)
    assert "; rank 1: broadcast(float32, 100 elements, root 0) at train.py:12." in str(error.value)
    assert error.value.ranks == (0, 1)
    assert native.asked[0][0] == "all_reduce(float32, 100 elements, sum)"
    with pytest.raises(
        BrokenCommunicator, match="is broken and must be rebuilt; the first failure was: operation #5"
    ):
        comm.barrier()


def test_a_mismatch_of_shapes_shows_both_shapes_and_joins_equal_ranks(fake: ModuleType) -> None:
    other = "all_reduce(float32, 512000 elements of shape (200, 2560), sum)"
    told = [
        fake.Report(1, what=other, where="a.py:1"),
        fake.Report(2, what=other, where="a.py:1"),
        fake.Report(3, heard=False),
    ]
    comm, _ = _failing(fake, fake.MISMATCH, fake.Failure(fake.MISMATCH, [0, 1], 1, "said the core"), told)
    with pytest.raises(CollectiveMismatch) as error:
        comm.all_reduce(torch.zeros(100, 2560))
    text = str(error.value)
    assert "rank 0: all_reduce(float32, 256000 elements of shape (100, 2560), sum)" in text
    assert "ranks 1, 2: all_reduce(float32, 512000 elements of shape (200, 2560), sum) at a.py:1" in text
    assert "rank 3: did not say what it called (said the core)" in text


def test_a_timeout_names_who_did_not_come_and_what_they_do(fake: ModuleType) -> None:
    told = [
        fake.Report(0, posted=5, done=4, what="barrier()"),
        fake.Report(1, posted=5, done=4, what="barrier()"),
        fake.Report(2, heard=False, posted=4, done=4),
        fake.Report(3, posted=4, done=4, what="in no call; it has completed #4 barrier()"),
    ]
    comm, _ = _failing(fake, fake.TIMEOUT, fake.Failure(fake.TIMEOUT, [], 5), told)
    with pytest.raises(CollectiveTimeout) as error:
        comm.barrier(timeout=5)
    text = str(error.value)
    assert "barrier() at " in text
    assert "not complete in time (the timeout here is 5 s); did not arrive: ranks 2, 3." in text
    assert "rank 2 (pid 102) is alive but does not answer (stopped?); it had completed 4 operations" in text
    assert "rank 3 (pid 103) is in no call; it has completed #4 barrier()" in text
    assert error.value.ranks == (2, 3)
    assert isinstance(error.value, TimeoutError)


def test_a_timeout_in_another_operation_and_after_leaving(fake: ModuleType) -> None:
    told = [
        fake.Report(1, left=True, posted=3, done=3),
        fake.Report(2, posted=2, done=1, what="all_gather(int8, 4 elements)", where="y.py:3"),
        fake.Report(3, alive=False, heard=False, done=1),
    ]
    comm, _ = _failing(fake, fake.TIMEOUT, fake.Failure(fake.TIMEOUT, [1, 2, 3], 5), told)
    with pytest.raises(CollectiveTimeout) as error:
        comm.barrier()
    assert "rank 1 (pid 101) left after 3 operations" in str(error.value)
    assert "rank 2 (pid 102) was in all_gather(int8, 4 elements) at y.py:3" in str(error.value)
    assert "rank 3 (pid 103) is gone; it had completed 1 operation" in str(error.value)


def test_the_timeout_of_another_operation_is_not_taken_for_its_own(fake: ModuleType) -> None:
    failure = fake.Failure(fake.TIMEOUT, [1], 4, "recv from rank 1, tag 0, did not finish in time")
    comm, _ = _failing(fake, fake.TIMEOUT, failure, [fake.Report(0, posted=4)], size=2)
    with pytest.raises(
        CollectiveTimeout, match=r"barrier.*given up, because another operation .*: recv from rank 1"
    ):
        comm.barrier()
    comm, native = _failing(fake, fake.TIMEOUT, failure, [fake.Report(0, posted=4), fake.Report(1)], size=2)
    work = comm.recv_async(torch.zeros(1), 1)
    native.ops[-1].finish(fake.TIMEOUT)
    with pytest.raises(
        CollectiveTimeout, match=r"not complete in time .*; waiting for rank 1\. rank 1 \(pid 101\)"
    ):
        work.wait()


def test_what_the_core_says_about_a_rank_is_passed_on(fake: ModuleType) -> None:
    told = [
        fake.Report(1, posted=3, done=2, what="in #3 broadcast(int8, 4 elements, root 0)", where="z.py:1")
    ]
    comm, _ = _failing(fake, fake.TIMEOUT, fake.Failure(fake.TIMEOUT, [1], 5), told, size=2)
    with pytest.raises(CollectiveTimeout, match=r"rank 1 \(pid 101\) is in #3 broadcast\(.*\) at z.py:1"):
        comm.barrier()


def test_a_lost_peer_is_named(fake: ModuleType) -> None:
    failure = fake.Failure(fake.PEER_LOST, [2], 3, "rank 2 died: its connection closed without a goodbye")
    comm, native = _failing(fake, fake.ABORTED, failure, [])
    with pytest.raises(PeerLost, match=r"rank 2 \(pid 102\) died: its connection closed without") as error:
        comm.all_reduce(torch.zeros(1))
    assert error.value.ranks == (2,)
    assert isinstance(error.value, ConnectionError)
    assert native.asked == []


def test_the_fast_way_fails_like_the_general_one(fake: ModuleType) -> None:
    comm, native = fake.communicator(size=2)
    tensor = torch.zeros(8)
    comm.all_reduce(tensor)
    native.status, native.first_failure = fake.PEER_LOST, fake.Failure(fake.PEER_LOST, [1])
    with pytest.raises(
        PeerLost, match=r"all_reduce\(float32, 8 elements, sum\) at .*test_failures.py:\d+: rank 1"
    ):
        comm.all_reduce(tensor)
    native.status = fake.OK
    with pytest.raises(BrokenCommunicator):
        comm.all_reduce(tensor)


def test_groups_name_both_numberings(fake: ModuleType) -> None:
    world, _ = fake.communicator(0, 4)
    group = world.new_group([3, 0])
    group._native.status = fake.PEER_LOST
    group._native.first_failure = fake.Failure(fake.PEER_LOST, [0], 1, "rank 0 died: gone")
    with pytest.raises(
        PeerLost,
        match=r"^rank 0 in group group \[3, 0\]: barrier.*rank 0 \(global 3\) \(pid 100\) died: gone",
    ):
        group.barrier()


def test_a_message_that_does_not_fit_breaks_nothing(fake: ModuleType) -> None:
    comm, native = fake.communicator(size=2)
    work = comm.recv_async(torch.zeros(4), 1, tag=3)
    native.ops[-1].finish(fake.MESSAGE_MISMATCH, text="rank 1 sent 2 int8")
    with pytest.raises(
        MessageMismatch,
        match=r"recv\(float32, 4 elements, from rank 1, tag 3\).*rank 1 sent 2 int8",
    ):
        work.wait()
    comm.barrier()


def test_a_wait_may_give_up_and_be_repeated(fake: ModuleType) -> None:
    comm, native = fake.communicator(size=2)
    native.told = [fake.Report(1, posted=0, done=0)]
    tensor = torch.zeros(4)
    work = comm.all_reduce_async(tensor)
    assert not work.is_completed()
    assert "running" in repr(work)
    with pytest.raises(CollectiveTimeout, match=r"still running after waiting 0.1 s.*did not arrive: rank 1"):
        work.wait(0.1)
    native.ops[-1].finish()
    assert work.is_completed()
    assert work.wait() is tensor
    assert work.exception() is None
    assert "complete" in repr(work)


def test_buffers_live_until_completion_even_if_the_work_is_dropped(fake: ModuleType) -> None:
    comm, native = fake.communicator(size=2)
    tensor = torch.zeros(4)
    alive = weakref.ref(tensor)
    comm.all_reduce_async(tensor)
    del tensor
    gc.collect()
    assert alive() is not None
    native.ops[-1].finish()
    comm.barrier_async()
    gc.collect()
    assert alive() is None


def test_strided_results_arrive_when_the_work_is_polled(fake: ModuleType) -> None:
    comm, native = fake.communicator(size=2)
    whole = torch.zeros(2, 2)
    work = comm.all_reduce_async(whole[:, 0])
    work._kept[0].packed.fill_(4)
    native.ops[-1].finish()
    assert work.is_completed()
    assert whole.tolist() == [[4, 0], [4, 0]]


def test_running_works_do_not_pile_up(fake: ModuleType) -> None:
    comm, native = fake.communicator(size=2)
    for _ in range(500):
        comm.send(torch.zeros(1), 1)
        native.ops[-1].finish()
    assert len(comm._running) < 40


def test_plans_are_bounded(fake: ModuleType) -> None:
    comm, native = fake.communicator(size=2)
    hot = torch.zeros(7)
    for n in range(2000):
        comm.all_reduce(torch.zeros(100 + n))
        comm.all_reduce(hot)
    assert len(comm._plans) + len(comm._plans._old) <= 256
    assert sum(plan["count"] == 7 for plan in native.plans) == 1


def test_close_and_use_after_it(fake: ModuleType) -> None:
    comm, native = fake.communicator(size=2)
    work = comm.all_reduce_async(torch.zeros(3))
    comm.close()
    comm.close()
    assert native.closed == 1
    native.ops[-1].finish(fake.ABORTED)
    with pytest.raises(hcomm.NotInitialized, match="this communicator was closed"):
        work.wait()
    with pytest.raises(hcomm.NotInitialized, match="this communicator was closed"):
        comm.barrier()


def test_use_before_init_and_after_finalize() -> None:
    for call in (hcomm.rank, hcomm.world_size, hcomm.local_rank, hcomm.get_backend_name, hcomm.barrier):
        with pytest.raises(hcomm.NotInitialized, match=r"call hcomm.init\(\) first"):
            call()
    with pytest.raises(hcomm.NotInitialized, match="not initialised"):
        hcomm.all_reduce(torch.zeros(1))
    assert not hcomm.is_initialized()
    hcomm.finalize()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_and_leaves_the_parent_alone(fake: ModuleType) -> None:
    comm, native = fake.communicator(size=2)
    tensor = torch.zeros(4)
    comm.all_reduce(tensor)
    work = comm.all_reduce_async(tensor)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told = []
        for call in (lambda: comm.all_reduce(tensor), work.wait, comm.barrier):
            try:
                call()
                told.append("nothing")
            except ForkedProcess as error:
                told.append("forked child" if "forked child" in str(error) else "?")
        comm.close()
        told.append(str(native.closed))
        os.write(writing, ",".join(told).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"forked child,forked child,forked child,0"
    os.close(reading)
    os.close(writing)
    comm.barrier()
