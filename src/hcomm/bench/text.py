"""The report as lines of text: nccl-tests' columns, and a header that says what the numbers mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hcomm.bench.definitions import DEFINITIONS
from hcomm.bench.results import Report, Row, Timing

_GIGA = 1e9
#: From this share on other work is told of.
_DISTURBED = 0.05


def header(about: dict[str, Any]) -> Iterator[str]:
    """Machine, versions, ranks, and how it is measured; each line begins with `#`."""
    machine = about["machine"]
    hosts = about["hosts"]
    where = f"host {hosts[0]}" if len(hosts) == 1 else f"{len(hosts)} hosts ({', '.join(hosts)})"
    memory = f"{machine['memory_bytes'] / (1 << 30):.0f} GiB"
    cores = f"{machine['cores']} cores, {machine['cpus']} CPUs, {memory}"
    yield f"# machine:   {machine['cpu']} ({machine['architecture']}), {cores}"
    load = f"load average {machine['load']:.1f} before the start"
    yield f"#            {machine['kernel']}, kernels: {machine['simd']}, {load}, {machine['date']}"
    yield f"# ranks:     {about['ranks']} on {where} over {about['backend']} (transport: {about['transport']})"
    if about["ranks"] > machine["cpus"] * len(hosts):
        yield f"#            more ranks than CPUs ({machine['cpus']}): they take turns"
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    yield f"# versions:  {versions}"
    for name, version in about["libraries"].items():
        if name != "hcomm":
            yield f"#            peer {name}: {version}"
    settings = " ".join(f"{name}={value}" for name, value in machine["settings"].items())
    yield f"# settings:  {settings or 'defaults'}"
    kind = "hcomm.empty (zero copy)" if about["zero_copy"] else "ordinary memory"
    yield f"# buffers:   {about['arrays']}, {kind}; one thread to a rank"
    if about["refilled"]:
        yield "# input:     all of it rewritten on every rank before every call, untimed; outputs are not touched"
    else:
        yield "# input:     NOT rewritten (--warm): caches stay warm, and times are better than in real use"
    yield f"# time:      median over the calls of the slowest rank; ranks meet {about['barrier']}"
    if about["rounds"] > 1:
        yield f"#            what is compared takes turns in {about['rounds']} rounds"
    checked = "first and last result against expected values that hcomm did not compute"
    yield f"# #wrong:    {checked if about['checked'] else 'not checked'}"
    yield "# 1 GB = 1e9 bytes; algbw = size / time; busbw as nccl-tests define it"


def titles(operation: str, named: bool) -> Iterator[str]:
    """The heads of the columns of one operation.

    Args:
        operation: its name.
        named: rows say which library and algorithm they are.
    """
    name = f"  {'by':<24} ×time" if named else ""
    yield "#"
    yield f"# {operation}{_remark(operation)}"
    yield f"#{'':>55}{'out-of-place':^38}{'in-place':^38}"
    form = f"{'time':>9}{'algbw':>9}{'busbw':>9}{'#wrong':>8}   "
    yield f"#{'size':>12}{'count':>14}{'type':>12}{'redop':>8}{'root':>6}   {form}{form}{name}"
    units = f"{'(us)':>9}{'(GB/s)':>9}{'(GB/s)':>9}{'':>8}   "
    yield f"#{'(B)':>12}{'(elements)':>14}{'':>12}{'':>8}{'':>6}   {units}{units}"


def _remark(operation: str) -> str:
    """What one should know about its numbers."""
    if operation == "ping_pong":
        return ": ranks 0 and 1, time is half the round trip"
    if operation == "send_recv":
        return ": each rank sends to the next, and receives from the one before"
    if operation in ("all_reduce", "broadcast", "reduce"):
        return ": works in place; out of place, hcomm's time contains a copy of the input"
    return ""


def row_line(row: Row, ranks: int, named: bool, first: Row | None) -> str:
    """One row.

    Args:
        row: what was measured.
        ranks: of the job.
        named: see `titles`.
        first: the first line at this point, which the others' times are divided by.
    """
    forms = _form(row, row.out_of_place, ranks) + _form(row, row.in_place, ranks)
    text = f" {row.nbytes:>12}{row.count:>14}{row.dtype:>12}{row.operator:>8}{row.root:>6}   {forms}"
    if named:
        text += f"  {row.name:<24} {_ratio(row, first):>5}"
    if not row.timings:
        text += f"  {row.note}"
    return text.rstrip()


def _form(row: Row, timing: Timing | None, ranks: int) -> str:
    if timing is None:
        return f"{'N/A':>9}{'N/A':>9}{'N/A':>9}{'N/A':>8}   "
    algbw, busbw = row.algbw(timing) / _GIGA, row.busbw(timing, ranks) / _GIGA
    wrong = "N/A" if timing.wrong is None else str(timing.wrong)
    return f"{_short(timing.seconds * 1e6):>9}{_short(algbw):>9}{_short(busbw):>9}{wrong:>8}   "


def _short(value: float) -> str:
    """Three or more digits that count."""
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 10_000 else f"{value:.0f}"


def _ratio(row: Row, first: Row | None) -> str:
    """How many times as long as the first line, in the form that both have."""
    if first is None:
        return ""
    for a, b in ((row.in_place, first.in_place), (row.out_of_place, first.out_of_place)):
        if a is not None and b is not None and b.seconds:
            return f"{a.seconds / b.seconds:.2f}"
    return "-"


def footer(report: Report) -> Iterator[str]:
    """nccl-tests' last lines."""
    yield "#"
    verdict = "OK" if not report.wrong else "FAILED"
    if report.about["checked"]:
        yield f"# Out of bounds values : {report.wrong} {verdict}"
    for name, speed in report.bandwidths().items():
        yield f"# Avg bus bandwidth    : {speed / _GIGA:.4f} ({name})"
    if report.foreign >= _DISTURBED:
        yield f"# Other work took {report.foreign:.0%} of the processors meanwhile: measure on a quiet machine"
    for row in report.rows:
        if row.wrong:
            what = f"{row.operation} {row.dtype} {row.operator} of {row.nbytes} bytes"
            yield f"# WRONG: {what} by {row.name}: {row.wrong} elements"


class Printer:
    """Lines as rows arrive.

    Args:
        about: see `Report`.
        named: several lines are compared.
    """

    def __init__(self, about: dict[str, Any], named: bool) -> None:
        self._ranks = int(about["ranks"])
        self._named = named
        self._operation = ""
        self._first: Row | None = None

    def lines(self, row: Row) -> Iterator[str]:
        """What to print for a row: its line, and the heads before the first of an operation."""
        assert row.operation in DEFINITIONS
        if row.operation != self._operation:
            self._operation = row.operation
            self._first = None
            yield from titles(row.operation, self._named)
        if self._first is None or _place(self._first) != _place(row):
            self._first = row
        yield row_line(row, self._ranks, self._named, self._first)


def _place(row: Row) -> Sequence[object]:
    return row.operation, row.dtype, row.operator, row.nbytes
