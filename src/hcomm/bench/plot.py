"""Time and bus bandwidth against size, with matplotlib, which is optional."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hcomm.bench.results import Report, Row
from hcomm.errors import HcommError

#: matplotlib's cycle of colours begins again after so many lines.
_COLOURS = 10


def draw(path: Path, report: Report) -> None:
    """One row of two plots for each operation, type and operator; one line for each library and algorithm.

    Raises:
        HcommError: there is nothing to draw, or the file cannot be written.
    """
    from matplotlib.figure import Figure

    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in report.rows:
        if row.best is not None and row.nbytes:
            groups.setdefault((row.operation, row.dtype, row.operator), []).append(row)
    if not groups:
        raise HcommError(f"{path}: there is nothing to draw: no operation with a size was measured")
    machine = report.about["machine"]
    figure = Figure(figsize=(12, 4.6 * len(groups) + 0.4), layout="constrained")
    figure.suptitle(
        f"{report.ranks} ranks over {report.about['backend']}, {machine['cpu']}, {machine['date']}, "
        f"input {'rewritten before every call' if report.about['refilled'] else 'NOT rewritten: warm caches'}",
        fontsize=10,
    )
    axes = figure.subplots(len(groups), 2, squeeze=False)
    for (time, bandwidth), ((operation, dtype, operator), rows) in zip(axes, groups.items(), strict=True):
        title = operation if operator == "none" else f"{operation} ({operator})"
        _lines(time, rows, f"{title}, {dtype}", "time [us]", None)
        _lines(bandwidth, rows, f"{title}, {dtype}", "bus bandwidth [GB/s]", report.ranks)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise HcommError(f"{path}: cannot be drawn: {error}") from None


def _lines(axes: Any, rows: list[Row], title: str, label: str, ranks: int | None) -> None:
    """Times, or bus bandwidths where `ranks` is given."""
    for number, name in enumerate(dict.fromkeys(row.name for row in rows)):
        points = []
        style = "-" if number < _COLOURS else "--"
        for row in rows:
            if row.name == name and row.best is not None:
                value = row.best.seconds * 1e6 if ranks is None else row.busbw(row.best, ranks) / 1e9
                points.append((row.nbytes, value))
        axes.plot(*zip(*points, strict=True), style, marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel="size [bytes]", ylabel=label, title=title)
    axes.grid(True, which="major", alpha=0.3)
    if ranks is not None:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
