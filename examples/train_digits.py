"""Trains a small CNN on scikit-learn's digits images, data-parallel, with hcomm averaging the gradients.

    make demo RANKS=2            # or: torchrun --standalone --nproc-per-node 2 examples/train_digits.py

Every rank draws its share of each global batch from one shuffle that all ranks have in common (ShardedSampler), so N
processes see exactly the batches that one process would see. The program checks that claim at its end: in float64 the
first 50 steps must leave the same weights as one process. It exits with 1 when that or the accuracy fails. It also
averages the gradients of some steps over gloo, for comparison.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import BatchSampler

import hcomm
from hcomm.torch import ShardedSampler, scale_lr, warmup_factor

WEIGHT_TOLERANCE = 1e-9
CHECKED_STEPS = 50
MIN_STEPS = 240
COMPARED_STEPS = 50


@dataclass(frozen=True)
class Data:
    """Images as (n, 1, 8, 8) in 0..1 and their labels (n,)."""

    images: torch.Tensor
    labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor

    @staticmethod
    def load(dtype: torch.dtype) -> Data:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=dtype).unsqueeze(1) / 16
        labels = torch.tensor(digits.target, dtype=torch.long)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        test, train = order[:360], order[360:]
        return Data(images[train], labels[train], images[test], labels[test])


def build_model(seed: int, dtype: torch.dtype) -> nn.Module:
    """The same weights for the same seed, on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 16, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    ).to(dtype)


