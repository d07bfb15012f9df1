"""`hcomm simulate --validate`: predictions held against what real processes need.

For each of a few sizes the costs are measured, as `Communicator.measure_costs` does; then every algorithm that can run
is timed with freshly written data, and its prediction stands beside it. Started by a launcher, it uses the ranks
of that job, on whatever hosts they are.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import hcomm
from hcomm import _native
from hcomm.bootstrap.launcher import detect
from hcomm.cli.local_job import LocalJob, MeasurementFailed
from hcomm.cli.units import duration, message
from hcomm.codes import DTYPES, NO_OPERATOR, OPERATIONS, OPERATORS
from hcomm.communicator import Communicator
from hcomm.diagnose.callsite import caller
from hcomm.diagnose.report import Call
from hcomm.errors import HcommError
from hcomm.stopwatch import largest

#: In which no rank can be done before all have begun: others could run ahead from call to call.
_OPERATIONS = ("all_reduce", "all_gather")
_SIZES = (64, 4096, 65_536, 1_000_000, 10_000_000)
#: Seconds for one size of one algorithm.
_SECONDS = 0.12
_LEAST_RUNS, _MOST_RUNS = 4, 100
#: Vectors up to this many bytes run this often in a row.
_SMALL, _BATCH = 65_536, 20
#: From here on it is bandwidth that counts (bytes).
_LARGE = 1_000_000
_RUN_SECONDS = 60.0
#: How often costs are measured, the least of which counts: on a busy machine one time is too few.
_TIMES = 3
_JOB_SECONDS = 240.0


@dataclass(frozen=True)
class Row:
    """One algorithm at one size: what was measured and what was predicted, in seconds."""

    ranks: int
    hosts: int
    links: str
    operation: str
    algorithm: str
    nbytes: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """How far the prediction is off, in parts of what was measured; negative: too fast."""
        return self.predicted / self.measured - 1


def validate(ranks: str, save_costs: Path | None, markdown: Path | None) -> int:
    """Validate in the job that this process belongs to, or in jobs on this host; the exit code.

    Args:
        ranks: sizes of the jobs to start, such as `2,4`.
        save_costs: where to keep the measured costs of the last job.
        markdown: where to write the table.

    Raises:
        HcommError: a job failed.
        ClickException: `ranks` is not a list of numbers above one.
    """
    rows: list[Row] = []
    costs: dict[str, Any] = {}
    if detect(os.environ).world_size > 1:
        result = run()
        if result is None:
            return 0
        rows, costs = result
    else:
        words = ranks.split(",")
        if not all(word.strip().isdigit() and int(word) > 1 for word in words):
            raise click.BadParameter(
                f"--ranks: expected numbers of ranks above 1, such as 2,4, found {ranks!r}"
            )
        for count in map(int, words):
            for transport in ("auto", "tcp"):
                more, costs = _local(count, transport)
                rows += more
    _show(rows)
    if save_costs is not None:
        save_costs.write_text(json.dumps(costs, indent=2) + "\n", encoding="utf-8")
    if markdown is not None:
        markdown.write_text(as_markdown(rows), encoding="utf-8")
    return 0


def _local(count: int, transport: str) -> tuple[list[Row], dict[str, Any]]:
    """A job on this host."""
    environment = {"HCOMM_TRANSPORT": transport}
    with LocalJob(count, (), _JOB_SECONDS, "hcomm.cli.validate", environment) as job:
        for told in job.messages():
            if "error" in told:
                raise MeasurementFailed(job.explain(str(told["error"]), 0))
            if "rows" in told:
                return [Row(**row) for row in told["rows"]], told["costs"]
        raise MeasurementFailed(job.explain("rank 0 ended without a result", 0))


def run() -> tuple[list[Row], dict[str, Any]] | None:
    """Measure and predict in this process's job; None but on rank 0."""
    world = hcomm.init()
    try:
        rows = _rows(world)
        return (rows, world.costs.as_dict()) if world.rank == 0 else None
    finally:
        hcomm.finalize()


def _rows(world: Communicator) -> list[Row]:
    bench = _Bench(world)
    rows = []
    for operation in _OPERATIONS:
        for nbytes in _SIZES:
            # Anew each time: what a machine shares with others, and where it runs, changes from second to second.
            costs = world.measure_costs(fresh=True, times=_TIMES)
            links = "+".join(name for name in costs.measured if name != "memory")
            predicted = world.explain(operation, nbytes)
            for price in sorted(predicted.prices, key=lambda p: p.algorithm):
                if not price.obstacle:
                    seconds = bench.seconds(operation, price.algorithm, nbytes)
                    row = (operation, price.algorithm, nbytes, seconds, price.seconds)
                    rows.append(Row(world.size, len(world.hosts), links, *row))
    return rows


