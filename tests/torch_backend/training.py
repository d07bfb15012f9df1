"""What trains on a process group: compared with one process that sees all data, or with sums by hand."""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS, WIDTH = 4, 6, 8


def data(rank: int, step: int, rows: int = ROWS) -> torch.Tensor:
    """The batch of a rank; rank and step make it, so that any process can make any rank's."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, WIDTH, generator=generator)


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.spare = nn.Linear(WIDTH, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, spare: bool = False) -> torch.Tensor:
        hidden = torch.relu(self.first(x))
        return self.spare(hidden) if spare else self.second(hidden)


def reference(spare: Any = lambda rank, step: False) -> Net:
    """The parameters after STEPS of SGD in one process on the mean of all ranks' losses."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        losses = [net(data(r, step), spare(r, step)).square().mean() for r in range(dist.get_world_size())]
        torch.stack(losses).mean().backward()
        optimizer.step()
    return net


def trained(spare: Any = lambda rank, step: False, **how: Any) -> Net:
    net = Net()
    parallel = DistributedDataParallel(net, **how)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=not how.get("find_unused_parameters", False))
        parallel(data(dist.get_rank(), step), spare(dist.get_rank(), step)).square().mean().backward()
        optimizer.step()
    return net


def case_ddp_equals_one_process() -> None:
    close(dict(trained(find_unused_parameters=True).named_parameters()), dict(reference().named_parameters()))


def case_ddp_unused_parameters_differ_between_ranks() -> None:
    def spare(rank: int, step: int) -> bool:
        return (rank + step) % 2 == 0

    found = trained(spare, find_unused_parameters=True, bucket_cap_mb=1e-4)
    close(dict(found.named_parameters()), dict(reference(spare).named_parameters()))


def case_ddp_static_graph_and_bucket_views() -> None:
    found = trained(static_graph=True, gradient_as_bucket_view=True)
    close(dict(found.named_parameters()), dict(reference().named_parameters()))


def case_ddp_no_sync_accumulates() -> None:
    net = Net()
    parallel = DistributedDataParallel(net, find_unused_parameters=True)
    r, n = dist.get_rank(), dist.get_world_size()
    with parallel.no_sync():
        parallel(data(r, 0)).square().mean().backward()
    parallel(data(r, 1)).square().mean().backward()
    alone = Net()
    for k in range(n):
        for step in (0, 1):
            (alone(data(k, step)).square().mean() / n).backward()
    for found, expected in zip(net.parameters(), alone.parameters(), strict=True):
        if expected.grad is not None:
            close(found.grad, expected.grad)


