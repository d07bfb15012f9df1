"""The tables that `make bench` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from benchmarks.results import Figure, Report, Row
from hcomm.cli.units import duration

_MEBI = 1 << 20


def size(nbytes: int) -> str:
    """`8 B`, `64 KB`, `25 MB`: in powers of two, as hcomm's settings are."""
    for unit, scale in (("MB", _MEBI), ("KB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:g} {unit}"
    return f"{nbytes} B"


def machine_table(report: Report) -> Table:
    """What it was measured on."""
    machine, table = report.machine, Table(title="Machine", show_header=False)
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    settings = " ".join(f"{name}={value}" for name, value in machine["settings"].items())
    lines = (
        ("processor", f"{machine['cpu']} ({machine['architecture']}), kernels: {machine['simd']}"),
        ("cores", f"{machine['cores']} ({machine['cpus']} CPUs, {machine['sockets']} socket(s))"),
        ("memory", f"{machine['memory_bytes'] / (1 << 30):.0f} GB"),
        ("kernel", machine["kernel"]),
        ("versions", versions),
        ("settings", settings or "defaults"),
        ("ranks", f"{report.ranks}, one thread each"),
        ("input", "rewritten before every call on every rank"),
        ("time", f"slowest rank; median of each launch, median over {report.rounds} interleaved round(s)"),
        ("date", f"{machine['date']}, load average {machine['load']:.1f} before the start"),
    )
    for name, text in lines:
        table.add_row(name, Text(text))
    return table


def all_reduce_tables(report: Report) -> Iterator[Table]:
    """One table for each transport."""
    for transport in dict.fromkeys(row.transport for row in report.rows):
        rows = [row for row in report.rows if row.transport == transport]
        told = "HCOMM_TRANSPORT=tcp" if transport == "tcp" else f"{transport}: {rows[0].backend}"
        yield _all_reduce(f"all_reduce, float32, {report.ranks} ranks ({told})", rows)


def _all_reduce(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title)
    for name in ("size", "hcomm", "gloo", "gloo/hcomm", "target", "met"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            size(row.nbytes),
            _time(row.hcomm),
            _time(row.gloo),
            "failed" if row.ratio is None else f"{row.ratio:.3g}×",
            "–" if row.target is None else f"≥ {row.target:g}×",
            _verdict(row.met),
        )
    return table


def figures_table(report: Report) -> Table:
    """The figures with a target of their own."""
    table = Table(title="Figures")
    table.add_column("what")
    for name in ("measured", "target", "met"):
        table.add_column(name, justify="right")
    for figure in report.figures:
        target = "–" if figure.target is None else f"≤ {_amount(figure, figure.target)}"
        measured = "failed" if figure.value is None else _amount(figure, figure.value)
        table.add_row(Text(figure.what), measured, target, _verdict(figure.met))
    return table


def summary(report: Report) -> Iterator[Text]:
    """The last lines: how many targets are met, what disturbed, what failed."""
    verdicts = list(report.verdicts())
    yield Text(f"{sum(verdicts)} of {len(verdicts)} targets are met.")
    if report.foreign >= 0.05:
        yield Text(
            f"Other work took up to {report.foreign:.0%} of the machine while it was measured.", "yellow"
        )
    for problem in report.problems:
        yield Text(f"FAILED: {problem}", "red")


def _time(seconds: float | None) -> str:
    return "failed" if seconds is None else duration(seconds)


def _amount(figure: Figure, value: float) -> str:
    return duration(value) if figure.unit == "s" else f"{value / _MEBI:.2f} MB"


def _verdict(met: bool | None) -> Text:
    if met is None:
        return Text("–")
    return Text("yes", "green") if met else Text("MISSED", "bold red")
