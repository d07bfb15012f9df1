"""The figures with a target of their own: the 8-byte call, the import, init(), and growth of memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from benchmarks.jobs import ROOT, JobFailed, run_job
from benchmarks.results import Figure, Report
from benchmarks.sweep import TARGET_RANKS

SMALL_CALL = 8
CALL_SECONDS = 3e-6
IMPORT_SECONDS = 0.15
INIT_SECONDS = 1.0
INIT_RANKS = 4
GROWTH_BYTES = 5 << 20
GROWTH_RANKS = 2
WARM_UP = 100
_TIMEOUT = 60.0

#: Times the import inside a fresh interpreter; fails if it brought torch along.
_IMPORT = """
import sys, time
start = time.perf_counter()
import hcomm
print(time.perf_counter() - start)
sys.exit("import hcomm imported torch" if "torch" in sys.modules else 0)
"""


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    imports: int
    inits: int
    calls: int

    @property
    def launches(self) -> int:
        """How often `advance` is called."""
        return self.imports + self.inits + 1


FULL = Effort(imports=10, inits=5, calls=10_000)
QUICK = Effort(imports=3, inits=1, calls=500)


def measure_figures(report: Report, effort: Effort, advance: Callable[[str], None]) -> None:
    """Measure all of them; adds figures, and problems if there are any. The sweep must have been made."""
    small_call(report)
    report.figures.append(import_time(report, effort.imports, advance))
    report.figures.append(init_time(report, effort.inits, advance))
    report.figures.append(growth(report, effort.calls, advance))


def small_call(report: Report) -> None:
    """Add the sweep's 8-byte row as a figure, if that size was measured."""
    for row in report.rows:
        if row.transport == "auto" and row.nbytes == SMALL_CALL:
            what = f"all_reduce of {SMALL_CALL} bytes, {report.ranks} ranks, {row.backend}"
            target = CALL_SECONDS if report.ranks == TARGET_RANKS else None
            report.figures.append(Figure("small_call", what, "s", row.hcomm, target, row.hcomm_rounds))


def import_time(report: Report, processes: int, advance: Callable[[str], None]) -> Figure:
    """Wall time of `import hcomm` inside fresh processes."""
    samples = []
    for number in range(processes):
        advance(f"import hcomm, process {number + 1}")
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        if done.returncode:
            report.problems.append(f"import hcomm: {done.stderr.strip()}")
        else:
            samples.append(float(done.stdout))
    what = f"import hcomm, without torch (median of {processes} processes)"
    return Figure("import", what, "s", median(samples) if samples else None, IMPORT_SECONDS, samples)


def init_time(report: Report, launches: int, advance: Callable[[str], None]) -> Figure:
    """Wall time of init() on the slowest rank."""
    samples = []
    for number in range(launches):
        advance(f"init() of {INIT_RANKS} ranks, launch {number + 1}")
        try:
            outcome = run_job("init", INIT_RANKS, {}, seconds=_TIMEOUT)
        except JobFailed as failure:
            report.problems.append(f"init: {failure}")
            continue
        report.foreign = max(report.foreign, outcome.foreign)
        samples.append(max(rank["seconds"] for rank in outcome.ranks))
    what = f"init() of {INIT_RANKS} ranks on one host, slowest rank (median of {launches} launches)"
    return Figure("init", what, "s", median(samples) if samples else None, INIT_SECONDS, samples)


def growth(report: Report, calls: int, advance: Callable[[str], None]) -> Figure:
    """Growth of RSS and of shared mappings, of the rank that grew most."""
    advance(f"{calls} mixed calls")
    samples: list[float] = []
    try:
        outcome = run_job("growth", GROWTH_RANKS, {"calls": calls, "warm_up": WARM_UP}, seconds=3 * _TIMEOUT)
    except JobFailed as failure:
        report.problems.append(f"growth: {failure}")
    else:
        report.foreign = max(report.foreign, outcome.foreign)
        samples = [float(rank["rss"] + rank["shared"]) for rank in outcome.ranks]
    what = (
        f"growth of RSS + shared memory over {calls} mixed calls after {WARM_UP}, "
        f"the greater of {GROWTH_RANKS} ranks"
    )
    return Figure("growth", what, "B", max(samples) if samples else None, GROWTH_BYTES, samples)
