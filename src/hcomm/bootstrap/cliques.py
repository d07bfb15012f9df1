"""Host cliques: which members of a group all share memory with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hcomm.errors import HcommError, TransportUnavailable


@dataclass(frozen=True)
class Agreement:
    """What all members of a group compute alike.

    Attributes:
        cliques: a partition of range(size), in group ranks.
        access: all members of each clique can read each other's ordinary memory.
    """

    cliques: tuple[tuple[int, ...], ...]
    access: bool


def find_cliques(size: int, shared: Sequence[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    """Partition range(size) greedily from the lowest rank: a rank joins the first clique with *all* of whose
    members it shares memory.

    Args:
        size: members.
        shared: for each rank, the ranks it shares memory with; a pair counts when both say so.
    """
    cliques: list[list[int]] = []
    for rank in range(size):
        for clique in cliques:
            if all(other in shared[rank] and rank in shared[other] for other in clique):
                clique.append(rank)
                break
        else:
            cliques.append([rank])
    return tuple(tuple(clique) for clique in cliques)


def agree(ranks: Sequence[int], rows: Sequence[dict[str, Any]], transport: str) -> Agreement | HcommError:
    """The agreement that follows from everybody's findings.

    Args:
        ranks: global ranks in group order.
        rows: for each member, `shared` and `cma` (lists of group ranks) and `reasons` (group rank as text →
            why not).
        transport: `shm` makes every pair that does not share an error.
    """
    shared = [frozenset(row["shared"]) for row in rows]
    cma = [frozenset(row["cma"]) for row in rows]
    cliques = find_cliques(len(ranks), shared)
    if transport == "shm" and len(cliques) > 1:
        return _impossible(ranks, rows, shared)
    access = all(b in cma[a] and a in cma[b] for clique in cliques for a in clique for b in clique if a < b)
    return Agreement(cliques, access)


def _impossible(
    ranks: Sequence[int], rows: Sequence[dict[str, Any]], shared: Sequence[frozenset[int]]
) -> TransportUnavailable:
    for a in range(len(ranks)):
        for b in range(a + 1, len(ranks)):
            if b not in shared[a] or a not in shared[b]:
                reason = rows[a]["reasons"].get(str(b)) or rows[b]["reasons"].get(str(a)) or "reason unknown"
                return TransportUnavailable(
                    f"HCOMM_TRANSPORT=shm was asked for, but ranks {ranks[a]} and {ranks[b]} cannot share "
                    f"memory: {reason}. "
                    "Use HCOMM_TRANSPORT=auto to let such pairs use TCP"
                )
    return TransportUnavailable("HCOMM_TRANSPORT=shm was asked for, but not all ranks can share memory")
