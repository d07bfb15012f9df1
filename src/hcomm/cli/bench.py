"""`hcomm bench`: how long operations take, in nccl-tests' columns."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hcomm.bench.definitions import DEFINITIONS
from hcomm.bench.order import PEERS, Order, steps
from hcomm.bench.results import Report, Row
from hcomm.bench.text import Printer, footer, header
from hcomm.bootstrap.launcher import detect
from hcomm.cli.local_job import LocalJob, MeasurementFailed
from hcomm.cli.plot import need_matplotlib
from hcomm.codes import DTYPES, OPERATORS
from hcomm.errors import HcommError
from hcomm.planning.registry import lookup

#: nccl-tests' names of types.
_ALIASES = {"float": "float32", "double": "float64", "half": "float16"}
_SIZE = re.compile(r"(\d+)([KMG]?)B?", re.IGNORECASE)
_MOST_RANKS = 8
#: Processes that one command may ask of a machine.
_MOST_STARTED = 256


class PowerSize(click.ParamType[int]):
    """A size in bytes, with suffixes in powers of two, as nccl-tests read them: `8`, `64K`, `25M`."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes of a text. Raises BadParameter."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"expected a size such as 8, 64K or 25M (powers of two), found {value!r}", param, ctx)
        return int(match[1]) << 10 * " KMG".index(match[2].upper() or " ")


class Names(click.ParamType[tuple[str, ...]]):
    """Names separated by commas, or `all`."""

    name = "names"

    def __init__(self, known: Sequence[str]) -> None:
        self._known = tuple(known)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The names of a text. Raises BadParameter for one that is not known."""
        if isinstance(value, tuple):
            return value
        words = [_ALIASES.get(word.strip(), word.strip()) for word in str(value).lower().split(",")]
        if words == ["all"]:
            return self._known
        for word in words:
            if word not in self._known:
                self.fail(f"{word!r} is not known; known: all, {', '.join(self._known)}", param, ctx)
        return tuple(dict.fromkeys(words))


def _number(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """Refuse NaN, which passes every range."""
    if math.isnan(value):
        raise click.BadParameter("expected a number, found nan", ctx, param)
    return value


def _writable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a file in a folder that is not there before anything is measured."""
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {value.absolute().parent}", ctx, param)
    return value


@click.command()
@click.argument("operations", type=Names(tuple(DEFINITIONS)), default="all_reduce")
@click.option("-b", "--begin", type=PowerSize(), default="8", show_default=True, help="Smallest size, bytes.")
@click.option("-e", "--end", type=PowerSize(), default="64M", show_default=True, help="Largest size.")
@click.option(
    "-f",
    "--factor",
    type=float,
    default=8.0,
    show_default=True,
    callback=_number,
    help="Of one size to the next.",
)
@click.option("-i", "--increment", type=PowerSize(), default="0", help="Add this to a size instead.")
@click.option("-d", "--dtype", "dtypes", type=Names(tuple(DTYPES)), default="float32", show_default=True)
@click.option("-o", "--redop", "operators", type=Names(tuple(OPERATORS)), default="sum", show_default=True)
@click.option("-r", "--root", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "-n", "--iters", type=click.IntRange(min=1), help="Timed calls (default: what --budget allows)."
)
@click.option("--budget", type=click.FloatRange(min=0.001, max=86_400), default=0.3, show_default=True,
              callback=_number, help="Seconds for each size, line and form.")  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(min=1), help="In which lines take turns (default: 3; 1 if alone)."
)
@click.option(
    "--ranks",
    type=click.IntRange(2, _MOST_STARTED),
    help="Processes to start (default: one per CPU, 2 to 8).",
)
@click.option("--algorithm", "algorithms", default="", help="`all`, or names; a line for each.")
@click.option("--peer", "peers", multiple=True, type=click.Choice(PEERS), help="Measure it side by side.")
@click.option("--transport", type=click.Choice(["auto", "shm", "tcp"]), default="auto", show_default=True)
@click.option("--arrays", type=click.Choice(["torch", "numpy"]), help="Default: torch where it is installed.")
@click.option("--zero-copy", is_flag=True, help="hcomm's buffers come from hcomm.empty.")
@click.option("--warm", is_flag=True, help="Do not rewrite the input before each call.")
@click.option(
    "--check/--no-check", default=True, show_default=True, help="Compare results; wrong ones: exit code 1."
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=_writable,
    metavar="FILE",
    help="Write everything there.",
)
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False, writable=True, path_type=Path), metavar="FILE",
              callback=_writable, help="Draw time and bus bandwidth against size (needs matplotlib).")  # fmt: skip
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=1800.0,
    show_default=True,
    callback=_number,
    help="Seconds for all of it.",
)
def bench(
    operations: tuple[str, ...],
    json_file: Path | None,
    plot_file: Path | None,
    ranks: int | None,
    timeout: float,
    **options: Any,
) -> None:
    """Measure OPERATIONS (names separated by commas, or all), in nccl-tests' columns.

    Starts the processes it needs. Under torchrun, mpiexec or srun it measures with the processes of that job instead.
    Exit code: 0 measured; 1 a result was wrong; 2 nothing could be measured.
    """
    try:
        order = _order(operations, **options)
        if plot_file is not None:
            need_matplotlib()
        launch = detect(os.environ)
        if ranks and launch.world_size > 1:
            raise click.UsageError(
                f"--ranks is for a machine without a job: {launch.source} has started {launch.world_size} ranks, and "
                "those are measured"
            )
        told = _in_job(order) if launch.world_size > 1 else _here(order, ranks, timeout)
        report = _show(told, order, speaks=launch.rank == 0)
        if report is None:  # rank 0 speaks
            return
        if json_file is not None:
            json_file.write_text(json.dumps(report.as_dict(), indent=1) + "\n", encoding="utf-8")
        if plot_file is not None:
            from hcomm.bench.plot import draw

            draw(plot_file, report)
    except (HcommError, OSError) as error:
        click.echo(f"hcomm bench: {error}", err=True)
        sys.exit(2)
    if not report.rows:
        click.echo(
            f"hcomm bench: nothing to measure: no size from {order.sizes[0]} to {order.sizes[-1]} bytes holds an "
            f"element of {', '.join(order.dtypes)} for every rank, or none of {', '.join(order.operators)} fits it",
            err=True,
        )
    sys.exit(report.exit_code)


