"""The register of algorithms.

An algorithm may have **options**: keyword arguments of its function, whole numbers (a size in bytes, which may be
written `256KB`) or text, with defaults. `torus2d(grid=2x4)` is how users set them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import RLock

from ..codes import OPERATIONS
from ..config import parse_size
from ..errors import UnknownAlgorithm
from .builder import Builder, Requirement
from .program import Program
from .volume import Volume

#: Any links will do.
LINKS = Requirement.LINKS
#: All ranks must share memory.
SHARED_MEMORY = Requirement.SHARED_MEMORY
#: All ranks must reach each other's ordinary memory.
ACCESS = Requirement.ACCESS

#: Writes the program of one rank; further arguments are options.
Writer = Callable[..., None]
#: What one rank has to do, for the Builder of its rank and the options: see `Volume`.
Formula = Callable[..., Volume]
#: (bytes of the vector, ranks) → options that suit them.
Fit = Callable[[int, int], Mapping[str, int]]
#: Options and their values, by name: hashable, and the same on all ranks.
Options = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True)
class Algorithm:
    """A registered algorithm.

    Attributes:
        reduces_once: every output element is rounded once, from all contributions in rank order.
        formula: what each rank has to do; `verify` counts it. None: not stated.
        even_only: an all_to_all that needs blocks of one length on all ranks.
        fit: options that follow from the size where nobody says what they are.
    """

    operation: str
    name: str
    write: Writer
    requires: Requirement
    reduces_once: bool
    formula: Formula | None = None
    even_only: bool = False
    fit: Fit | None = None

    @property
    def summary(self) -> str:
        """First line of its docstring: what it does and what it costs."""
        return (self.write.__doc__ or "").strip().partition("\n")[0]

    @cached_property
    def defaults(self) -> dict[str, int | str]:
        """Its options and their defaults."""
        _, *options = inspect.signature(self.write).parameters.values()
        return {option.name: option.default for option in options}

    def options(self, given: Mapping[str, str]) -> Options:
        """Parse options.

        Raises:
            UnknownAlgorithm: there is no such option, or its value is no size where one is needed.
        """
        for name in given:
            if name not in self.defaults:
                known = ", ".join(self.defaults) or "none"
                raise UnknownAlgorithm(
                    f"{self.operation} algorithm '{self.name}' has no option '{name}'; known: {known}"
                )
        try:
            return tuple(
                (name, parse_size(text) if isinstance(self.defaults[name], int) else text)
                for name, text in sorted(given.items())
            )
        except ValueError as error:
            listed = ", ".join(f"{name}={text}" for name, text in given.items())
            raise UnknownAlgorithm(
                f"{self.operation} algorithm '{self.name}' does not understand {listed}: expected {error}"
            ) from None

    def fitted(self, options: Options, nbytes: int, size: int) -> Options:
        """`options`, and what follows from `nbytes` and the number of ranks where they say nothing."""
        if self.fit is None:
            return options
        return tuple(sorted({**self.fit(nbytes, size), **dict(options)}.items()))

    def builder(
        self, rank: int, size: int, cliques: Sequence[Sequence[int]] | None = None, root: int = 0
    ) -> Builder:
        """An empty Builder for `rank`. `cliques` defaults to one clique of all ranks.

        Raises:
            ValueError: the algorithm cannot run in such a world.
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
        return p

    def program(
        self,
        rank: int,
        size: int,
        cliques: Sequence[Sequence[int]] | None = None,
        root: int = 0,
        options: Options = (),
    ) -> Program:
        """The program of `rank`. `cliques` defaults to one clique of all ranks.

        Raises:
            ValueError: the algorithm made a mistake, or cannot run in such a world.
        """
        p = self.builder(rank, size, cliques, root)
        self.write(p, **dict(options))
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
    formula: Formula | None = None,
    even_only: bool = False,
    fit: Fit | None = None,
) -> Callable[[Writer], Writer]:
    """Register a function that writes programs for `operation`, under `name` (default: the function's own).

    Raises:
        ValueError: there is no such operation, or the name is taken.
    """

    def register(write: Writer) -> Writer:
        called = name or write.__name__
        add(Algorithm(operation, called, write, requires, reduces_once, formula, even_only, fit))
        return write

    if operation not in OPERATIONS:
        raise ValueError(f"unknown operation '{operation}'; known: {', '.join(OPERATIONS)}")
    return register


def add(entry: Algorithm) -> None:
    """Register `entry`; a module may replace its own.

    Raises:
        ValueError: the name is taken.
    """
    check_free(entry)
    _algorithms[entry.operation, entry.name] = entry


def check_free(entry: Algorithm) -> None:
    """Raise ValueError when the name of `entry` is no word, or is taken by another module."""
    if not re.fullmatch(r"\w[\w.+]*", entry.name):
        raise ValueError(f"'{entry.name}' is no name for an algorithm: use letters, digits and underscores")
    taken = _algorithms.get((entry.operation, entry.name))
    if taken is not None and taken.write.__module__ != entry.write.__module__:
        raise ValueError(f"{entry.operation} algorithm '{entry.name}' is taken by {taken.write.__module__}")


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
