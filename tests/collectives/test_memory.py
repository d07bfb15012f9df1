"""Shared memory of users: made, registered, registered by the library; that it is used, and that it is let go."""

from __future__ import annotations

import gc
import io
import os
import re
import time
from typing import Any

import numpy as np
import pytest

ROUNDS = 6


def _mappings() -> int:
    """Areas of this process that are mapped from files in memory of hcomm."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:hcomm" in line for line in maps)


def _expected(count: int, size: int) -> Any:
    return (np.arange(count) % 1000) * size + size * (size - 1) // 2


def _sum_all_kinds(count: int) -> list[str]:
    """Names of the buffers whose sum was wrong."""
    import torch

    import hcomm

    rank, size = hcomm.rank(), hcomm.world_size()
    pattern = np.arange(count) % 1000 + rank
    made, whole = hcomm.empty((count,), torch.float32), torch.empty(count)
    array, slices = hcomm.empty(count, np.int64), hcomm.empty((3, count), torch.float64)
    registered, numbers = torch.empty(count + 40)[7 : count + 7], np.empty((count, 2), np.float32)
    hcomm.register(registered)
    hcomm.register(numbers)
    wrong = []
    for _ in range(ROUNDS):
        buffers = {
            "made": made,
            "automatic": whole,
            "array": array,
            "slice": slices[1],
            "registered": registered,
        }
        for name, buffer in buffers.items():
            buffer[:] = torch.from_numpy(pattern) if isinstance(buffer, torch.Tensor) else pattern
            hcomm.all_reduce(buffer)
            if not np.array_equal(np.asarray(buffer), _expected(count, size)):
                wrong.append(name)
        numbers[:, 0], numbers[:, 1] = pattern, 1
        hcomm.all_reduce(numbers, "max")
        if not (numbers[:, 0] == np.arange(count) % 1000 + size - 1).all() or not (numbers[:, 1] == 1).all():
            wrong.append("matrix")
    hcomm.unregister(registered)
    hcomm.unregister(numbers)
    if not (numbers[:, 1] == 1).all():
        wrong.append("after")
    return wrong


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("count", [20_000, 300_001])
def test_sums_on_shared_memory(job: Any, world: int, count: int) -> None:
    assert job(world, _sum_all_kinds, args=(count,)) == [[]] * world


def _tiny_shapes() -> list[Any]:
    import torch

    import hcomm

    scalar = hcomm.zeros((), torch.float32)
    scalar += 1
    hcomm.all_reduce(scalar)
    empty = hcomm.empty((0, 4), torch.int32)
    hcomm.all_reduce(empty)
    three = hcomm.zeros(3, "int32")
    three += hcomm.rank()
    hcomm.all_reduce(three)
    return [scalar.item(), list(empty.shape), three.tolist()]


@pytest.mark.parametrize("world", [2, 3])
def test_tiny_shapes(job: Any, world: int) -> None:
    total = world * (world - 1) // 2
    assert job(world, _tiny_shapes) == [[world, [0, 4], [total] * 3]] * world


def _other_operations(count: int) -> list[str]:
    import torch

    import hcomm

    rank, size = hcomm.rank(), hcomm.world_size()
    part, whole = hcomm.empty(count, torch.float32), hcomm.empty(count * size, torch.float32)
    every = torch.arange(count * size) % 997
    wrong = []
    for turn in range(3):
        part.copy_(torch.arange(count) % 50 + 100 * rank + turn)
        hcomm.all_gather(part, out=whole)
        if not all(
            (whole[r * count : (r + 1) * count] == torch.arange(count) % 50 + 100 * r + turn).all()
            for r in range(size)
        ):
            wrong.append("all_gather")
        whole.copy_(every + rank + turn)
        hcomm.reduce_scatter(whole, out=part)
        mine = every[rank * count : (rank + 1) * count]
        if not (part == mine * size + size * turn + size * (size - 1) // 2).all():
            wrong.append("reduce_scatter")
        part.fill_(rank + turn)
        hcomm.broadcast(part, src=size - 1)
        if not (part == size - 1 + turn).all():
            wrong.append("broadcast")
        whole.copy_(every + 1000 * rank)
        exchanged = hcomm.all_to_all(whole)
        expected = [every[rank * count : (rank + 1) * count] + 1000 * r for r in range(size)]
        if not (exchanged == torch.cat(expected)).all():
            wrong.append("all_to_all")
    return wrong


@pytest.mark.parametrize("world", [2, 3])
def test_other_operations_on_shared_memory(job: Any, world: int) -> None:
    assert job(world, _other_operations, args=(30_011,)) == [[]] * world


def _four_calls() -> list[bool]:
    """Whether the tensor is shared after each of four calls, whether it shows in the mappings, whether it is let go."""
    import torch

    import hcomm

    comm = hcomm.default_communicator()
    tensor = torch.ones(500_000)
    before = _mappings()
    shown = []
    for _ in range(4):
        hcomm.all_reduce(tensor)
        shown.append(comm._engine.is_shared(tensor.data_ptr(), tensor.nbytes))
    hcomm.barrier()  # the peer has shared its own as well
    automatic = _mappings() > before
    del tensor
    gc.collect()
    hcomm.all_reduce(torch.ones(500_000))  # a new large tensor: the old one is let go
    deadline = time.monotonic() + 10
    while _mappings() != before and time.monotonic() < deadline:
        time.sleep(0.01)  # the peer's word that it uses its own no more is on the way
    return [*shown, automatic, _mappings() == before]


def test_a_tensor_that_comes_back_is_shared_and_let_go(job: Any) -> None:
    assert job(2, _four_calls) == [[False, False, True, True, True, True]] * 2


def test_nothing_is_shared_behind_ones_back_when_it_is_off(job: Any) -> None:
    answers = job(2, _four_calls, env={"HCOMM_AUTO_REGISTER": "0"})
    assert answers == [[False, False, False, False, False, True]] * 2


def _ordinary_for_everybody_else() -> dict[str, Any]:
    import torch

    import hcomm

    found: dict[str, Any] = {}
    weight = torch.nn.Parameter(torch.ones(200_000))
    hcomm.register(weight)
    loss = (weight * 2).sum()
    loss.backward()
    found["autograd"] = bool((weight.grad == 2).all())
    file = io.BytesIO()
    torch.save(weight.detach(), file)
    file.seek(0)
    found["save"] = bool((torch.load(file) == 1).all())
    with torch.no_grad():
        weight.add_(hcomm.rank())
    hcomm.all_reduce(weight)
    found["sum"] = weight[0].item(), weight[-1].item()

    made = hcomm.empty(200_000, torch.float32)
    made.fill_(5)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            weight.fill_(7)
            made.fill_(7)
        os.write(write, b"y" if weight[3] == 7 and made[3] == 7 else b"n")
        os._exit(0)
    found["child writes"] = os.read(read, 1).decode()
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    found["parent keeps"] = weight[3].item(), made[3].item()
    hcomm.all_reduce(made)
    found["after fork"] = made[0].item()
    hcomm.unregister(weight)
    found["private again"] = weight[-1].item()
    return found


def test_a_registered_tensor_is_ordinary_for_everybody_else(job: Any) -> None:
    expected = {
        "autograd": True,
        "save": True,
        "sum": (3.0, 3.0),
        "child writes": "y",
        "parent keeps": (3.0, 5.0),
        "after fork": 10.0,
        "private again": 3.0,
    }
    assert job(2, _ordinary_for_everybody_else) == [expected] * 2


def _cycles(count: int) -> list[int]:
    """Growth of descriptors, mappings and resident pages (MB) over many registrations."""
    import psutil
    import torch

    import hcomm

    process = psutil.Process()
    tensor = torch.ones(300_000)

    def cycle() -> None:
        hcomm.register(tensor)
        hcomm.unregister(tensor)
        made = hcomm.empty(300_000, torch.float32)
        del made

    for _ in range(20):
        cycle()
    hcomm.barrier()
    before = process.num_fds(), len(process.memory_maps(grouped=False)), process.memory_info().rss
    for _ in range(count):
        cycle()
    hcomm.barrier()
    after = process.num_fds(), len(process.memory_maps(grouped=False)), process.memory_info().rss
    assert bool((tensor == 1).all())
    return [after[0] - before[0], after[1] - before[1], (after[2] - before[2]) >> 20]


def test_a_thousand_registrations_leave_nothing_behind(job: Any) -> None:
    for files, maps, megabytes in job(2, _cycles, args=(1000,)):
        assert files <= 2
        assert maps <= 4
        assert megabytes <= 4


def _resized() -> list[bool]:
    import torch

    import hcomm

    rank, size = hcomm.rank(), hcomm.world_size()
    right = []
    for way in ("register", "automatic", "fresh"):
        tensor = torch.empty(3_000_000)
        if way == "register":
            hcomm.register(tensor)
        for turn in range(12):
            if turn % 5 == 4:
                storage = tensor.untyped_storage()
                storage.resize_(0)  # as sharded training does between uses
                storage.resize_(12_000_000)
            if way == "fresh":
                tensor = torch.empty(3_000_000)
            tensor.copy_(torch.arange(3_000_000) % 1000 + rank + turn)
            hcomm.all_reduce(tensor)
            expected = (torch.arange(3_000_000) % 1000 + turn) * size + size * (size - 1) // 2
            right.append(torch.equal(tensor, expected.float()))
    return right


def test_a_storage_that_is_resized_behind_our_back_stays_right(job: Any) -> None:
    assert job(2, _resized) == [[True] * 36] * 2


def _refusals() -> list[str]:
    import mmap

    import torch

    import hcomm

    said = []

    def attempt(action: Any) -> None:
        try:
            action()
            said.append("nothing")
        except (hcomm.HcommError, ValueError) as error:
            said.append(str(error))

    attempt(lambda: hcomm.register(torch.ones(8)))
    attempt(lambda: hcomm.register(torch.ones(2, device="meta")))
    attempt(lambda: hcomm.register([1.0]))
    attempt(lambda: hcomm.register(np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)))
    attempt(lambda: hcomm.unregister(torch.ones(100_000)))
    attempt(lambda: hcomm.empty((-1,)))
    attempt(lambda: hcomm.empty(4, "float12"))
    attempt(lambda: hcomm.empty(4, torch.complex32))
    attempt(lambda: hcomm.empty((2.5,)))
    attempt(lambda: hcomm.empty((1 << 62,), np.float32))
    attempt(lambda: hcomm.register(torch.eye(3).to_sparse()))
    tensor = torch.ones(500_000)
    hcomm.register(tensor)
    if hcomm.rank() == 0:
        work = hcomm.all_reduce_async(tensor)  # cannot be complete: the other rank sleeps
        attempt(lambda: hcomm.unregister(tensor))
    else:
        time.sleep(0.5)
        work = hcomm.all_reduce_async(tensor)
        said.append("an operation on this memory is not complete")
    work.wait()
    hcomm.unregister(tensor)
    hcomm.register(tensor.numpy())  # an array that nobody holds: another one of the same memory gives it back
    hcomm.unregister(tensor.numpy())
    return said


def test_what_cannot_be_shared_is_refused(job: Any) -> None:
    expected = [
        "holds no whole page",
        "on device meta",
        "a list cannot be registered",
        "mapped from a file|not ordinary private memory",
        "is not registered",
        "no negative sizes",
        "neither one of torch nor of NumPy",
        "hcomm knows",
        "sequence of integers",
        "no memory holds",
        "layout torch.sparse_coo",
        "an operation on this memory is not complete",
    ]
    for said in job(2, _refusals):
        assert len(said) == len(expected)
        for pattern, text in zip(expected, said, strict=True):
            assert re.search(pattern, text), (pattern, text)
