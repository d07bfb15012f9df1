"""A pipeline of stages, one on each rank, with communication hidden behind computation.

    torchrun --standalone --nproc-per-node 3 examples/pipeline.py

Each rank holds one layer. A batch is cut into microbatches; their activations go down the pipeline, then their
gradients come back up (GPipe, Huang et al. 2019). The same schedule runs twice:

- *blocking*: receive, compute, send, and wait for each;
- *overlapped*: the next message is received, and the last one sent, while a microbatch is computed.

The arithmetic is real and checked: the gradients must be those of one process. Its duration is simulated: a stage
sleeps until its stage time is over, as a process does that waits for its accelerator, and a message is padded to
--megabytes. Unless told otherwise the stage time is twice the time of a message, so that blocking stages, which receive
and send in turn, can reach half of the ideal.

The ideal is the same pipeline if messages took no time: (M + S - 1) slots of forward and of backward work for M
microbatches and S stages. How long a slot really is, is measured: the stages run without messages, in the same rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from rich.console import Console
from rich.table import Table

import hcomm

FEATURES = 16
ROWS = 4
TOLERANCE = 1e-12


class Link(Protocol):
    """The way of microbatches through a stage, in one direction."""

    def receive(self) -> torch.Tensor:
        """The next message from the stage before; valid until the next call."""

    def deliver(self, values: torch.Tensor) -> None:
        """Send values to the stage behind."""

    def finish(self) -> None:
        """Return when everything has been sent."""


def buffer(elements: int) -> torch.Tensor:
    """Room for a message, its pages touched."""
    return torch.ones(elements, dtype=torch.float64)


class Blocking:
    """One thing after the other."""

    def __init__(self, before: int | None, behind: int | None, count: int, elements: int) -> None:
        self._before, self._behind = before, behind
        self._message = buffer(elements)

    def receive(self) -> torch.Tensor:
        if self._before is not None:
            hcomm.recv(self._message, src=self._before)
        return self._message

    def deliver(self, values: torch.Tensor) -> None:
        if self._behind is not None:
            self._message[: values.numel()] = values
            hcomm.send(self._message, dst=self._behind).wait()

    def finish(self) -> None:
        """Everything has been."""


class Silent:
    """No messages at all: what the stages take by themselves."""

    def __init__(self, before: int | None, behind: int | None, count: int, elements: int) -> None:
        self._message = buffer(elements)

    def receive(self) -> torch.Tensor:
        return self._message

    def deliver(self, values: torch.Tensor) -> None:
        """Nothing is sent."""

    def finish(self) -> None:
        """Nothing has been."""


class Overlapped:
    """Two buffers in each direction: one is computed with, the other one is on its way."""

    def __init__(self, before: int | None, behind: int | None, count: int, elements: int) -> None:
        self._before, self._behind = before, behind
        self._count = count
        self._incoming = [buffer(elements) for _ in range(2)]
        self._outgoing = [buffer(elements) for _ in range(2)]
        self._receives: list[hcomm.Work] = []
        self._sends: list[hcomm.Work] = []
        self._post()

    def _post(self) -> None:
        """Start receiving the next message, unless it was the last."""
        if self._before is not None and len(self._receives) < self._count:
            free = self._incoming[len(self._receives) % 2]
            self._receives.append(hcomm.recv(free, src=self._before, async_op=True))

    def receive(self) -> torch.Tensor:
        if self._before is None:
            return self._incoming[0]
        message = self._receives[-1].wait()
        self._post()
        return message

    def deliver(self, values: torch.Tensor) -> None:
        if self._behind is None:
            return
        if len(self._sends) >= 2:
            self._sends[-2].wait()  # its buffer is the next one
        free = self._outgoing[len(self._sends) % 2]
        free[: values.numel()] = values
        self._sends.append(hcomm.send(free, dst=self._behind))

    def finish(self) -> None:
        for work in self._sends[-2:]:
            work.wait()


LINKS = (Silent, Blocking, Overlapped)


def make_layer(stage: int) -> torch.nn.Module:
    """The layer of a stage: the same weights wherever it is made."""
    torch.manual_seed(stage)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, FEATURES), torch.nn.Tanh()).double()


def make_inputs(count: int) -> torch.Tensor:
    """All microbatches, (count, ROWS, FEATURES)."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, ROWS, FEATURES, generator=generator, dtype=torch.float64)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """What is minimised, per microbatch."""
    return output.square().sum()


@dataclass(frozen=True)
class Plan:
    """What is run."""

    microbatches: int
    stage_seconds: float  # of a forward; the backward takes as long again
    elements: int  # of a message

    def ideal_seconds(self, silent: float) -> float:
        """Of a pipeline whose messages take no time, from the time of stages that all work at once."""
        return silent * (self.microbatches + hcomm.world_size() - 1) / self.microbatches


class Stage:
    """This rank's layer, and how its work is timed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.layer = make_layer(hcomm.rank())
        self._inputs: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor] = []

    def _timed(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Do the work, and sleep until the stage time is over."""
        end = time.perf_counter() + self.plan.stage_seconds
        result = work()
        time.sleep(max(0.0, end - time.perf_counter()))
        return result

    def forward(self, message: torch.Tensor) -> torch.Tensor:
        """The activations of the next microbatch, flat."""
        values = message[: ROWS * FEATURES].view(ROWS, FEATURES).clone().requires_grad_()

        def work() -> torch.Tensor:
            self._inputs.append(values)
            self._outputs.append(self.layer(values))
            return self._outputs[-1].detach().flatten()

        return self._timed(work)

    def backward(self, message: torch.Tensor) -> torch.Tensor:
        """The gradients of the inputs of the last microbatch, flat."""
        gradient = message[: ROWS * FEATURES].view(ROWS, FEATURES).clone()

        def work() -> torch.Tensor:
            values, output = self._inputs.pop(), self._outputs.pop()
            if hcomm.rank() == hcomm.world_size() - 1:
                loss_of(output).backward()
            else:
                output.backward(gradient)
            assert values.grad is not None
            return values.grad.flatten()

        return self._timed(work)


def run(plan: Plan, link: type[Silent] | type[Blocking] | type[Overlapped]) -> tuple[float, torch.Tensor]:
    """Seconds of the slowest rank, and the gradient of this rank's layer, flat."""
    rank, last = hcomm.rank(), hcomm.world_size() - 1
    before, behind = (rank - 1 if rank else None), (rank + 1 if rank < last else None)
    stage, inputs = Stage(plan), make_inputs(plan.microbatches)
    down: Link = link(before, behind, plan.microbatches, plan.elements)
    up: Link = link(behind, before, plan.microbatches, plan.elements)
    hcomm.barrier()
    start = time.perf_counter()
    for number in range(plan.microbatches):
        message = inputs[number].flatten() if before is None else down.receive()
        down.deliver(stage.forward(message))
    down.finish()
    for _ in range(plan.microbatches):
        up.deliver(stage.backward(up.receive()))
    up.finish()
    seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    hcomm.all_reduce(seconds, op="max")
    return float(seconds), torch.cat([p.grad.flatten() for p in stage.layer.parameters()])


def alone(count: int) -> torch.Tensor:
    """The gradient of this rank's layer when one process does everything."""
    layers = [make_layer(stage) for stage in range(hcomm.world_size())]
    output = make_inputs(count)
    for layer in layers:
        output = layer(output)
    loss_of(output).backward()
    return torch.cat([p.grad.flatten() for p in layers[hcomm.rank()].parameters()])


def message_seconds(elements: int) -> float:
    """A message from rank 0 to rank 1, median of some; the same on every rank."""
    message, times = buffer(elements), []
    for _ in range(9):
        hcomm.barrier()
        start = time.perf_counter()
        if hcomm.rank() == 0:
            hcomm.send(message, dst=1).wait()
        elif hcomm.rank() == 1:
            hcomm.recv(message, src=0)
        else:
            continue
        times.append(time.perf_counter() - start)
    median = torch.tensor([statistics.median(times or [0.0])], dtype=torch.float64)
    return float(hcomm.all_reduce(median, op="max"))  # the receiver's: a sender may be done before


def report(plan: Plan, message: float, results: dict[str, float], difference: float) -> None:
    """Print it on rank 0."""
    ideal = plan.ideal_seconds(results.pop("silent"))
    where = f"{hcomm.world_size()} stages over {hcomm.get_backend_name()}"
    table = Table(title=f"{where}, {plan.microbatches} microbatches, forward and backward")
    for name in ("form", "seconds", "microbatches/s", "of the ideal"):
        table.add_column(name, justify="left" if name == "form" else "right")
    for name, seconds in {"ideal": ideal, **results}.items():
        table.add_row(name, f"{seconds:.3f}", f"{plan.microbatches / seconds:.1f}", f"{ideal / seconds:.1%}")
    console = Console(quiet=hcomm.rank() != 0, highlight=False)
    console.print(
        f"a message of {plan.elements * 8 / 1e6:.1f} MB takes {message * 1e3:.2f} ms; "
        f"a stage {plan.stage_seconds * 1e3:.2f} ms (simulated: it sleeps)"
    )
    console.print(table)
    console.print(f"gradients are those of one process: largest difference {difference:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--microbatches", type=int, default=48)
    parser.add_argument("--megabytes", type=float, default=16.0, help="of a message")
    parser.add_argument("--stage-ms", type=float, help="stage time (default: twice the time of a message)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each form, in turn; the median counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hcomm.init()
    if hcomm.world_size() < 2:
        sys.exit(
            "a pipeline needs at least 2 ranks: torchrun --standalone --nproc-per-node 3 examples/pipeline.py"
        )
    elements = max(ROWS * FEATURES, int(options.megabytes * 1e6) // 8)
    message = message_seconds(elements)
    stage = options.stage_ms / 1e3 if options.stage_ms else 2 * message
    plan = Plan(options.microbatches, stage, elements)
    expected, difference = alone(plan.microbatches), 0.0
    times: dict[str, list[float]] = {link.__name__.lower(): [] for link in LINKS}
    run(Plan(2, 0.0, elements), Overlapped)  # threads are started, pages touched
    for _ in range(options.rounds):
        for link in LINKS:
            seconds, gradient = run(plan, link)
            times[link.__name__.lower()].append(seconds)
            if link is not Silent:
                difference = max(difference, float((gradient - expected).abs().max()))
    worst = torch.tensor([difference], dtype=torch.float64)
    difference = float(hcomm.all_reduce(worst, op="max"))
    report(plan, message, {name: statistics.median(took) for name, took in times.items()}, difference)
    hcomm.finalize()
    if difference > TOLERANCE:
        sys.exit(f"FAILED: the gradients differ from those of one process by {difference:.1e}")


if __name__ == "__main__":
    main()