class Mixed(nn.Module):
    """float32 and bfloat16 parameters, a bool mask, counters, BatchNorm."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(5 + rank)  # DDP hands out rank 0's
        self.wide, self.narrow = nn.Linear(WIDTH, 8), nn.Linear(8, 8, dtype=torch.bfloat16)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("mask", torch.tensor([rank == 0] * 4 + [True] * 4))
        self.register_buffer("steps", torch.tensor(100 * rank, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        hidden = self.norm(self.wide(x)) * self.mask
        return self.narrow(hidden.bfloat16()).float() + hidden


def case_ddp_mixed_types_and_buffers() -> None:
    r, n = dist.get_rank(), dist.get_world_size()
    net, twins = Mixed(r), [Mixed(0) for _ in range(n)]
    parallel = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        loss = parallel(data(r, step)).square().mean()
        loss.backward()
        # The same in one process: every twin has its rank's data, buffers are rank 0's before each forward.
        for twin in twins:
            twin.zero_grad()
            for buffer, other in zip(twin.buffers(), twins[0].buffers(), strict=True):
                buffer.copy_(other)
        own = [twin(data(k, step)).square().mean() for k, twin in enumerate(twins)]
        for value in own:
            value.backward()
        for place, parameter in enumerate(net.parameters()):
            grads = [list(twin.parameters())[place].grad for twin in twins]
            mean = torch.stack([grad / n for grad in grads]).sum(0)
            tolerance = 1e-6 if parameter.dtype is torch.float32 else 1e-2
            torch.testing.assert_close(parameter.grad, mean, rtol=tolerance, atol=tolerance)
        close(loss, own[r])
        optimizer.step()
        with torch.no_grad():
            for twin in twins:
                for target, source in zip(twin.parameters(), net.parameters(), strict=True):
                    target.copy_(source)
    assert net.mask.tolist() == [True] * 8
    assert net.steps.item() == 10
    assert net.steps.dtype is torch.int64


def case_ddp_hooks_chain_futures() -> None:
    seen: list[int] = []

    def hook(state: list[int], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        state.append(bucket.index())
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / dist.get_world_size())

    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    net, alone = Net(), Net()
    parallel = DistributedDataParallel(net, find_unused_parameters=True, bucket_cap_mb=1e-4)
    parallel.register_comm_hook(seen, hook)
    parallel(data(dist.get_rank(), 0)).square().mean().backward()
    n = dist.get_world_size()
    torch.stack([alone(data(k, 0)).square().mean() for k in range(n)]).mean().backward()
    close(net.first.weight.grad, alone.first.weight.grad)
    assert len(seen) >= 1
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    for ready in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        net = Net()
        parallel = DistributedDataParallel(net, find_unused_parameters=True)
        parallel.register_comm_hook(None, ready)
        parallel(data(dist.get_rank(), 0)).square().mean().backward()
        torch.testing.assert_close(net.first.weight.grad, alone.first.weight.grad, rtol=2e-2, atol=2e-3)


def case_ddp_power_sgd() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 4))
    parallel = DistributedDataParallel(net)
    state = power.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1.0
    )
    parallel.register_comm_hook(state, power.powerSGD_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = parallel(data(dist.get_rank(), 0)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    every = [torch.empty_like(net[0].weight) for _ in range(dist.get_world_size())]
    dist.all_gather(every, net[0].weight.detach())
    assert all(torch.equal(every[0], other) for other in every)


def case_ddp_uneven_batches_join() -> None:
    r = dist.get_rank()
    net = Net()
    parallel = DistributedDataParallel(net, find_unused_parameters=True)
    with parallel.join():
        for step in range(2 + r):
            parallel(data(r, step)).square().mean().backward()
    total = torch.tensor([1.0])
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()


def case_ddp_empty_batch_on_one_rank() -> None:
    r, n = dist.get_rank(), dist.get_world_size()
    net, alone = Net(), Net()
    parallel = DistributedDataParallel(net, find_unused_parameters=True)
    rows = 0 if r == 0 else ROWS
    parallel(data(r, 0, rows)).square().sum().backward()
    for k in range(1, n):
        (alone(data(k, 0)).square().sum() / n).backward()
    close(net.first.weight.grad, alone.first.weight.grad)


def mlp() -> nn.Sequential:
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(WIDTH, 3), nn.ReLU(), nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 5))


def case_fsdp2_equals_one_process() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    r, n = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (n,))
    net, alone = mlp(), mlp()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (net, alone)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        net(data(r, step)).square().mean().backward()
        torch.stack([alone(data(k, step)).square().mean() for k in range(n)]).mean().backward()
        for found, expected in zip(net.parameters(), alone.parameters(), strict=True):
            close(found.grad.full_tensor(), expected.grad)
        for optimizer in optimizers:
            optimizer.step()
    for found, expected in zip(net.parameters(), alone.parameters(), strict=True):
        close(found.full_tensor(), expected)


def case_fsdp2_factor_and_bfloat16() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    r, n = dist.get_rank(), dist.get_world_size()
    net, alone = mlp(), mlp()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(net, mesh=init_device_mesh("cpu", (n,)), mp_policy=policy)
    net.set_gradient_divide_factor(2.0 * n)
    net(data(r, 0)).float().square().mean().backward()
    torch.stack([alone(data(k, 0)).square().mean() for k in range(n)]).mean().div(2).backward()
    for found, expected in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found.grad.full_tensor(), expected.grad, rtol=5e-2, atol=5e-3)


def case_dtensor_redistributes() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.experimental import local_map  # noqa: F401  (part of the same import)

    n = dist.get_world_size()
    mesh = init_device_mesh("cpu", (n,))
    whole = torch.arange(60.0).view(5, 12)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    close(rows.full_tensor(), whole)
    close(rows.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    columns = distribute_tensor(whole.t().contiguous(), mesh, [Shard(1)])
    product = distribute_tensor(whole, mesh, [Shard(1)]) @ columns.redistribute(mesh, [Shard(0)])
    assert isinstance(product.placements[0], Partial)
    close(product.redistribute(mesh, [Replicate()]).to_local(), whole @ whole.t())
    close(product.redistribute(mesh, [Shard(0)]).full_tensor(), whole @ whole.t())


def case_device_mesh_of_two_dimensions() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    n, r = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (1, n), mesh_dim_names=("outer", "inner"))
    assert dist.get_backend(mesh.get_group("inner")) == "hcomm"
    tensor = torch.tensor([float(r)])
    dist.all_reduce(tensor, group=mesh.get_group("inner"))
    assert tensor.item() == n * (n - 1) / 2
    dist.all_reduce(tensor, group=mesh.get_group("outer"))
    assert tensor.item() == n * (n - 1) / 2


def case_functional_collectives() -> None:
    import torch.distributed._functional_collectives as functional

    n, r = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    mine = torch.full((2,), float(r))
    close(functional.all_reduce(mine, "sum", group) + 0, torch.full((2,), n * (n - 1) / 2))
    close(functional.all_gather_tensor(mine, 0, group) + 0, torch.arange(float(n)).repeat_interleave(2))
    whole = torch.arange(float(2 * n))
    close(functional.reduce_scatter_tensor(whole, "avg", 0, group) + 0, torch.arange(2.0) + 2 * r)
    close(functional.broadcast(mine, 0, group) + 0, torch.zeros(2))
    blocks = functional.all_to_all_single(whole + 100 * r, [2] * n, [2] * n, group) + 0
    close(blocks, torch.cat([torch.arange(2.0) + 2 * r + 100 * k for k in range(n)]))


def case_zero_redundancy_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    r, n = dist.get_rank(), dist.get_world_size()
    net, alone = mlp(), mlp()
    parallel = DistributedDataParallel(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sharded = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    plain = torch.optim.Adam(alone.parameters(), lr=0.01)
    for step in range(3):
        net.zero_grad()
        alone.zero_grad()
        parallel(data(r, step)).square().mean().backward()
        torch.stack([alone(data(k, step)).square().mean() for k in range(n)]).mean().backward()
        sharded.step()
        plain.step()
    close(dict(net.named_parameters()), dict(alone.named_parameters()))
    sharded.consolidate_state_dict(to=0)
    if r == 0:
        assert len(sharded.state_dict()["state"]) == len(list(net.parameters()))


def case_checkpoint_saves_and_loads() -> None:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    n, r = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (n,))
    whole = torch.arange(35.0).view(7, 5)
    state = {
        "sharded": distribute_tensor(whole, mesh, [Shard(0)]),
        "plain": torch.full((3,), 4.0),
        "step": 17,
    }
    folder = os.path.join(os.environ["JOB_DIR"], "checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save(copy.copy(state), checkpoint_id=folder)
        fresh = {
            "sharded": distribute_tensor(torch.zeros(7, 5), mesh, [Shard(1)]),
            "plain": torch.zeros(3),
            "step": 0,
        }
        checkpoint.load(fresh, checkpoint_id=folder)
    close(fresh["sharded"].full_tensor(), whole)
    close(fresh["plain"], torch.full((3,), 4.0))
    assert fresh["step"] == 17
    assert r < n


def case_hcomm_init_beside() -> None:
    import hcomm

    n, r = dist.get_world_size(), dist.get_rank()
    hcomm.init()
    assert hcomm.all_reduce(torch.tensor([r])).item() == n * (n - 1) // 2
    tensor = torch.tensor([float(r)])
    dist.all_reduce(tensor)
    hcomm.finalize()
    dist.all_reduce(tensor)
    assert tensor.item() == n * n * (n - 1) / 2
