"""What the measurement of a job tells: plain values that travel between processes as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class RankInfo:
    """Where a rank runs."""

    rank: int
    host: str
    local_rank: int
    pid: int


@dataclass(frozen=True)
class Pair:
    """Two ranks and what connects them.

    Attributes:
        a, b: global ranks, a < b.
        transport: `shm` or `tcp`.
        reason: why it is not shared memory; '' if it is.
        latency: seconds one way, half of an 8-byte round trip.
        bandwidth: bytes per second, large messages, one direction at a time.
        access: what reading each other's memory said: `ok`, an error text, or '' where it was not tried.
    """

    a: int
    b: int
    transport: str
    reason: str
    latency: float
    bandwidth: float
    access: str


@dataclass(frozen=True)
class Reduction:
    """An all_reduce of float32, sum: bytes per rank, median seconds, bytes/s as nccl-tests count them."""

    nbytes: int
    seconds: float
    algbw: float
    busbw: float


@dataclass(frozen=True)
class Measurement:
    """All of it: `hosts` are `topology.probe.Machine` as plain data, in the order of their lowest rank."""

    backend: str
    ranks: tuple[RankInfo, ...]
    pairs: tuple[Pair, ...]
    reductions: tuple[Reduction, ...]
    hosts: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Measurement:
        """The inverse of `as_dict`."""
        return Measurement(
            backend=data["backend"],
            ranks=tuple(RankInfo(**entry) for entry in data["ranks"]),
            pairs=tuple(Pair(**entry) for entry in data["pairs"]),
            reductions=tuple(Reduction(**entry) for entry in data["reductions"]),
            hosts=tuple(data["hosts"]),
        )
