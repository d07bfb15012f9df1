"""Algorithms of users: registered like the built-in ones, and proved before they may be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..codes import OPERATIONS
from . import registry
from .builder import Requirement
from .registry import LINKS, Algorithm, Formula, Writer

#: World sizes for which an algorithm is proved when nothing is said.
SIZES = range(1, 9)


def algorithm(
    operation: str,
    *,
    name: str | None = None,
    requires: Requirement = LINKS,
    reduces_once: bool = False,
    formula: Formula | None = None,
    even_only: bool = False,
    sizes: Iterable[int] = SIZES,
) -> Callable[[Writer], Writer]:
    """Register an algorithm of your own: a function that writes the program of one rank with a `Builder`.

    It is proved for worlds of `sizes` ranks before it is registered, on one host and, if it needs no shared memory,
    on as many hosts as ranks. All ranks of a job must register the same, before the first call that uses it. From
    then on `algorithm="mine"` selects it for a call or a group, and HCOMM_ALLREDUCE_ALGO=mine for a job.

    Args:
        operation: the collective, such as `all_reduce`.
        name: what it is called; default: the name of the function.
        requires: LINKS (anything), SHARED_MEMORY (all ranks on one host) or ACCESS (ordinary memory of peers).
        reduces_once: it adds all contributions in rank order and rounds once. Nobody checks this.
        formula: what each rank has to do, a `Volume` for its Builder; proved as well.
        even_only: an all_to_all that needs blocks of one length.
        sizes: world sizes to prove it for; empty: none.

    Raises:
        ValueError: there is no such operation, the name is taken by another module, or the function made a mistake.
        VerificationError: it is wrong; the message names rank, step and region. It is not registered.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"unknown operation '{operation}'; known: {', '.join(OPERATIONS)}")

    def register(write: Writer) -> Writer:
        entry = Algorithm(
            operation, name or write.__name__, write, requires, reduces_once, formula, even_only
        )
        registry.algorithms()  # the built-in ones come first, so that their names are taken
        registry.check_free(entry)
        _prove(entry, sizes)
        registry.add(entry)
        return write

    return register


def _prove(entry: Algorithm, sizes: Iterable[int]) -> None:
    from .verify import verify

    for size in sizes:
        verify(entry, size)
        if entry.requires is LINKS and size > 1:
            verify(entry, size, [(rank,) for rank in range(size)])