class _Bench:
    """Times collectives on memory of its own."""

    def __init__(self, world: Communicator) -> None:
        self._world = world
        self._data = bytearray(max(_SIZES) + 64)
        self._fresh = bytes(max(_SIZES))
        self._address = -(-_native.address_of(self._data, True)[0] // 64) * 64
        self._flag = bytearray(8)

    def seconds(self, operation: str, algorithm: str, nbytes: int) -> float:
        """Seconds of one collective: of the fastest of many batches, each as slow as its slowest rank.

        The fastest, because other work of the machine only ever adds. Small vectors run many times in a row, or
        it would be the barrier that is measured; large ones are written anew before every run.
        """
        world, native = self._world, self._world._native
        choice = world._planner.choose(operation, "float32", "sum", nbytes, 0, algorithm)
        count, gathers = nbytes // (4 * world.size) * world.size, operation == "all_gather"
        block = count // world.size
        plan = native.plan(
            choice.program,
            choice.fallback,
            operation=OPERATIONS[operation],
            dtype=DTYPES["float32"][0],
            op=NO_OPERATOR if gathers else OPERATORS["sum"],
            root=-1,
            count=count,
            n_in=block if gathers else count,
            n_out=count,
            bounds_in=[],
            bounds_out=[block * r for r in range(world.size + 1)] if gathers else [],
            algorithm=choice.hash,
            agreed=0,
            tile_bytes=choice.tile_bytes,
        )
        batch = _BATCH if nbytes <= _SMALL else 1
        trial = self._slowest(max(self._run(plan, operation, nbytes, batch) for _ in range(2)))
        runs = max(_LEAST_RUNS, min(_MOST_RUNS, int(_SECONDS / max(trial, 1e-6))))
        return min(self._slowest(self._run(plan, operation, nbytes, batch)) for _ in range(runs)) / batch

    def _run(self, plan: _native.Plan, operation: str, nbytes: int, batch: int) -> float:
        """Seconds of a batch on freshly written data, begun by all ranks at about the same time."""
        self._data[:nbytes] = self._fresh[:nbytes]
        self._world.barrier()
        run, address, source = self._world._native.run, self._address, self._address
        if operation == "all_gather":
            source += self._world.rank * (nbytes // (4 * self._world.size)) * 4
        start = time.perf_counter()
        for _ in range(batch):
            status = run(plan, source, address, _RUN_SECONDS)
            if status:
                raise self._world._fail(status, Call("validating", caller(), _RUN_SECONDS))
        return time.perf_counter() - start

    def _slowest(self, seconds: float) -> float:
        return largest(self._world, seconds)


def _show(rows: Sequence[Row]) -> None:
    table = Table(title="predicted against measured")
    for name in (
        "ranks",
        "hosts",
        "links",
        "operation",
        "algorithm",
        "size",
        "measured",
        "predicted",
        "error",
    ):
        table.add_column(name, justify="left" if name in ("links", "operation", "algorithm") else "right")
    for row in rows:
        table.add_row(*_cells(row))
    console = Console(highlight=False)
    console.print(table)
    for line in summary(rows):
        console.print(line)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.ranks),
        str(row.hosts),
        row.links,
        row.operation,
        row.algorithm,
        message(row.nbytes),
        duration(row.measured),
        duration(row.predicted),
        f"{row.error:+.0%}",
    )


def summary(rows: Sequence[Row]) -> list[str]:
    """Median errors: of all rows, of small and of large vectors, of each world."""
    lines = [f"median error: {statistics.median(abs(r.error) for r in rows):.0%} of {len(rows)} predictions"]
    for what, some in (
        ("below 1 MB", [r for r in rows if r.nbytes < _LARGE]),
        ("from 1 MB on", [r for r in rows if r.nbytes >= _LARGE]),
    ):
        if some:
            lines.append(f"  {what}: {statistics.median(abs(r.error) for r in some):.0%} of {len(some)}")
    for world in dict.fromkeys((r.ranks, r.hosts, r.links) for r in rows):
        errors = [abs(r.error) for r in rows if (r.ranks, r.hosts, r.links) == world]
        ranks, hosts, links = world
        where = f"{ranks} ranks, {hosts} host{'s' * (hosts != 1)}, {links}"
        lines.append(f"  {where}: {statistics.median(errors):.0%} of {len(errors)}")
    return lines


def as_markdown(rows: Sequence[Row]) -> str:
    """The table and its summary, for docs/simulation.md."""
    names = ("ranks", "hosts", "links", "operation", "algorithm", "size", "measured", "predicted", "error")
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return "\n".join([*lines, "", *(f"- {line.strip()}" for line in summary(rows)), ""])


def main() -> int:
    """One rank of a job that `validate` started: rank 0 tells in lines of JSON."""
    try:
        result = run()
    except HcommError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if result is not None:
        rows, costs = result
        print(json.dumps({"rows": [asdict(row) for row in rows], "costs": costs}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
