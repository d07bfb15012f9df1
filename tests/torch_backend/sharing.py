"""What of torch's memory the ranks share, so that its collectives copy nothing; and what else groups are told."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hcomm.torch
from hcomm import memory

WIDTH = 512  # a layer's weights are 1 MB: large enough to be worth sharing


def net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def steps(model: nn.Module, count: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(count):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(4, WIDTH, generator=generator)).square().mean().backward()
        optimizer.step()


def alone(*counts: int) -> nn.Sequential:
    """The same calls of `steps` in one process, on all ranks' data."""
    model, size = net(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in (step for count in counts for step in range(count)):
        rows = [
            torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + r))
            for r in range(size)
        ]
        optimizer.zero_grad()
        model(torch.cat(rows)).square().mean().backward()
        optimizer.step()
    return model


def shared(tensor: torch.Tensor) -> bool:
    return hcomm.torch.communicator()._engine.is_shared(tensor.data_ptr(), tensor.nbytes)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def case_ddps_buckets_are_shared() -> None:
    seen: list[bool] = []

    def watch(state, bucket):  # DDP refuses annotations that are strings
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        seen.append(shared(bucket.buffer()))
        return work.get_future().then(lambda future: future.value()[0] / dist.get_world_size())

    parallel = DistributedDataParallel(net(), bucket_cap_mb=1)
    parallel.register_comm_hook(None, watch)
    steps(parallel, 6)
    for mine, its in zip(parallel.parameters(), alone(6).parameters(), strict=True):
        close(mine.detach(), its.detach())
    buckets = len(seen) // 6
    assert all(seen[-buckets:]), seen  # every bucket of the last step


def case_fsdp_takes_shared_buffers_and_uses_them_again() -> None:
    group: Any = dist.distributed_c10d._get_default_group()
    model = copy.deepcopy(net())
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=DeviceMesh.from_group(group, "cpu"))
    root: Any = fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    for module in (model[0], model[2], root):
        module.set_allocate_memory_from_process_group_for_comm(True)
    steps(model, 2)
    pieces = list(group._pool._pieces)
    assert pieces
    assert all(shared(piece.data) for piece in pieces)
    steps(model, 3)
    assert list(group._pool._pieces) == pieces
    for mine, its in zip(model.parameters(), alone(2, 3).parameters(), strict=True):
        close(mine.full_tensor(), its.detach())  # type: ignore[attr-defined]


def case_borrowed_memory_is_lent_once() -> None:
    group: Any = dist.distributed_c10d._get_default_group()
    device = torch.device("cpu")
    assert group.supports_tensor_alloc(device)
    first = group.allocate_tensor(1000, dtype=torch.float32, device=device)
    second = group.allocate_tensor(1000, dtype=torch.float32, device=device)
    assert (first.shape, first.dtype) == ((1000,), torch.float32)
    assert first.data_ptr() != second.data_ptr()
    place, view = first.data_ptr(), first[10:]
    del first
    third = group.allocate_tensor(500, dtype=torch.float64, device=device)
    assert third.data_ptr() != place, "a view still holds it"
    del view
    assert group.allocate_tensor(500, dtype=torch.float64, device=device).data_ptr() == place
    assert not group.supports_tensor_alloc(torch.device("meta"))
    with pytest.raises(hcomm.UnsupportedBuffer, match="meta"):
        group.allocate_tensor(1, dtype=torch.float32, device=torch.device("meta"))


def case_groups_have_a_priority() -> None:
    low = dist.new_group(pg_options=hcomm.torch.Options(priority=-1))
    high = dist.new_group(pg_options=hcomm.torch.Options(priority=1))
    tensors = [torch.ones(1 << 20) for _ in range(2)]
    works = [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, (low, high), strict=True)]
    for work in works:
        work.wait()
    assert all(bool((t == dist.get_world_size()).all()) for t in tensors)
    dist.destroy_process_group(low)
    dist.destroy_process_group(high)


def case_split_group_says_that_it_is_not_for_this_backend() -> None:
    with pytest.raises(RuntimeError, match="split"):
        dist.split_group(split_ranks=[list(range(dist.get_world_size()))])
    dist.barrier()


def case_registered_by_hand() -> None:
    native = hcomm.torch.communicator()
    tensor = native.register(torch.ones(1 << 18))
    assert shared(tensor)
    dist.all_reduce(tensor)
    assert bool((tensor == dist.get_world_size()).all())
    # it is left registered: destroy_process_group() must give it back
    assert any(known.engine is native._engine for known in memory._registered.values())
