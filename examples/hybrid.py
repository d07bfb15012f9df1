"""3-D parallelism: data, pipeline and tensor parallel at once, and the same numbers as one process.

    torchrun --standalone --nproc-per-node 8 examples/hybrid.py            # dp=2, pp=2, tp=2
    torchrun --standalone --nproc-per-node 6 examples/hybrid.py --pp 3 --tp 2

A model of residual blocks is cut three ways by `hcomm.Mesh(dp=…, pp=…, tp=…)`:

- *tensor parallel*: in each block the first layer is cut by columns and the second by rows (Megatron-LM, Shoeybi et al.
  2019), so one all_reduce over `mesh["tp"]` in the forward pass, and one in the backward pass, complete a block;
- *pipeline parallel*: each stage holds some blocks; microbatches are passed on over `mesh["pp"]`, gradients come back;
- *data parallel*: each replica has its share of the batch; gradients are averaged over `mesh["dp"]`.

Rank 0 trains the whole model by itself as well, and every rank compares its shard of the weights with that, in float64.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn

import hcomm

FEATURES, HIDDEN = 8, 16
TOLERANCE = 1e-12
RATE = 0.05


class SumBackward(torch.autograd.Function):
    """The same values in the forward pass; gradients are added over the group."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: torch.Tensor, group: hcomm.Communicator):
        ctx.group = group
        return values.view_as(values)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor):
        return ctx.group.all_reduce(gradient.clone()), None


class SumForward(torch.autograd.Function):
    """Values are added over the group in the forward pass; gradients stay the same."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: torch.Tensor, group: hcomm.Communicator):
        return group.all_reduce(values.clone())

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor):
        return gradient, None


class Block(nn.Module):
    """x + W₂ tanh(W₁ x), of which this rank holds rows of W₁ and the columns of W₂ that belong to them."""

    def __init__(self, number: int, group: hcomm.Communicator | None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(number)
        first = torch.randn(HIDDEN, FEATURES, generator=generator, dtype=torch.float64) / FEATURES**0.5
        second = torch.randn(FEATURES, HIDDEN, generator=generator, dtype=torch.float64) / HIDDEN**0.5
        self.group = group
        if group is not None:
            first, second = first.chunk(group.size, 0)[group.rank], second.chunk(group.size, 1)[group.rank]
        self.first, self.second = nn.Parameter(first.clone()), nn.Parameter(second.clone())

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(rows, FEATURES) to the same shape."""
        entered = values if self.group is None else SumBackward.apply(values, self.group)
        partial = torch.tanh(entered @ self.first.T) @ self.second.T
        return values + (partial if self.group is None else SumForward.apply(partial, self.group))