def _order(
    operations: tuple[str, ...],
    begin: int,
    end: int,
    factor: float,
    increment: int,
    dtypes: tuple[str, ...],
    operators: tuple[str, ...],
    root: int,
    iters: int | None,
    budget: float,
    rounds: int | None,
    algorithms: str,
    peers: tuple[str, ...],
    transport: str,
    arrays: str | None,
    zero_copy: bool,
    warm: bool,
    check: bool,
) -> Order:
    """The options as an order. Raises UsageError and UnknownAlgorithm."""
    if importlib.util.find_spec("numpy") is None:
        raise HcommError("the measurement needs NumPy, which is not installed: pip install numpy")
    names = tuple(word.strip() for word in algorithms.split(",")) if algorithms else ("",)
    for operation in operations if names not in (("",), ("all",)) else ():
        if operation not in ("send_recv", "ping_pong"):
            names = tuple(lookup(operation, name).name for name in names)
    try:
        sizes = steps(begin, end, factor, increment)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    several = bool(peers) or names != ("",)
    return Order(
        operations=operations,
        dtypes=dtypes,
        operators=operators,
        sizes=sizes,
        root=root,
        algorithms=names,
        peers=tuple(dict.fromkeys(peers)),
        transport=transport,
        arrays=arrays or ("numpy" if importlib.util.find_spec("torch") is None else "torch"),
        zero_copy=zero_copy,
        refill=not warm,
        check=check,
        iterations=iters or 0,
        budget=budget,
        rounds=rounds or (3 if several else 1),
    )


def _here(order: Order, ranks: int | None, timeout: float) -> Iterator[dict[str, Any]]:
    """Start ranks on this host; what rank 0 tells."""
    count = ranks or max(2, min(len(os.sched_getaffinity(0)), _MOST_RANKS))
    launcher: list[str] = []
    if "mpi4py" in order.peers:
        from hcomm.bench.mpi import launcher as mpi_launcher

        launcher = mpi_launcher(count)
    with LocalJob(
        count, (), timeout, "hcomm.bench.worker", arguments=[order.encode()], launcher=launcher
    ) as job:
        for message in job.messages():
            if "error" in message:
                raise MeasurementFailed(job.explain(str(message["error"]), 0))
            yield message
            if "end" in message:
                return
        raise MeasurementFailed(job.explain("rank 0 ended without a result", 0))


def _in_job(order: Order) -> Iterator[dict[str, Any]]:
    """Measure with the processes of the job that this one belongs to."""
    from hcomm.bench.worker import measure

    return measure(order)


def _show(told: Iterator[dict[str, Any]], order: Order, speaks: bool) -> Report | None:
    """Print header, rows as they come, and footer; None on other ranks than 0."""
    report: Report | None = None
    printer: Printer | None = None
    console = Console(stderr=True)
    columns = TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    # It is drawn between points only: a bar that moves by itself would take its time from the ranks' cores.
    with Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not (speaks and console.is_terminal),
    ) as bar:
        task = bar.add_task("measuring", total=None, visible=False)
        for message in told:
            if message.get("rank", 0) != 0:
                for _ in told:  # take part, silently
                    pass
                return None
            if "about" in message:
                report = Report(message["about"])
                printer = Printer(report.about, named=order.rounds > 1 or len(order.lines("all_reduce")) > 1)
                _print(header(report.about))
            elif "progress" in message:
                done, total = message["progress"]
                bar.update(task, completed=done, total=total, visible=True, refresh=True)
            elif "row" in message and report is not None and printer is not None:
                row = Row.from_dict(message["row"])
                report.rows.append(row)
                _print(printer.lines(row))
            elif "end" in message and report is not None:
                report.foreign = float(message["end"])
    assert report is not None
    _print(footer(report))
    return report


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        click.echo(line)
    sys.stdout.flush()
