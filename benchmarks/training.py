"""Training steps on hcomm beside gloo: DistributedDataParallel, GradientBucket and FSDP2, on three models.

    python -m benchmarks.training
    python -m benchmarks.training --models mlp --rounds 5 --json training.json

Exit code: 0 measured (also where a target is missed), 1 a launch failed or weights were wrong, 3 with --strict where a
target is missed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from benchmarks.jobs import JobFailed, run_job
from hcomm.bench.machine import describe

MODELS = ("mlp", "cnn", "transformer")
#: What DDP's exchange on hcomm may take of a step; of gloo it takes 37 to 43 % of the MLP's.
EXCHANGE = 0.10
#: What a step with GradientBucket may take, of the model's alone.
BUCKET = 1.15
#: What a step of FSDP2 on hcomm may take, of gloo's.
FSDP = 0.7


@dataclass(frozen=True)
class Row:
    """One model.

    Attributes:
        model: its name.
        gradient_bytes: on each rank.
        seconds: way to train → seconds of a step on the slowest rank, median over the launches of each one's median.
        ratios: quotient → its value; the median over the launches.
    """

    model: str
    gradient_bytes: int
    seconds: dict[str, float]
    ratios: dict[str, float]

    @property
    def met(self) -> dict[str, bool]:
        """Quotient with a target → whether it is met."""
        targets = {"exchange hcomm": EXCHANGE, "bucket": BUCKET, "fsdp hcomm": FSDP, "fsdp shared": FSDP}
        return {name: self.ratios[name] <= most for name, most in targets.items()}


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    """The quotients of one launch.

    The exchange is what a step of DDP takes longer than one whose hook exchanges nothing, as a share of the former.
    """
    return {
        "exchange gloo": 1 - seconds["silent"] / seconds["ddp gloo"],
        "exchange hcomm": 1 - seconds["silent"] / seconds["ddp hcomm"],
        "bucket": seconds["bucket"] / seconds["alone"],
        "fsdp hcomm": seconds["fsdp hcomm"] / seconds["fsdp gloo"],
        "fsdp shared": seconds["fsdp shared"] / seconds["fsdp gloo"],
    }


def summed_up(model: str, launches: Sequence[dict[str, Any]]) -> Row:
    """The medians over the launches of a model."""

    def middle(found: Sequence[dict[str, float]]) -> dict[str, float]:
        return {name: statistics.median(one[name] for one in found) for name in found[0]}

    each = [launch["seconds"] for launch in launches]
    return Row(model, launches[0]["gradient_bytes"], middle(each), middle([ratios(one) for one in each]))


def measure(
    models: Sequence[str], ranks: int, rounds: int, steps: int, console: Console
) -> tuple[list[Row], float, list[str]]:
    """Launch each model once in each round.

    Returns:
        A row for each model, the largest share of the machine that other work took, and what failed.
    """
    launches: dict[str, list[dict[str, Any]]] = {model: [] for model in models}
    problems: list[str] = []
    foreign = 0.0
    # It is drawn between launches only: a bar that moves by itself would take its time from the ranks' cores.
    columns = TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        bar = progress.add_task("starting", total=rounds * len(models))
        for turn in range(rounds):
            for model in models:
                progress.update(bar, description=f"{model}, round {turn + 1}", refresh=True)
                try:
                    outcome = run_job("training", ranks, {"model": model, "count": steps}, seconds=600)
                except JobFailed as error:
                    problems.append(f"{model}: {error}")
                    continue
                wrong = sorted({kind for rank in outcome.ranks for kind in rank["wrong"]})
                if wrong:
                    problems.append(f"{model}: the weights of {', '.join(wrong)} are not those of gloo")
                else:
                    launches[model].append(outcome.ranks[0])
                    foreign = max(foreign, outcome.foreign)
                progress.update(bar, advance=1, refresh=True)
    return [summed_up(model, found) for model, found in launches.items() if found], foreign, problems


def tables(rows: Sequence[Row], ranks: int, steps: int, rounds: int) -> list[Table]:
    """What is printed."""
    how = f"{ranks} ranks, one thread each; slowest rank, median of {steps} steps, median of {rounds} launch(es)"
    parallel = Table(title=f"Data-parallel step: {how}")
    sharded = Table(title="Step of FSDP2, fully_shard for each layer")
    for name in ("model", "gradients", "alone", "DDP, silent", "DDP, gloo", "exchange", "DDP, hcomm", "exchange",
                 "met", "bucket", "of alone", "met"):  # fmt: skip
        parallel.add_column(name, justify="left" if name == "model" else "right")
    for name in ("model", "gloo", "hcomm", "of gloo", "met", "hcomm, shared buffers", "of gloo", "met"):
        sharded.add_column(name, justify="left" if name == "model" else "right")
    for row in rows:
        time = {kind: f"{seconds * 1e3:.1f} ms" for kind, seconds in row.seconds.items()}
        met = {name: _verdict(good) for name, good in row.met.items()}
        parallel.add_row(
            row.model, f"{row.gradient_bytes / 1e6:.1f} MB", time["alone"], time["silent"], time["ddp gloo"],
            f"{row.ratios['exchange gloo']:.1%}", time["ddp hcomm"], f"{row.ratios['exchange hcomm']:.1%}",
            met["exchange hcomm"], time["bucket"], f"{row.ratios['bucket']:.2f}", met["bucket"],
        )  # fmt: skip
        sharded.add_row(
            row.model, time["fsdp gloo"],
            time["fsdp hcomm"], f"{row.ratios['fsdp hcomm']:.2f}", met["fsdp hcomm"],
            time["fsdp shared"], f"{row.ratios['fsdp shared']:.2f}", met["fsdp shared"],
        )  # fmt: skip
    return [parallel, sharded]


def _verdict(met: bool) -> Text:
    return Text("yes", "green") if met else Text("MISSED", "bold red")


def show(
    machine: dict[str, Any], rows: Sequence[Row], foreign: float, problems: Sequence[str], found: list[Table]
) -> None:
    """Print where it was measured, the tables, and what is to be known about them."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    settings = (
        " ".join(f"{name}={value}" for name, value in machine["settings"].items()) or "default settings"
    )
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GB, {machine['kernel']}; "
        f"{versions}; {settings}; {machine['date']}"
    )
    for table in found:
        console.print(table)
    verdicts = [good for row in rows for good in row.met.values()]
    console.print(
        f"Targets: exchange at most {EXCHANGE:.0%} of the step, bucket at most {BUCKET} of alone, FSDP2 at most {FSDP} "
        f"of gloo: {sum(verdicts)} of {len(verdicts)} are met."
    )
    if foreign >= 0.05:
        console.print(Text(f"Other work took up to {foreign:.0%} of the machine meanwhile.", "yellow"))
    for problem in problems:
        console.print(Text(f"FAILED: {problem}", "red"))


