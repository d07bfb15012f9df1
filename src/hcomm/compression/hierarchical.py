"""Compressed exchanges among several hosts of several ranks: one rank of each host speaks for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hcomm import buffers
from hcomm.compression.exchange import Exchange, new_array
from hcomm.errors import CommunicatorError, HcommError
from hcomm.work import Work

if TYPE_CHECKING:
    from hcomm.communicator import Communicator

#: Communicator → this rank's communicators inside its host and, on the first rank of a host, between hosts.
_made: weakref.WeakKeyDictionary[Communicator, tuple[Communicator, Communicator | None]] = (
    weakref.WeakKeyDictionary()
)


def is_hierarchical(communicator: Communicator, dtype: str) -> bool:
    """Whether vectors of this type are added inside hosts first: several hosts, of equally many ranks above one.

    The sums of a host are rounded to the type, which for 16-bit floats would be one rounding more.
    """
    sizes = {len(clique) for clique in communicator.cliques}
    return (
        len(communicator.cliques) > 1 and len(sizes) == 1 and sizes != {1} and dtype in ("float32", "float64")
    )


def _groups(communicator: Communicator) -> tuple[Communicator, Communicator | None]:
    found = _made.get(communicator)
    if found is None:
        clique = next(members for members in communicator.cliques if communicator.rank in members)
        inside = communicator.new_group(clique, name=_named(communicator, "inside a host"))
        between = None
        if communicator.rank == clique[0]:
            leaders = [members[0] for members in communicator.cliques]
            between = communicator.new_group(leaders, name=_named(communicator, "between hosts"))
        found = _made[communicator] = inside, between
        communicator._helpers += [group for group in found if group is not None]
    return found


def _named(communicator: Communicator, what: str) -> str:
    return f"{communicator.name or 'compressed gradients'}, {what}"


class Hierarchical:
    """An `Exchange`: full precision inside a host, fewer bytes between the hosts' first ranks.

    Collective to make for the first time on a communicator: it makes groups.

    Args:
        communicator: for which `is_hierarchical` holds.
        op: sum or avg.
        wire: type of the elements that travel between hosts.
        make: makes the exchange between hosts.
    """

    def __init__(
        self, communicator: Communicator, op: str, wire: str, make: Callable[[Communicator], Exchange]
    ) -> None:
        self._op = op
        self._wire = wire
        self._inside, between = _groups(communicator)
        self._between = None if between is None else make(between)
        self._all = [group for group in (self._inside, between, communicator) if group is not None]
        self._vector: Any = None
        self._added: Work | None = None

    def start(self, vector: Any) -> None:
        """Likewise; see `Exchange`. The rank that speaks for its host waits for the others' vectors."""
        # Refused on all ranks alike, not only on the one that needs the type.
        new_array(buffers.pack(vector, writable=True), 0, self._wire)
        self._vector = vector
        with self._failing_together():
            self._added = self._inside.reduce_async(vector, 0, self._op)
            if self._between is not None:
                self._added.wait()
                self._between.start(vector)

    def turn(self) -> None:
        """Likewise; see `Exchange`."""
        if self._between is not None:
            with self._failing_together():
                self._between.turn()

    def finish(self) -> None:
        """Likewise; see `Exchange`."""
        added, self._added = self._added, None
        vector, self._vector = self._vector, None
        if added is None:
            return
        with self._failing_together():
            added.wait()
            if self._between is not None:
                self._between.finish()
            self._inside.broadcast(vector, 0)

    @contextmanager
    def _failing_together(self) -> Iterator[None]:
        """What fails in one of the groups fails in all: ranks of other hosts and of this one wait in them."""
        try:
            yield
        except CommunicatorError as error:
            for group in self._all:
                with suppress(HcommError):  # it is broken already
                    group.abort(f"a compressed exchange failed: {error}")
            raise
