"""The register of algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import RLock

from ..codes import OPERATIONS
from ..errors import UnknownAlgorithm
from .builder import Builder, Requirement
from .program import Program

#: Any links will do.
LINKS = Requirement.LINKS
#: All ranks must share memory.
SHARED_MEMORY = Requirement.SHARED_MEMORY
#: All ranks must reach each other's ordinary memory.
ACCESS = Requirement.ACCESS

Writer = Callable[[Builder], None]


@dataclass(frozen=True)
class Algorithm:
    """A registered algorithm.

    Attributes:
        reduces_once: every output element is rounded once, from all contributions in rank order.
    """

    operation: str
    name: str
    write: Writer
    requires: Requirement
    reduces_once: bool

    @property
    def summary(self) -> str:
        """First line of its docstring: what it does and what it costs."""
        return (self.write.__doc__ or "").strip().partition("\n")[0]

    def program(
        self, rank: int, size: int, cliques: Sequence[Sequence[int]] | None = None, root: int = 0
    ) -> Program:
        """The program of `rank`. `cliques` defaults to one clique of all ranks.

        Raises:
            ValueError: the algorithm made a mistake, or cannot run in such a world.
        """
        p = Builder(
            self.operation,
            rank,
            size,
            cliques=cliques,
            root=root,
            algorithm=self.name,
            requires=self.requires,
        )
        if self.requires is not Requirement.LINKS and len(p.cliques) > 1:
            raise ValueError(f"{self.operation} algorithm '{self.name}' needs memory shared by all ranks")
        self.write(p)
        return p.build()


_algorithms: dict[tuple[str, str], Algorithm] = {}
_loaded = False
_loading = RLock()


def algorithm(
    operation: str,
    *,
    name: str | None = None,
    requires: Requirement = LINKS,
    reduces_once: bool = False,
) -> Callable[[Writer], Writer]:
    """Register a function that writes programs for `operation`, under `name` (default: the function's own).

    Raises:
        ValueError: there is no such operation, or the name is taken.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"unknown operation '{operation}'; known: {', '.join(OPERATIONS)}")

    def register(write: Writer) -> Writer:
        entry = Algorithm(operation, name or write.__name__, write, requires, reduces_once)
        taken = _algorithms.get((operation, entry.name))
        if taken is not None and taken.write.__module__ != write.__module__:
            raise ValueError(f"{operation} algorithm '{entry.name}' is taken by {taken.write.__module__}")
        _algorithms[operation, entry.name] = entry
        return write

    return register


def algorithms(operation: str | None = None) -> list[Algorithm]:
    """All registered algorithms (of one operation), by operation and name."""
    _load()
    return [a for (o, _), a in sorted(_algorithms.items()) if operation in (None, o)]


def lookup(operation: str, name: str) -> Algorithm:
    """The algorithm called `name`.

    Raises:
        UnknownAlgorithm: there is none; the message lists those there are.
    """
    _load()
    found = _algorithms.get((operation, name))
    if found is None:
        names = ", ".join(a.name for a in algorithms(operation))
        raise UnknownAlgorithm(f"unknown {operation} algorithm '{name}'; known: {names}")
    return found


def _load() -> None:
    # On first use, not on import: the algorithms import this module. Another thread must not see half of them.
    global _loaded
    if not _loaded:
        with _loading:
            if not _loaded:
                from .algorithms import load

                load()
                _loaded = True
