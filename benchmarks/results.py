"""What the benchmarks found, beside what was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

#: Of the JSON document.
VERSION = 1


@dataclass(frozen=True)
class Row:
    """all_reduce of one size: hcomm beside gloo.

    Attributes:
        transport: what hcomm was told: `auto` or `tcp`.
        backend: what hcomm then used, in its own words.
        nbytes: size of the vector on each rank.
        hcomm: seconds of the slowest rank: each launch's median, the median of these over the rounds.
        gloo: the same of gloo.
        ratio: median of the rounds' ratios gloo/hcomm: how many times faster hcomm is.
        target: the least ratio that was asked for; None where nothing was.
        hcomm_rounds: each round's median.
        gloo_rounds: each round's median.
    """

    transport: str
    backend: str
    nbytes: int
    hcomm: float | None
    gloo: float | None
    ratio: float | None
    target: float | None
    hcomm_rounds: list[float]
    gloo_rounds: list[float]

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        return self.ratio is not None and self.ratio >= self.target


@dataclass(frozen=True)
class Figure:
    """One number that must stay below its target.

    Attributes:
        name: a word for programs.
        what: how it was taken, for people.
        unit: `s` or `B`.
        value: None when it could not be measured.
        target: the most that is allowed; None where nothing was asked for.
        samples: what `value` is the median (of memory: the greatest) of.
    """

    name: str
    what: str
    unit: str
    value: float | None
    target: float | None
    samples: list[float] = field(default_factory=list)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        return self.value is not None and self.value <= self.target


@dataclass
class Report:
    """All of it.

    Attributes:
        machine: see `machine.describe`.
        ranks: of the all_reduce.
        rounds: launches of each library.
        rows: all_reduce by transport and size.
        figures: the others.
        problems: launches that failed and results that were wrong.
        foreign: the greatest share of the machine that other work took during a launch.
    """

    machine: dict[str, Any]
    ranks: int
    rounds: int
    rows: list[Row] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    foreign: float = 0.0

    def verdicts(self) -> Iterator[bool]:
        """Of everything that has a target, whether it is met."""
        for met in (*(row.met for row in self.rows), *(figure.met for figure in self.figures)):
            if met is not None:
                yield met

    def exit_code(self, *, strict: bool) -> int:
        """0 when everything could be measured; 1 when not; 3 when `strict` and a target is missed."""
        if self.problems:
            return 1
        return 3 if strict and not all(self.verdicts()) else 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: seconds and bytes."""
        return {
            "version": VERSION,
            "machine": self.machine,
            "all_reduce": {
                "dtype": "float32",
                "ranks": self.ranks,
                "rounds": self.rounds,
                "input": "rewritten before every call on every rank",
                "rows": [asdict(row) | {"met": row.met} for row in self.rows],
            },
            "figures": [asdict(figure) | {"met": figure.met} for figure in self.figures],
            "foreign": self.foreign,
            "problems": self.problems,
            "met": all(self.verdicts()),
        }
