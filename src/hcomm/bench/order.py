"""What is to be measured: the command line as plain data, which travels to the ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hcomm.bench.definitions import DEFINITIONS, Definition, accepts, elements
from hcomm.codes import DTYPES
from hcomm.planning.registry import algorithms

#: Libraries beside hcomm.
PEERS = ("gloo", "mpi4py")


@dataclass(frozen=True)
class Line:
    """One line of a plot: a library, and for hcomm the algorithm that it is told to use ('' for its own choice)."""

    library: str
    algorithm: str = ""

    def __str__(self) -> str:
        return f"{self.library}:{self.algorithm}" if self.algorithm else self.library


@dataclass(frozen=True)
class Point:
    """One operation at one size."""

    operation: str
    dtype: str
    operator: str
    root: int
    count: int
    nbytes: int

    @property
    def definition(self) -> Definition:
        """Of its operation."""
        return DEFINITIONS[self.operation]


@dataclass(frozen=True)
class Order:
    """Everything that a rank must know.

    Attributes:
        operations, dtypes, operators: names, each combined with each.
        sizes: bytes, ascending.
        root: of rooted operations.
        algorithms: for hcomm: [''] for its own choice, ['all'], or names.
        peers: of PEERS.
        transport: what hcomm is told to use.
        arrays: `torch` or `numpy`.
        zero_copy: hcomm's buffers are from hcomm.empty.
        refill: the whole input is rewritten before each call.
        check: results are compared with expected ones.
        iterations: timed calls of each line at each size; 0: as many as `budget` allows.
        budget: seconds for each line at each size.
        rounds: in which the lines take turns.
    """

    operations: tuple[str, ...]
    dtypes: tuple[str, ...]
    operators: tuple[str, ...]
    sizes: tuple[int, ...]
    root: int
    algorithms: tuple[str, ...]
    peers: tuple[str, ...]
    transport: str
    arrays: str
    zero_copy: bool
    refill: bool
    check: bool
    iterations: int
    budget: float
    rounds: int

    def encode(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> Order:
        """The inverse of `encode`."""
        data: dict[str, Any] = json.loads(text)
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
        return Order(**plain)

    def lines(self, operation: str) -> list[Line]:
        """What is measured side by side."""
        names = self.algorithms
        if operation in ("send_recv", "ping_pong"):
            names = ("",)  # messages are no programs
        elif names == ("all",):
            names = tuple(entry.name for entry in algorithms(operation))
        return [Line("hcomm", name) for name in names] + [Line(peer) for peer in self.peers]

    def points(self, ranks: int) -> Iterator[Point]:
        """All points for a world of `ranks`, in the order in which they are measured."""
        for operation in self.operations:
            definition = DEFINITIONS[operation]
            root = self.root if definition.rooted else -1
            if not definition.sized:
                yield Point(operation, "none", "none", root, 0, 0)
                continue
            for dtype in self.dtypes:
                for operator in self.operators if definition.reduces else ("none",):
                    if definition.reduces and not accepts(operator, dtype):
                        continue
                    seen = set()
                    for size in self.sizes:
                        count, nbytes = elements(definition, size, DTYPES[dtype][1], ranks)
                        if count and count not in seen:
                            seen.add(count)
                            yield Point(operation, dtype, operator, root, count, nbytes)


def steps(begin: int, end: int, factor: float, increment: int = 0) -> tuple[int, ...]:
    """Sizes from `begin` to `end`, each `factor` times the one before, or `increment` more.

    Raises:
        ValueError: they would never reach the end.
    """
    if begin > end:
        raise ValueError(f"the smallest size, {begin} bytes, is above the largest, {end} bytes")
    if not increment and factor <= 1 and begin < end:
        raise ValueError(f"sizes must grow: the factor must be above 1, not {factor:g}")
    sizes = [begin]
    while True:
        size = sizes[-1] + increment if increment else max(sizes[-1] + 1, int(sizes[-1] * factor))
        if size > end:
            return tuple(sizes)
        sizes.append(size)
