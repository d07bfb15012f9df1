"""Measure hcomm on this machine, beside gloo and beside its targets.

    make bench
    python -m benchmarks --ranks 4 --json results.json --plot all_reduce.png

Exit code: 0 measured (also where a target is missed), 1 a launch failed or a result was wrong, 2 wrong usage,
3 with --strict where a target is missed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import plot
from benchmarks.figures import FULL, QUICK, measure_figures
from benchmarks.results import Report
from benchmarks.sweep import CONTENDERS, sweep
from benchmarks.tables import all_reduce_tables, figures_table, machine_table, summary
from hcomm.bench.machine import describe

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZES = "8,1K,64K,1M,25M,100M"
_QUICK_SIZES = "8,64K,1M"


def _sizes(text: str) -> list[int]:
    """Bytes of `8,1K,25M`, in powers of two."""
    found = []
    for word in text.upper().split(","):
        scale = _UNITS.get(word[-1:], 1)
        digits = word[:-1] if word[-1:] in _UNITS else word
        if not digits.isdigit() or int(digits) * scale < 4 or int(digits) * scale % 4:
            raise argparse.ArgumentTypeError(f"{word!r} is no size of float32s such as 8, 64K or 25M")
        found.append(int(digits) * scale)
    return found


def _number(least: int) -> argparse._ActionType:
    def parse(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a number of at least {least}, found {text!r}")
        return int(text)

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=_number(2), default=2, help="of the all_reduce (default 2)")
    parser.add_argument("--rounds", type=_number(1), help="launches of each library (default 3)")
    parser.add_argument("--sizes", type=_sizes, help=f"of the all_reduce, in bytes (default {_SIZES})")
    parser.add_argument("--budget", type=float, help="seconds for each size in each launch (default 0.5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw time against size (matplotlib)")
    parser.add_argument("--strict", action="store_true", help="exit with 3 when a target is missed")
    parser.add_argument("--quick", action="store_true", help="little of everything: does it still work?")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("torch") is None:
        parser.error("torch is not installed, and gloo is part of it: make bench installs it")
    if options.plot and not plot.available():
        parser.error(f"--plot needs matplotlib: {sys.executable} -m pip install matplotlib")
    quick = options.quick
    sizes = options.sizes or _sizes(_QUICK_SIZES if quick else _SIZES)
    budget = options.budget if options.budget is not None else (0.05 if quick else 0.5)
    effort = QUICK if quick else FULL
    report = Report(describe(("torch",)), options.ranks, options.rounds or (1 if quick else 3))
    # It is drawn between launches only: a bar that moves by itself would take its time from the ranks' cores.
    progress = Progress(
        TextColumn("{task.description:<40}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with progress:
        launches = report.rounds * len(CONTENDERS) + effort.launches
        bar = progress.add_task("starting", total=launches, completed=-1)

        def advance(description: str) -> None:
            progress.update(bar, description=description, advance=1, refresh=True)

        sweep(report, sizes, budget, advance)
        measure_figures(report, effort, advance)
    show(report, Console())
    if options.json:
        options.json.write_text(json.dumps(report.as_dict(), indent=1) + "\n")
    if options.plot:
        plot.draw(report, options.plot)
    return report.exit_code(strict=options.strict)


def show(report: Report, console: Console) -> None:
    """Print all tables."""
    console.print(machine_table(report))
    for table in all_reduce_tables(report):
        console.print(table)
    console.print(figures_table(report))
    for line in summary(report):
        console.print(line)


if __name__ == "__main__":
    sys.exit(main())
