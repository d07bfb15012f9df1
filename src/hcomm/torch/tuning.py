"""Which bucket size makes a training step fastest: tried out, on the job itself."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from hcomm.torch.bucket import GradientBucket
from hcomm.torch.groups import communicator_of

#: Steps before the first that is timed: buckets find their order, memory is touched.
_WARM_UP = 2


@dataclass(frozen=True)
class BucketSizes:
    """What `tune_bucket_size` found; `str()` is a table.

    Attributes:
        best: the size of the fastest step, in units of 2^20 bytes.
        seconds: size → median seconds of a step on the slowest rank.
    """

    best: float
    seconds: dict[float, float]

    def __str__(self) -> str:
        rows = [
            f"{'*' if size == self.best else ' '} {size:>8g} MB  {seconds * 1e3:>9.2f} ms a step"
            for size, seconds in self.seconds.items()
        ]
        return "\n".join(rows)


def tune_bucket_size(
    model: torch.nn.Module,
    backward: Callable[[], Any],
    sizes_mb: Sequence[float] = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0),
    *,
    steps: int = 5,
    progress: bool = True,
    **options: Any,
) -> BucketSizes:
    """Time a training step with buckets of several sizes. Collective; weights stay as they are, gradients are dropped.

    Args:
        model: the same on all ranks, in no other bucket.
        backward: runs forward and backward of one step on this rank.
        sizes_mb: sizes to try, in units of 2^20 bytes.
        steps: steps timed with each.
        progress: show a progress bar on rank 0, on standard error.
        **options: of `GradientBucket`: overlap, group, compression, comm_dtype.

    Returns:
        The same on all ranks.

    Raises:
        ValueError: no sizes, or no steps.
        CommunicatorError: a rank failed.
    """
    if not sizes_mb or steps < 1:
        raise ValueError(f"needs at least one size and one step, got {list(sizes_mb)} and {steps}")
    group = communicator_of(options.get("group"))
    found: dict[float, float] = {}
    shown = progress and group.rank == 0
    with Progress(console=Console(file=sys.stderr), disable=not shown, transient=True) as bar:
        task = bar.add_task("bucket sizes", total=len(sizes_mb))
        for size in sizes_mb:
            with GradientBucket(model.named_parameters(), size, **options) as bucket:
                times = [_timed(bucket, backward) for _ in range(_WARM_UP + steps)][_WARM_UP:]
            model.zero_grad(set_to_none=True)
            median = torch.tensor(statistics.median(times), dtype=torch.float64)
            found[float(size)] = float(group.all_reduce(median, op="max"))
            bar.advance(task)
    return BucketSizes(min(found, key=lambda size: found[size]), found)


def _timed(bucket: GradientBucket, backward: Callable[[], Any]) -> float:
    bucket.group.barrier()
    start = time.perf_counter()
    bucket.zero_grad()
    backward()
    bucket.reduce()
    return time.perf_counter() - start
