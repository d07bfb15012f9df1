"""What the ranks of the compression benchmark do: train two small models, and time steps of a large one."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import hcomm

#: Digits kept for the test, of 1797.
_TEST = 597


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images (n, 8, 8) in 0..1 and labels, test images and labels: the same split for every seed."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32) / 16
    labels = torch.tensor(data.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:_TEST], order[_TEST:]
    return images[train], labels[train], images[test], labels[test]


class Cnn(nn.Sequential):
    """The network of examples/train_digits.py: 152 000 parameters."""

    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip


class Transformer(nn.Module):
    """Two encoder layers over the eight rows of an image: 52 000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 48)
        self.place = nn.Parameter(torch.randn(8, 48) * 0.1)
        layer = nn.TransformerEncoderLayer(48, 4, 144, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.name = nn.Linear(8 * 48, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores (n, 10) of images (n, 8, 8)."""
        return self.name(self.layers(self.embed(images) + self.place).flatten(1))


MODELS: dict[str, Any] = {"digits CNN": Cnn, "transformer": Transformer}


def _optimizer(model: nn.Module, name: str) -> tuple[torch.optim.Optimizer, float]:
    if name == "digits CNN":
        return torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-4), 0.04
    return torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=1e-2), 2e-3


def train(name: str, scheme: str | None, seed: int, epochs: int, batch: int = 32) -> float:
    """Accuracy on the test images, in percent, after training on all ranks."""
    images, labels, test_images, test_labels = digits()
    torch.manual_seed(seed)
    model = MODELS[name]()
    optimizer, rate = _optimizer(model, name)
    rank, size = hcomm.rank(), hcomm.world_size()
    steps = len(labels) // (batch * size) * epochs
    shuffle, step = torch.Generator().manual_seed(seed), 0
    with hcomm.GradientBucket(model.parameters(), 0.25, compression=scheme) as bucket:
        for _ in range(epochs):
            order = torch.randperm(len(labels), generator=shuffle)
            for mine in order[: len(order) - len(order) % (batch * size)].split(batch * size):
                mine = mine[rank::size]
                bucket.zero_grad()
                nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
                bucket.reduce()
                warmth = min(1.0, (step + 1) / 30)
                optimizer.param_groups[0]["lr"] = rate * warmth * 0.5 * (1 + math.cos(math.pi * step / steps))
                optimizer.step()
                step += 1
    with torch.no_grad():
        right = model.eval()(test_images).argmax(1) == test_labels
    return 100.0 * right.double().mean().item()


def accuracies(seeds: int, epochs: int, schemes: list[str | None]) -> dict[str, dict[str, list[float]]]:
    """Model → scheme → accuracy of each seed."""
    torch.set_num_threads(1)
    return {
        name: {
            str(scheme): [train(name, scheme, seed, epochs) for seed in range(seeds)] for scheme in schemes
        }
        for name in MODELS
    }


def steps(megabytes: float, count: int, schemes: list[str | None]) -> dict[str, dict[str, float]]:
    """Scheme → seconds of a step and of its communication, bytes sent between hosts, for a model of this size.

    The communication of a step is what it takes longer than the same step without any.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = int(math.sqrt(megabytes * 2**20 / 4 / 4))
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    x = torch.randn(16, width)
    group = hcomm.default_communicator()

    def seconds(reduce: Any) -> float:
        times = []
        for _ in range(count):
            hcomm.barrier()
            start = time.perf_counter()
            model.zero_grad(set_to_none=False)
            model(x).square().mean().backward()
            reduce()
            times.append(time.perf_counter() - start)
        longest = torch.tensor(statistics.median(times), dtype=torch.float64)
        return float(hcomm.all_reduce(longest, op="max"))

    model(x).square().mean().backward()
    alone = seconds(lambda: None)
    found = {}
    for scheme in schemes:
        with hcomm.GradientBucket(model.parameters(), max(1.0, megabytes / 4), compression=scheme) as bucket:
            model(x).square().mean().backward()
            bucket.reduce()
            before = group.statistics().network
            step = seconds(bucket.reduce)
            sent = torch.tensor((group.statistics().network - before) / count, dtype=torch.float64)
            text = "; ".join(sorted({str(c.scheme or "none") for c in bucket.choices}))
            found[str(scheme) + (f" ({text})" if text else "")] = {
                "step": step, "communication": step - alone, "sent": float(hcomm.all_reduce(sent)),
            }  # fmt: skip
    return found


def overlap(megabytes: float, batch: int, count: int, size_mb: float, sizes: list[float]) -> dict[str, Any]:
    """Seconds of a step alone, with its communication after backward, and with it meanwhile; and a scan of sizes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = 12
    width = int(math.sqrt(megabytes * 2**20 / 4 / layers))
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    x = torch.randn(batch, width)

    def backward() -> None:
        model(x).square().mean().backward()

    def step(bucket: hcomm.GradientBucket, kind: str) -> float:
        hcomm.barrier()
        start = time.perf_counter()
        bucket.zero_grad()
        if kind == "meanwhile":
            backward()
        else:
            with bucket.no_sync():
                backward()
        if kind != "alone":
            bucket.reduce()
        longest = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        return float(hcomm.all_reduce(longest, op="max"))

    kinds = ("alone", "after", "meanwhile")
    found: dict[str, Any] = {}
    with hcomm.GradientBucket(model.parameters(), size_mb) as bucket:
        step(bucket, "meanwhile")
        rounds = [[step(bucket, kind) for kind in kinds] for _ in range(count)]  # slow spells hit all kinds
    for kind, times in zip(kinds, zip(*rounds, strict=True), strict=True):
        found[kind] = statistics.median(times)
    model.zero_grad(set_to_none=True)
    if sizes:
        tuned = hcomm.torch.tune_bucket_size(model, backward, sizes, steps=count, progress=False)
        found["scan"], found["best"] = {str(size): t for size, t in tuned.seconds.items()}, tuned.best
    return found