def _some(text: str) -> list[str]:
    unknown = sorted(set(text.split(",")) - set(MODELS))
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no model is called {', '.join(unknown)}; known: {', '.join(MODELS)}"
        )
    return text.split(",")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.training", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--models", type=_some, default=list(MODELS), help=f"of {','.join(MODELS)} (default: all)"
    )
    parser.add_argument("--ranks", type=int, default=2, help="on this host (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="launches of each model (default 3)")
    parser.add_argument("--steps", type=int, default=15, help="timed in each launch (default 15)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--strict", action="store_true", help="exit with 3 when a target is missed")
    options = parser.parse_args(arguments)
    if options.ranks < 2 or options.rounds < 1 or options.steps < 1:
        parser.error("needs at least 2 ranks, 1 round and 1 step")
    if importlib.util.find_spec("torch") is None:
        parser.error("torch is not installed, and gloo is part of it: make bench installs it")
    machine = describe(("torch",))
    rows, foreign, problems = measure(
        options.models, options.ranks, options.rounds, options.steps, Console(stderr=True)
    )
    show(machine, rows, foreign, problems, tables(rows, options.ranks, options.steps, options.rounds))
    if options.json:
        kept = [{**vars(row), "met": row.met} for row in rows]
        text = {"machine": machine, "foreign": foreign, "problems": problems, "rows": kept}
        options.json.write_text(json.dumps(text, indent=1) + "\n")
    if problems:
        return 1
    return 3 if options.strict and not all(good for row in rows for good in row.met.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
