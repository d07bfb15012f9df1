"""Is the algorithm that hcomm chooses the right one? Races it against all others, in the same run.

    python -m benchmarks.selection
    python -m benchmarks.selection --ranks 4 --transports tcp --sizes 8,64K,1M --json races.json

Exit code: 0 measured, 1 a launch failed, 2 wrong usage, 3 with --strict where a choice takes more than 15 % longer
than the best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.__main__ import _number, _sizes
from benchmarks.jobs import JobFailed, run_job
from hcomm.bench.machine import describe
from hcomm.cli.units import duration, size

#: A choice may take so many times as long as the best.
TOLERATED = 1.15
_SIZES = "8,64,1K,4K,16K,32K,64K,256K,1M,4M,10M,25M,100M"
_LAUNCH_SECONDS = 300.0


@dataclass(frozen=True)
class Row:
    """One size on one kind of links: what was chosen, and of each algorithm the seconds per call in each launch."""

    ranks: int
    transport: str
    nbytes: int
    chosen: str
    launches: dict[str, list[float]]

    @property
    def seconds(self) -> dict[str, float]:
        """Of each algorithm, the median of the launches."""
        return {name: statistics.median(times) for name, times in self.launches.items()}

    @property
    def best(self) -> str:
        """The fastest in the median."""
        return min(self.seconds, key=self.seconds.__getitem__)

    @property
    def ratio(self) -> float:
        """How many times as long as the best the choice takes: the median of the launches.

        Within a launch times are comparable; from launch to launch the machine changes.
        """
        pairs = zip(self.launches[self.chosen], self.launches[self.best], strict=True)
        return statistics.median(chosen / best for chosen, best in pairs)

    @property
    def met(self) -> bool:
        """Whether the choice is good enough."""
        return self.ratio <= TOLERATED


def measure(
    ranks: int, transport: str, sizes: list[int], also: list[str], budget: float, launches: int
) -> tuple[list[Row], float]:
    """Race at every size, in `launches` jobs; and the share of the machine that other work took.

    Raises:
        JobFailed: a launch gave no result.
    """
    found, foreign = [], []
    for _ in range(launches):
        outcome = run_job(
            "selection",
            ranks,
            {"sizes": sizes, "also": also, "budget": budget},
            settings={"HCOMM_TRANSPORT": transport},
            seconds=_LAUNCH_SECONDS,
        )
        found.append(outcome.ranks[0]["races"])
        foreign.append(outcome.foreign)
    rows = []
    for races in zip(*found, strict=True):
        launches = {name: [race["seconds"][name] for race in races] for name in races[0]["seconds"]}
        rows.append(Row(ranks, transport, races[0]["nbytes"], races[0]["chosen"], launches))
    return rows, max(foreign)


def table(rows: Sequence[Row]) -> Table:
    """Chosen, best, ratio, and the next best."""
    shown = Table(title="all_reduce: the choice beside the best of all algorithms")
    for name in (
        "ranks",
        "links",
        "size",
        "chosen",
        "time",
        "best",
        "time",
        "chosen/best",
        "all, fastest first",
    ):
        shown.add_column(
            name, justify="right" if name in ("ranks", "size", "time", "chosen/best") else "left"
        )
    for row in rows:
        seconds = row.seconds
        order = sorted(seconds, key=seconds.__getitem__)
        others = ", ".join(f"{name} {seconds[name] / seconds[row.best]:.2f}" for name in order[:5])
        shown.add_row(
            str(row.ranks),
            row.transport,
            size(row.nbytes),
            row.chosen,
            duration(seconds[row.chosen]),
            row.best,
            duration(seconds[row.best]),
            f"{row.ratio:.2f}" + ("" if row.met else " MISSED"),
            others,
        )
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.selection", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--ranks", default="2,3,4", help="sizes of the jobs (default 2,3,4)")
    parser.add_argument("--transports", default="shm,tcp", help="kinds of links (default shm,tcp)")
    parser.add_argument("--sizes", type=_sizes, default=_sizes(_SIZES), help=f"in bytes (default {_SIZES})")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for each size (default 1)")
    parser.add_argument("--launches", type=_number(1), default=3, help="jobs of each kind (default 3)")
    parser.add_argument(
        "--also", action="append", default=[], metavar="ALGORITHM", help="race this too: ring(chunk=1MB)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--strict", action="store_true", help="exit with 3 when a choice is not good enough")
    options = parser.parse_args(arguments)
    worlds = options.ranks.split(",")
    if not all(word.isdigit() and int(word) > 1 for word in worlds):
        parser.error(f"--ranks: expected numbers above 1 such as 2,3,4, found {options.ranks!r}")
    transports = options.transports.split(",")
    if not set(transports) <= {"shm", "tcp"}:
        parser.error(f"--transports: expected shm, tcp or both, found {options.transports!r}")
    console = Console(width=None if sys.stdout.isatty() else 170)
    rows, foreign = [], 0.0
    for transport in transports:
        for ranks in map(int, worlds):
            try:
                more, other = measure(
                    ranks, transport, options.sizes, options.also, options.budget, options.launches
                )
            except JobFailed as error:
                print(f"{ranks} ranks over {transport}: {error}", file=sys.stderr)
                return 1
            rows += more
            foreign = max(foreign, other)
            console.print(table(more))
    missed = [row for row in rows if not row.met]
    console.print(
        f"{len(rows) - len(missed)} of {len(rows)} choices within {TOLERATED - 1:.0%} of the best; "
        f"other work took up to {foreign:.0%} of the machine"
    )
    if options.json:
        document = {
            "machine": describe(("torch",)),
            "foreign": foreign,
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 3 if missed and options.strict else 0


if __name__ == "__main__":
    sys.exit(main())