@dataclass
class Times:
    """Seconds spent in each step, and in its communication (waiting for slower ranks included)."""

    steps: list[float] = field(default_factory=list)
    communication: list[float] = field(default_factory=list)

    def step_seconds(self) -> float:
        """Median seconds of a step."""
        return sorted(self.steps)[len(self.steps) // 2]

    def communication_share(self) -> float:
        """Share of all time that went into communication."""
        return sum(self.communication) / sum(self.steps)


class Replica:
    """A model whose gradients live in one flat tensor, so that averaging them is a single all_reduce."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.model = build_model(seed, dtype)
        parameters = list(self.model.parameters())
        self.gradients = torch.zeros(sum(p.numel() for p in parameters), dtype=dtype)
        offset = 0
        for p in parameters:
            p.grad = self.gradients[offset : offset + p.numel()].view_as(p)
            offset += p.numel()
        self.optimizer = torch.optim.SGD(parameters, lr=0.0, momentum=0.9, weight_decay=1e-4)

    def weights(self) -> torch.Tensor:
        """All parameters, flattened into one tensor."""
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def step(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        rate: float,
        average: Callable[[torch.Tensor], object] | None,
        times: Times,
    ) -> None:
        """Forward, backward, average the gradients over the ranks (if `average` is given), update."""
        start = time.perf_counter()
        self.gradients.zero_()
        nn.functional.cross_entropy(self.model(images), labels).backward()
        before = time.perf_counter()
        if average is not None:
            average(self.gradients)
        after = time.perf_counter()
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        times.steps.append(time.perf_counter() - start)
        times.communication.append(after - before)


@dataclass(frozen=True)
class Plan:
    """What is trained: the same for N processes and for one."""

    batch: int  # samples per step, all ranks together
    steps: int
    warmup: int
    base_rate: float
    ranks: int  # the number of ranks that the learning rate is scaled for
    seed: int

    def batches(self, samples: int, *, alone: bool) -> Iterator[list[int]]:
        """Indices of this rank's share of each global batch, or of all of it when `alone`, epoch after epoch."""
        here = {"rank": 0, "world_size": 1} if alone else {}
        sampler = ShardedSampler(samples, seed=self.seed, mode="drop", **here)
        while True:
            yield from BatchSampler(sampler, self.batch // sampler.world_size, drop_last=True)

    def rate(self, step: int) -> float:
        """The learning rate of a step: rises from one rank's to that of all ranks, then falls to zero."""
        peak = scale_lr(self.base_rate, world_size=self.ranks)
        return peak * warmup_factor(
            step, warmup=self.warmup, total=self.steps, start=1 / self.ranks, decay="cosine"
        )


def train(
    replica: Replica,
    data: Data,
    plan: Plan,
    *,
    alone: bool,
    steps: int | None = None,
    seconds: float = math.inf,
    advance: Callable[[], None] = lambda: None,
) -> Times:
    """Trains on this rank's share of each global batch, or on all of it when `alone`.

    Ends after the plan's steps, or earlier: after `steps`, or (only when alone) after `seconds`.
    """
    average = None if alone else lambda gradients: hcomm.all_reduce(gradients, op="avg")
    times = Times()
    replica.model.train()
    batches = plan.batches(len(data.labels), alone=alone)
    for step, mine in zip(range(min(plan.steps, steps or plan.steps)), batches, strict=False):
        replica.step(data.images[mine], data.labels[mine], plan.rate(step), average, times)
        advance()
        if alone and sum(times.steps) > seconds:
            break
    return times


def accuracy(model: nn.Module, data: Data) -> float:
    """Share of the test images that the model names rightly."""
    model.eval()
    with torch.no_grad():
        guesses = model(data.test_images).argmax(dim=1)
    return (guesses == data.test_labels).double().mean().item()


def seconds_alone(plan: Plan, data: Data, threads: int) -> float:
    """Median seconds of one process on the same global batches with this many threads."""
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    times = train(Replica(plan.seed, torch.float32), data, plan, alone=True, steps=40, seconds=2.0)
    torch.set_num_threads(usual)
    return times.step_seconds()


def weight_difference(plan: Plan) -> float:
    """Largest difference in any weight, over all ranks, to one process after the first steps, in float64."""
    data = Data.load(torch.float64)
    steps = min(CHECKED_STEPS, plan.steps)
    together = Replica(plan.seed, torch.float64)
    train(together, data, plan, alone=False, steps=steps)
    expected = torch.zeros_like(together.weights())
    if hcomm.rank() == 0:
        single = Replica(plan.seed, torch.float64)
        train(single, data, plan, alone=True, steps=steps)
        expected.copy_(single.weights())
    hcomm.broadcast(expected, src=0)
    difference = (together.weights() - expected).abs().max().reshape(1)
    return float(hcomm.all_reduce(difference, op="max"))


def beside_gloo(plan: Plan, data: Data) -> dict[str, float]:
    """Median seconds, on the slowest rank, in which hcomm and gloo average the gradients of a step; they take turns.

    Empty where it is not measured: on one rank, and on several hosts, where gloo would have to be told its interface.
    """
    if hcomm.world_size() == 1 or hcomm.local_size() < hcomm.world_size():
        return {}
    first = hcomm.rank() == 0
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if first else None
    port = int(hcomm.broadcast(torch.tensor([store.port if store else 0]), src=0))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        store=store or dist.TCPStore("127.0.0.1", port),
        rank=hcomm.rank(),
        world_size=hcomm.world_size(),
    )

    def over_gloo(gradients: torch.Tensor) -> None:
        dist.all_reduce(gradients)
        gradients.div_(hcomm.world_size())

    ways = {"hcomm": lambda gradients: hcomm.all_reduce(gradients, op="avg"), "gloo": over_gloo}
    spent: dict[str, list[float]] = {name: [] for name in ways}

    def timed(name: str) -> Callable[[torch.Tensor], None]:
        def average(gradients: torch.Tensor) -> None:
            hcomm.barrier()  # so that nobody's time contains another's backward
            start = time.perf_counter()
            ways[name](gradients)
            spent[name].append(time.perf_counter() - start)

        return average

    replica, averages = Replica(plan.seed, torch.float32), [timed(name) for name in ways]
    for step, mine in zip(
        range(2 * COMPARED_STEPS), plan.batches(len(data.labels), alone=False), strict=False
    ):
        replica.step(data.images[mine], data.labels[mine], plan.rate(0), averages[step % 2], Times())
    dist.destroy_process_group()
    slowest = {name: hcomm.all_reduce(torch.tensor(times), op="max") for name, times in spent.items()}
    return {name: float(times.median()) for name, times in slowest.items()}


def cores_of_this_process() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--epochs", type=int, help=f"passes over the images (20, and at least {MIN_STEPS} steps)"
    )
    parser.add_argument("--steps", type=int, help="stop after this many steps (default: all epochs)")
    parser.add_argument("--batch", type=int, default=32, help="samples per step and rank")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate for one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-accuracy", type=float, default=0.97, help="exit with 1 below this")
    return parser.parse_args()


