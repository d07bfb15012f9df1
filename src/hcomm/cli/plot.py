"""Figures of simulated times, with matplotlib, which is optional."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hcomm.errors import HcommError
from hcomm.planning.simulate import Point


def need_matplotlib() -> None:
    """Say how to get matplotlib. Raises HcommError where it is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise HcommError("--plot needs matplotlib, which is not installed: pip install matplotlib")


def draw(path: Path, operation: str, by_size: Sequence[Point], by_world: Sequence[Point]) -> None:
    """Time against size, and time against ranks where there is a second world to compare.

    Raises:
        HcommError: the file cannot be written, or its name has no ending that matplotlib knows.
    """
    need_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12 if by_world else 6.5, 5), layout="constrained")
    axes = figure.subplots(1, 2 if by_world else 1, squeeze=False)[0]
    world = f"{by_size[0].ranks} ranks on {by_size[0].hosts} hosts" if by_size else ""
    _lines(axes[0], by_size, lambda p: p.nbytes, "bytes", f"{operation}, {world}")
    if by_world:
        _lines(axes[1], by_world, lambda p: p.ranks, "ranks", f"{operation} of {by_world[0].nbytes:,} bytes")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise HcommError(f"{path}: cannot be drawn: {error}") from None


def _lines(axes: Any, points: Sequence[Point], place: Callable[[Point], int], label: str, title: str) -> None:
    for name in sorted({p.algorithm for p in points}):
        mine = [(place(p), p.seconds) for p in points if p.algorithm == name and p.seconds]
        if mine:
            axes.plot(*zip(*sorted(mine), strict=True), marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel=label, ylabel="seconds (predicted)", title=title)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
