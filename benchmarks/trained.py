"""What the ranks of the training benchmark do: time steps of one model, trained in several ways in turn."""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hcomm.torch
from hcomm.bench.meeting import Meeting

#: Steps before the first that is timed: DDP builds its buckets anew, memory that comes back is registered.
_WARM_UP = 5


class Cnn(nn.Sequential):
    """Four convolutions and two linear layers for 10 kinds of images (3, 32, 32): 1.3 million parameters."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * 64, 288), nn.ReLU(), nn.Linear(288, 10),
        )  # fmt: skip


def _mlp() -> nn.Module:
    wide, narrow = 4096, 1024
    return nn.Sequential(
        nn.Linear(narrow, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, narrow)
    )


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


#: Name → (model, shape of a rank's batch).
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (_mlp, (16, 1024)),
    "cnn": (Cnn, (16, 3, 32, 32)),
    "transformer": (_transformer, (2, 64, 512)),
}


@dataclass(frozen=True)
class Way:
    """One way to train: what is run in each step, and the model that it trains."""

    step: Callable[[], None]
    model: nn.Module


def _silent(state, bucket):  # DDP refuses annotations that are strings
    """A hook that exchanges nothing: what is left of DDP is its own bookkeeping."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _plain(model: nn.Module, trained: nn.Module, data: torch.Tensor) -> Way:
    """Forward and backward of `model`, and SGD on the parameters of `trained`, which is inside of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return Way(step, trained)


def _bucketed(model: nn.Module, data: torch.Tensor, group: dist.ProcessGroup) -> Way:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bucket = hcomm.GradientBucket(model.named_parameters(), group=group)

    def step() -> None:
        bucket.zero_grad()
        model(data).square().mean().backward()
        bucket.reduce()
        optimizer.step()

    return Way(step, model)


def _sharded(model: nn.Module, data: torch.Tensor, group: dist.ProcessGroup, *, shared: bool) -> Way:
    mesh = DeviceMesh.from_group(group, "cpu")
    on_hcomm = isinstance(group, hcomm.torch.ProcessGroup)
    inner = model.layers if hasattr(model, "layers") else model
    for layer in inner:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(not on_hcomm)  # gloo knows no average
            module.set_allocate_memory_from_process_group_for_comm(shared)
    return _plain(model, model, data)


def _ways(name: str, data: torch.Tensor, gloo: dist.ProcessGroup, own: dist.ProcessGroup) -> dict[str, Way]:
    torch.manual_seed(0)
    original = MODELS[name][0]()
    models = {
        kind: copy.deepcopy(original)
        for kind in ("alone", "silent", "ddp gloo", "ddp hcomm", "bucket", "fsdp gloo", "fsdp hcomm", "fsdp shared")
    }  # fmt: skip
    silent = DistributedDataParallel(models["silent"], process_group=gloo)
    silent.register_comm_hook(None, _silent)

    def parallel(kind: str, group: dist.ProcessGroup) -> Way:
        return _plain(DistributedDataParallel(models[kind], process_group=group), models[kind], data)

    return {
        "alone": _plain(models["alone"], models["alone"], data),
        "silent": _plain(silent, models["silent"], data),
        "ddp gloo": parallel("ddp gloo", gloo),
        "ddp hcomm": parallel("ddp hcomm", own),
        "bucket": _bucketed(models["bucket"], data, own),
        "fsdp gloo": _sharded(models["fsdp gloo"], data, gloo, shared=False),
        "fsdp hcomm": _sharded(models["fsdp hcomm"], data, own, shared=False),
        "fsdp shared": _sharded(models["fsdp shared"], data, own, shared=True),
    }


def _weights(model: nn.Module) -> torch.Tensor:
    """All parameters in one vector; of sharded ones, every rank's."""
    parts = (p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters())
    return torch.cat([part.detach().flatten() for part in parts])


def _wrong(ways: dict[str, Way]) -> list[str]:
    """The ways whose weights are not gloo's: on this rank, or rank 0's."""
    expected = _weights(ways["ddp gloo"].model)
    dist.broadcast(expected, 0)
    return [
        kind
        for kind, way in ways.items()
        if kind not in ("alone", "silent")
        and not torch.allclose(_weights(way.model), expected, rtol=1e-3, atol=1e-5)
    ]


def run(model: str, count: int, folder: Path, meeting: Meeting) -> dict[str, Any]:
    """Seconds of a step of each way: of the slowest rank, the median of `count` rounds.

    The ways alternate in every round, each round beginning with another, so that a slow spell of the machine hits all.
    """
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host's name need not resolve
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'gloo'}", rank=meeting.rank, world_size=meeting.size
    )
    own = dist.new_group(backend="hcomm")
    torch.manual_seed(1 + meeting.rank)
    data = torch.randn(MODELS[model][1])
    ways = _ways(model, data, dist.group.WORLD, own)
    times: dict[str, list[float]] = {kind: [] for kind in ways}
    kinds = list(ways)
    for turn in range(_WARM_UP + count):
        first = turn % len(kinds)
        for kind in kinds[first:] + kinds[:first]:
            meeting.barrier()
            start = time.perf_counter()
            ways[kind].step()
            times[kind].append(meeting.maximum(time.perf_counter() - start))
    found = {
        "seconds": {kind: statistics.median(spent[_WARM_UP:]) for kind, spent in times.items()},
        "gradient_bytes": sum(p.nbytes for p in ways["alone"].model.parameters()),
        "wrong": _wrong(ways),
    }
    dist.destroy_process_group()
    return found