def make_plan(options: argparse.Namespace, samples: int) -> Plan:
    """The training plan for this world."""
    batch = options.batch * hcomm.world_size()
    per_epoch = samples // batch
    if per_epoch == 0:
        sys.exit(
            f"a global batch of {batch} does not fit {samples} images: use fewer ranks or a smaller --batch"
        )
    # large worlds have large batches: few steps an epoch, so they need more epochs
    epochs = options.epochs or max(20, math.ceil(MIN_STEPS / per_epoch))
    steps = per_epoch * epochs
    if options.steps is not None:
        steps = min(steps, options.steps)
    return Plan(batch, steps, min(3 * per_epoch, steps // 3), options.lr, hcomm.world_size(), options.seed)


def run(options: argparse.Namespace, console: Console) -> bool:
    """Trains, measures, checks and prints; True when accuracy and weights are as they must be."""
    size = hcomm.world_size()
    threads = max(1, cores_of_this_process() // hcomm.local_size())
    torch.set_num_threads(threads)
    data = Data.load(torch.float32)
    plan = make_plan(options, len(data.labels))
    console.print(
        f"training on {len(data.labels)} images: {size} ranks over {hcomm.get_backend_name()}, "
        f"{plan.steps} steps of {plan.batch} samples, {threads} thread(s) per rank"
    )

    replica = Replica(plan.seed, torch.float32)
    # all ranks begin with rank 0's weights, whatever their random generators did
    for parameter in replica.model.parameters():
        hcomm.broadcast(parameter.data, src=0)
    columns = TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=hcomm.rank() != 0) as progress:
        task = progress.add_task("training", total=plan.steps)
        times = train(replica, data, plan, alone=False, advance=lambda: progress.advance(task))

    # rank 0 measures one process while the others sleep in the barrier
    alone = {}
    if hcomm.rank() == 0:
        alone = {n: seconds_alone(plan, data, n) for n in sorted({threads, cores_of_this_process()})}
    hcomm.barrier()
    difference = weight_difference(plan)
    compared = beside_gloo(plan, data)
    good = report(console, options, plan, accuracy(replica.model, data), times, alone, difference)
    if compared:
        ours, theirs = compared["hcomm"], compared["gloo"]
        console.print(
            f"beside gloo          gradients of a step ({replica.gradients.nbytes / 1e6:.2f} MB) averaged in "
            f"{ours * 1e3:.2f} ms, over gloo in {theirs * 1e3:.2f} ms: {theirs / ours:.1f} times as long"
        )
    return good


def report(
    console: Console,
    options: argparse.Namespace,
    plan: Plan,
    test_accuracy: float,
    times: Times,
    alone: dict[int, float],
    difference: float,
) -> bool:
    """Prints the results on rank 0; True when they are good, on every rank."""
    step = times.step_seconds()
    console.print(f"test accuracy        {test_accuracy:.4f} (at least {options.min_accuracy})")
    console.print(f"backend              {hcomm.get_backend_name()}, {hcomm.world_size()} ranks")
    console.print(
        f"step time            {step * 1e3:.2f} ms (median), {times.communication_share():.1%} of it "
        "communication (waiting for slower ranks included)"
    )
    if alone:
        # the fairest opponent: one process with as many threads as make it fastest
        threads, seconds = min(alone.items(), key=lambda item: item[1])
        console.print(
            f"speed-up             {seconds / step:.2f} over one process on the same global batches "
            f"({seconds * 1e3:.2f} ms a step with {threads} thread(s), the best of {sorted(alone)})"
        )
    console.print(
        f"same weights as one  {difference:.1e} largest difference after {min(CHECKED_STEPS, plan.steps)} steps "
        f"in float64 (at most {WEIGHT_TOLERANCE:.0e})"
    )
    return test_accuracy >= options.min_accuracy and difference <= WEIGHT_TOLERANCE


def main() -> None:
    options = parse_arguments()
    hcomm.init()
    console = Console(quiet=hcomm.rank() != 0, highlight=False, soft_wrap=True)
    good = run(options, console)
    hcomm.finalize()
    if not good:
        console.print("FAILED: accuracy or weights are not what they must be")
        sys.exit(1)


if __name__ == "__main__":
    main()
