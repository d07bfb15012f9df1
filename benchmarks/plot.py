"""Time against size, both logarithmic. Needs matplotlib, which nothing else here does."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from benchmarks.results import Report
from benchmarks.tables import size

_DPI = 150


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(report: Report, path: Path) -> None:
    """Write the picture to `path`; its ending chooses the format."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    figure, axes = importlib.import_module("matplotlib.pyplot").subplots(figsize=(8, 5))
    curves: dict[str, dict[int, float]] = {}
    for row in report.rows:
        name = "hcomm, forced TCP" if row.transport == "tcp" else f"hcomm ({row.backend})"
        for label, seconds in ((name, row.hcomm), ("gloo", row.gloo)):
            if seconds is not None:
                curves.setdefault(label, {})[row.nbytes] = seconds * 1e6
    for label, points in curves.items():
        axes.plot(list(points), list(points.values()), marker="o", label=label)
    sizes = sorted({row.nbytes for row in report.rows})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [size(nbytes) for nbytes in sizes], rotation=45)
    axes.minorticks_off()
    axes.set_xlabel("size of the vector on each rank")
    axes.set_ylabel("time of the slowest rank (µs)")
    axes.set_title(f"all_reduce, float32, {report.ranks} ranks: {report.machine['cpu']}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=_DPI, bbox_inches="tight")
