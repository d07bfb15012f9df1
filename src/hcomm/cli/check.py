"""`hcomm check`: what this machine offers, what hcomm makes of it, measured."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from hcomm import config
from hcomm.bootstrap.launcher import detect
from hcomm.cli import findings, render
from hcomm.cli.local_job import LocalJob, MeasurementFailed
from hcomm.cli.results import Measurement
from hcomm.errors import HcommError
from hcomm.topology.probe import probe

#: Version of the JSON document; it grows when a field is removed or changes its meaning.
JSON_VERSION = 1
_MOST_RANKS = 8
_STYLES = {"Problem": "bold red", "Cause": "red", "Cure": "yellow", "Note": "yellow", "Result": "green"}

Advance = Callable[[int, int], None]


@click.command()
@click.option(
    "--ranks", type=click.IntRange(2, 256), help="Processes to measure with (default: one per CPU, 2 to 8)."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.option(
    "--env", "show_settings", is_flag=True, help="List every setting with its value, and measure nothing."
)
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=120.0, show_default=True, help="Seconds for all of it."
)
def check(ranks: int | None, as_json: bool, show_settings: bool, timeout: float) -> None:
    """Show what this machine offers and measure what hcomm makes of it.

    Starts the processes it needs. Under torchrun, mpiexec or srun it measures with the processes of that job instead,
    across hosts. Exit code: 0 all is well; 1 a fast path that the machine offers cannot be used; 2 nothing could be
    measured.
    """
    if as_json and show_settings:
        raise click.UsageError(
            "--json and --env exclude each other: --env prints settings, and measures nothing"
        )
    if ranks and show_settings:
        raise click.UsageError("--ranks and --env exclude each other: --env measures nothing")
    try:
        settings = config.load()
        if show_settings:
            _print_settings(settings)
            return
        launch = detect(os.environ)
        if ranks and launch.world_size > 1:
            raise click.UsageError(
                f"--ranks is for a machine without a job: {launch.source} has started {launch.world_size} ranks, and "
                "those are measured"
            )
        if launch.world_size > 1:
            measured = _measure_in_job(settings, first=launch.rank == 0)
        else:
            measured = _measure_here(ranks, settings, timeout)
    except (HcommError, OSError) as error:
        click.echo(f"hcomm check: {error}", err=True)
        sys.exit(2)
    if measured is not None:  # rank 0 speaks
        sys.exit(_report(measured, settings, as_json))


def _measure_here(ranks: int | None, settings: config.Settings, timeout: float) -> Measurement:
    """Start ranks on this host and measure with them."""
    machine = probe(settings.text("VISIBLE_DEVICES"))
    cpus = machine.cpus.allowed
    pinned: tuple[int, ...] = ()
    if machine.devices.restricted and machine.devices.kind == "cpu":
        cpus = pinned = machine.devices.visible
    count = ranks or max(2, min(len(cpus), _MOST_RANKS))
    with LocalJob(count, pinned, timeout) as job, _progress() as advance:
        for message in job.messages():
            if "progress" in message:
                advance(*message["progress"])
            elif "error" in message:
                raise MeasurementFailed(job.explain(str(message["error"]), 0))
            elif "result" in message:
                return Measurement.from_dict(message["result"])
        raise MeasurementFailed(job.explain("rank 0 ended without a result", 0))


def _measure_in_job(settings: config.Settings, first: bool) -> Measurement | None:
    """Measure with the processes of the job that this one belongs to; None unless this is rank 0 (`first`)."""
    from hcomm.cli.measure import measure

    probe(settings.text("VISIBLE_DEVICES"))  # a wrong setting is an error before anything is started
    with _progress(shown=first) as advance:
        return measure(advance)


@contextmanager
def _progress(shown: bool = True) -> Iterator[Advance]:
    """A bar on standard error, on a terminal only."""
    console = Console(stderr=True)
    columns = TextColumn("measuring"), BarColumn(), MofNCompleteColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not (shown and console.is_terminal)
    ) as bar:
        task = bar.add_task("measuring", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _report(measured: Measurement, settings: config.Settings, as_json: bool) -> int:
    """Print everything; the exit code."""
    recommended = findings.recommend(measured)
    problems = findings.problems(measured, settings)
    notes = findings.notes(measured, config.unknown_variables())
    code = 1 if problems else 0
    if as_json:
        plain = measured.as_dict()
        document: dict[str, Any] = {
            "version": JSON_VERSION,
            "recommended": dataclasses.asdict(recommended),
            "all_reduce": plain.pop("reductions"),
            **plain,
            "settings": [dataclasses.asdict(setting) for setting in settings.changed()],
            "problems": [dataclasses.asdict(problem) for problem in problems],
            "notes": notes,
            "exit_code": code,
        }
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return code
    several = len(measured.hosts) > 1
    for machine in measured.hosts:
        _print(render.machine_lines(machine, several))
    _print(render.result_lines(measured, recommended))
    _print(render.setting_lines(settings.changed()))
    _print(("Note", note) for note in notes)
    _print(render.problem_lines(problems))
    return code


def _print(lines: Iterator[render.Line]) -> None:
    """One line each, whatever the width of the terminal: `grep` works on lines."""
    console = Console(soft_wrap=True, highlight=False)
    for topic, text in lines:
        console.print(Text.assemble((f"{topic}: ", _STYLES.get(topic, "bold")), text))


def _print_settings(settings: config.Settings) -> None:
    for setting in config.SETTINGS:
        value = "(secret)" if setting.secret else str(settings[setting.name])
        names = " ".join(setting.variables)
        click.echo(f"{names} = {value or '(empty)'}  # {setting.help}")


def main() -> None:
    """Entry point of `hcomm-check`."""
    check(prog_name="hcomm-check")


if __name__ == "__main__":
    main()
