"""What comes out of a measurement: plain values that travel between processes as JSON."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from hcomm.bench.definitions import DEFINITIONS

#: Version of the JSON document; it grows when a field is removed or changes its meaning.
VERSION = 1


@dataclass(frozen=True)
class Timing:
    """One form (out of place or in place) of one line at one point.

    Attributes:
        seconds: median over the calls of the slowest rank's time; a ping-pong's is half its round trip.
        least, most: of the calls.
        calls: how many were timed.
        wrong: elements that were wrong, of all ranks and checked calls; None: nothing was checked.
    """

    seconds: float
    least: float
    most: float
    calls: int
    wrong: int | None

    @staticmethod
    def of(seconds: list[float], wrong: int | None) -> Timing:
        """From the slowest rank's times."""
        return Timing(statistics.median(seconds), min(seconds), max(seconds), len(seconds), wrong)


@dataclass(frozen=True)
class Row:
    """One line at one point; sizes in bytes.

    Attributes:
        operation, dtype, operator, root, count, nbytes: of the point, as nccl-tests count them.
        library, algorithm: of the line; algorithm '' is the library's own choice.
        out_of_place, in_place: None where there is no such form.
        note: why there is none.
    """

    operation: str
    dtype: str
    operator: str
    root: int
    count: int
    nbytes: int
    library: str
    algorithm: str
    out_of_place: Timing | None
    in_place: Timing | None
    note: str = ""

    @property
    def name(self) -> str:
        """Of its line."""
        return f"{self.library}:{self.algorithm}" if self.algorithm else self.library

    @property
    def timings(self) -> list[Timing]:
        """Those there are."""
        return [timing for timing in (self.out_of_place, self.in_place) if timing is not None]

    @property
    def best(self) -> Timing | None:
        """The form that people mean: in place where there is one."""
        return self.in_place or self.out_of_place

    @property
    def wrong(self) -> int:
        """Wrong elements in all forms."""
        return sum(timing.wrong or 0 for timing in self.timings)

    def algbw(self, timing: Timing) -> float:
        """Bytes per second: size over time."""
        return self.nbytes / timing.seconds if timing.seconds else 0.0

    def busbw(self, timing: Timing, ranks: int) -> float:
        """Bytes per second that each link must carry, by nccl-tests' factors."""
        return self.algbw(timing) * DEFINITIONS[self.operation].factor(ranks)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Row:
        """The inverse of `dataclasses.asdict`."""
        forms = {name: data[name] and Timing(**data[name]) for name in ("out_of_place", "in_place")}
        return Row(**{**data, **forms})


@dataclass
class Report:
    """All of it.

    Attributes:
        about: where and how it was measured; see `machine.describe` and `sweep.about`.
        rows: in the order in which they were measured.
        foreign: share of the processors that other work took meanwhile, 0 to 1.
    """

    about: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    foreign: float = 0.0

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(self.about["ranks"])

    @property
    def wrong(self) -> int:
        """Wrong elements, all rows together."""
        return sum(row.wrong for row in self.rows)

    @property
    def exit_code(self) -> int:
        """1 when a result was wrong, 2 when nothing could be measured, else 0."""
        if self.wrong:
            return 1
        return 0 if any(row.timings for row in self.rows) else 2

    def bandwidths(self) -> dict[str, float]:
        """Per line, the mean bus bandwidth in bytes per second over all rows and forms that move data."""
        found: dict[str, list[float]] = {}
        for row in self.rows:
            if row.nbytes:
                found.setdefault(row.name, []).extend(row.busbw(t, self.ranks) for t in row.timings)
        return {name: statistics.mean(speeds) for name, speeds in found.items() if speeds}

    def as_dict(self) -> dict[str, Any]:
        """Plain data: sizes in bytes, times in microseconds, bandwidths in GB/s (1e9 bytes)."""
        return {
            "version": VERSION,
            **self.about,
            "rows": [self._row(row) for row in self.rows],
            "avg_busbw_GBps": {name: speed / 1e9 for name, speed in self.bandwidths().items()},
            "foreign": self.foreign,
            "wrong": self.wrong,
            "exit_code": self.exit_code,
        }

    def _row(self, row: Row) -> dict[str, Any]:
        plain = asdict(row)
        for name, timing in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
            if timing is not None:
                plain[name] = {
                    "time_us": timing.seconds * 1e6,
                    "min_us": timing.least * 1e6,
                    "max_us": timing.most * 1e6,
                    "algbw_GBps": row.algbw(timing) / 1e9,
                    "busbw_GBps": row.busbw(timing, self.ranks) / 1e9,
                    "wrong": timing.wrong,
                    "calls": timing.calls,
                }
        return plain