def batch_of(step: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of a step, (rows, FEATURES) each: the same on every rank."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, inputs.roll(1, 1).sin()


def loss_of(output: torch.Tensor, target: torch.Tensor, rows: int) -> torch.Tensor:
    """This part's contribution to the mean over a batch of `rows`."""
    return (output - target).square().sum() / (rows * FEATURES)


class Stage:
    """The blocks of this rank's stage, and how microbatches go through it."""

    def __init__(self, mesh: hcomm.Mesh, blocks: int, microbatches: int) -> None:
        self.mesh = mesh
        self.pipe = mesh["pp"]
        per_stage = blocks // mesh.axes["pp"]
        self.numbers = range(self.pipe.rank * per_stage, (self.pipe.rank + 1) * per_stage)
        self.model = nn.Sequential(*(Block(number, mesh["tp"]) for number in self.numbers))
        self.before, self.behind = mesh.neighbour("pp", -1), mesh.neighbour("pp", 1)
        self.microbatches = microbatches

    def gradients(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Forward and backward of this replica's share, in microbatches (GPipe)."""
        rows = len(inputs)
        entered: list[torch.Tensor] = []
        left: list[torch.Tensor] = []
        sends: list[hcomm.Work] = []
        for part in inputs.chunk(self.microbatches):
            values = (
                part.clone() if self.before is None else self.pipe.recv(torch.empty_like(part), self.before)
            )
            entered.append(values.requires_grad_())
            left.append(self.model(values))
            if self.behind is not None:
                sends.append(self.pipe.send(left[-1].detach(), self.behind))
        for number, target in enumerate(targets.chunk(self.microbatches)):
            if self.behind is None:
                loss_of(left[number], target, rows).backward()
            else:
                left[number].backward(self.pipe.recv(torch.empty_like(target), self.behind))
            if self.before is not None:
                sends.append(self.pipe.send(entered[number].grad, self.before))
        for work in sends:
            work.wait()

    def train(self, steps: int, rows: int) -> None:
        """Plain gradient descent on batches of `rows`, of which each replica takes its share."""
        replicas = self.mesh["dp"]
        for step in range(steps):
            inputs, targets = batch_of(step, rows)
            share = slice(replicas.rank, rows, replicas.size)
            self.gradients(inputs[share], targets[share])
            with torch.no_grad():
                for parameter in self.model.parameters():
                    replicas.all_reduce(parameter.grad, op="avg")
                    parameter -= RATE * parameter.grad
                    parameter.grad = None


def train_alone(blocks: int, steps: int, rows: int) -> tuple[nn.Sequential, float]:
    """The same in one process: the model, and its last loss."""
    model = nn.Sequential(*(Block(number, None) for number in range(blocks)))
    loss = torch.zeros(())
    for step in range(steps):
        inputs, targets = batch_of(step, rows)
        loss = loss_of(model(inputs), targets, rows)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad
                parameter.grad = None
    return model, float(loss.detach())


def difference(stage: Stage, blocks: int, steps: int, rows: int) -> tuple[float, float]:
    """The largest difference of any weight on any rank to training in one process, and that one's last loss."""
    alone, loss = (
        train_alone(blocks, steps, rows)
        if hcomm.rank() == 0
        else (nn.Sequential(*(Block(number, None) for number in range(blocks))), 0.0)
    )
    largest, tensor = torch.zeros(1, dtype=torch.float64), stage.mesh["tp"]
    for number, block in enumerate(alone):
        for parameter in block.parameters():
            hcomm.broadcast(parameter.detach(), src=0)
        if number in stage.numbers:
            mine = stage.model[number - stage.numbers.start]
            first = block.first.chunk(tensor.size, 0)[tensor.rank]
            second = block.second.chunk(tensor.size, 1)[tensor.rank]
            for found, expected in ((mine.first, first), (mine.second, second)):
                largest = torch.maximum(largest, (found - expected).abs().max().detach().reshape(1))
    return float(hcomm.all_reduce(largest, op="max")), loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pp", type=int, default=2, help="stages of the pipeline")
    parser.add_argument("--tp", type=int, default=2, help="ranks that share a block")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--microbatches", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hcomm.init()
    mesh = hcomm.Mesh(dp=-1, pp=options.pp, tp=options.tp)
    blocks, rows = 2 * options.pp, 4 * options.microbatches * mesh.axes["dp"]
    stage = Stage(mesh, blocks, options.microbatches)
    stage.train(options.steps, rows)
    largest, loss = difference(stage, blocks, options.steps, rows)
    if hcomm.rank() == 0:
        shape = ", ".join(f"{name}={size}" for name, size in mesh.axes.items())
        print(
            f"{hcomm.world_size()} ranks over {hcomm.get_backend_name()}: {shape}; {blocks} blocks, loss {loss:.4f}"
        )
        print(f"same weights as one process after {options.steps} steps: largest difference {largest:.1e}")
    mesh.close()
    hcomm.finalize()
    if largest > TOLERANCE:
        sys.exit(f"FAILED: weights differ from those of one process by {largest:.1e}")


if __name__ == "__main__":
    main()
