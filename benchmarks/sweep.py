"""all_reduce by size: hcomm beside gloo in interleaved rounds, so that a slow spell of the machine hits both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.jobs import JobFailed, run_job
from benchmarks.results import Report, Row

#: How many times faster than gloo hcomm must be, by what it was told to use; asked for with two ranks. Over sockets
#: both do the same work, and nothing more is asked than not to be slower.
TARGETS = {"auto": 3.0, "tcp": 1.0}
TARGET_RANKS = 2
_LAUNCH_SECONDS = 60.0


@dataclass(frozen=True)
class Contender:
    """A library as it is started; `transport` is what hcomm is told to use."""

    library: str
    transport: str = ""

    @property
    def settings(self) -> dict[str, str]:
        """Variables of its environment."""
        return {"HCOMM_TRANSPORT": self.transport} if self.transport else {}

    def __str__(self) -> str:
        return f"{self.library} ({self.transport})" if self.transport else self.library


CONTENDERS = (
    Contender("hcomm", "auto"),
    Contender("gloo"),
    Contender("hcomm", "tcp"),
)

#: contender, size → each round's median in seconds; None where a round gave none.
Times = dict[tuple[Contender, int], list[float | None]]


def sweep(report: Report, sizes: Sequence[int], budget: float, advance: Callable[[str], None]) -> None:
    """Measure all sizes; adds rows, and problems if there are any.

    Args:
        report: what it is added to; tells ranks and rounds.
        sizes: bytes of the vector on each rank.
        budget: seconds for each size in each launch.
        advance: told what will be done next, before each launch.
    """
    times: Times = {(contender, size): [] for contender in CONTENDERS for size in sizes}
    backends: dict[Contender, str] = {}
    for number in range(report.rounds):
        for contender in CONTENDERS:
            advance(f"all_reduce, round {number + 1}: {contender}")
            found = _launch(report, contender, sizes, budget, backends)
            for size in sizes:
                times[contender, size].append(found.get(size))
    shared, gloo, tcp = CONTENDERS
    for contender in (shared, tcp):
        backend = backends.get(contender, "none")
        for size in sizes:
            report.rows.append(
                _row(contender, backend, size, times[contender, size], times[gloo, size], report.ranks)
            )


def _launch(
    report: Report,
    contender: Contender,
    sizes: Sequence[int],
    budget: float,
    backends: dict[Contender, str],
) -> dict[int, float]:
    """One launch: seconds by size."""
    arguments = {"library": contender.library, "sizes": list(sizes), "budget": budget}
    seconds = _LAUNCH_SECONDS + 10 * budget * len(sizes) + 10 * report.ranks
    try:
        outcome = run_job("all_reduce", report.ranks, arguments, settings=contender.settings, seconds=seconds)
    except JobFailed as failure:
        report.problems.append(f"all_reduce, {contender}: {failure}")
        return {}
    report.foreign = max(report.foreign, outcome.foreign)
    first = outcome.ranks[0]
    backends[contender] = first["backend"]
    found = {}
    for size, timing in zip(sizes, first["timings"], strict=True):
        if timing["seconds"] is None:
            report.problems.append(f"all_reduce, {contender}: wrong result at {size} bytes")
        else:
            found[size] = timing["seconds"]
    return found


def _row(
    contender: Contender,
    backend: str,
    size: int,
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    ranks: int,
) -> Row:
    """Rounds become one row."""
    hcomm = [seconds for seconds in ours if seconds is not None]
    gloo = [seconds for seconds in theirs if seconds is not None]
    ratios = [b / a for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    return Row(
        transport=contender.transport,
        backend=backend,
        nbytes=size,
        hcomm=median(hcomm) if hcomm else None,
        gloo=median(gloo) if gloo else None,
        ratio=median(ratios) if ratios else None,
        target=TARGETS[contender.transport] if ranks == TARGET_RANKS else None,
        hcomm_rounds=hcomm,
        gloo_rounds=gloo,
    )
