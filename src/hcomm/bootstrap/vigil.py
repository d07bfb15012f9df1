"""Whether a rank that a wire-up waits for is still there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from hcomm.errors import HcommError, InitError, PeerLost

if TYPE_CHECKING:
    from hcomm.bootstrap.dialing import Contact, Group, Home

_SOCKETS = "/proc/net/unix"


class Vigil:
    """Looked at while a wire-up waits: raises as soon as an awaited rank is known to be gone.

    Known means: its connection in the communicator that the group is made from has ended, or it is on this
    kernel and network and its listener, which lives as long as its process takes part in the job, is closed.

    Args:
        home: this process.
        group: what is being wired.
        lost: global ranks whose connection has ended.
    """

    def __init__(self, home: Home, group: Group, lost: Callable[[], Iterable[int]]) -> None:
        self._home = home
        self._group = group
        self._lost = lost
        self._suspects: set[int] = set()

    def look(self, awaited: set[int]) -> None:
        """Raise for awaited ranks that were gone in this look and the one before.

        Between two looks whatever a rank has sent before it left can still arrive.

        Raises:
            PeerLost: a member of a group is gone.
            InitError: a rank of the world is gone.
        """
        gone = self.gone(awaited)
        certain, self._suspects = gone & self._suspects, gone
        if certain:
            raise self.error(certain)

    def gone(self, awaited: set[int]) -> set[int]:
        """Those of the awaited ranks that are gone for all that can be known now."""
        return awaited & (set(self._lost()) | self._unheard(awaited))

    def error(self, gone: Iterable[int]) -> HcommError:
        """What to raise for ranks that are gone."""
        ranks = tuple(sorted(gone))
        who = " and ".join(self._who(rank) for rank in ranks)
        verb = "has" if len(ranks) == 1 else "have"
        text = f"rank {self._home.rank}: {self._group.title()} cannot be connected: {who} {verb} ended or left the job"
        return PeerLost(text, ranks) if self._group.parent else InitError(text)

    def _who(self, rank: int) -> str:
        contact = self._home.contacts[rank]
        return f"rank {rank} (pid {contact.pid} on {contact.hostname})"

    def _unheard(self, awaited: set[int]) -> set[int]:
        """Ranks of this kernel and network whose listening socket the kernel does not list any more."""
        mine = self._home.contacts[self._home.rank]
        near = [contact for rank in awaited if _same_network(mine, contact := self._home.contacts[rank])]
        if not near:
            return set()
        try:
            with open(_SOCKETS, "rb") as file:
                listed = file.read()
        except OSError:
            return set()
        if mine.unix_name.encode() not in listed:  # a list without this process says nothing about others
            return set()
        return {contact.rank for contact in near if contact.unix_name.encode() not in listed}


def _same_network(mine: Contact, other: Contact) -> bool:
    return bool(mine.boot_id and mine.netns) and (mine.boot_id, mine.netns) == (other.boot_id, other.netns)
