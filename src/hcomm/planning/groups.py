"""How a collective uses the groups of a topology: what runs inside the fast groups, and what between them.

Algorithms are told of groups as text, `0+1+2+3/4+5+6+7`, an option like others: part of the key of cached programs and
of the hash by which ranks notice that they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..topology.model import Topology
from .builder import Builder


@dataclass(frozen=True)
class GroupPlan:
    """A collective in levels: inside each fast group first, between the groups next, inside again at the end.

    Attributes:
        groups: ranks that share fast links, a partition of all ranks.
        inside: `direct` where every pair of a group has a link of its own, `ring` where the links close a circle,
            `tree` where they only connect, `none` for groups of one.
        between: `ring`, or `none` for a single group.
        orders: the ranks of each group in the order in which its ring or tree uses them.
        crossing: per position in the groups, the ranks that form one ring between groups. Each such ring carries its
            own part of the vector, and all run at once, so that traffic between groups is pipelined.
    """

    groups: tuple[tuple[int, ...], ...]
    inside: str
    between: str
    orders: tuple[tuple[int, ...], ...]
    crossing: tuple[tuple[int, ...], ...]

    @property
    def text(self) -> str:
        """The groups as algorithms understand them; empty if there are no two of them, or none has two ranks."""
        if len(self.orders) < 2 or all(len(order) < 2 for order in self.orders):
            return ""
        return "/".join("+".join(map(str, order)) for order in self.orders)

    def restricted(self, ranks: Sequence[int]) -> GroupPlan:
        """The same for some of the ranks, which are counted from 0 in the order given."""
        place = {rank: number for number, rank in enumerate(ranks)}

        def kept(groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
            found = (tuple(place[r] for r in group if r in place) for group in groups)
            return tuple(group for group in found if group)

        orders = kept(self.orders)
        # A circle of links that lacks a rank is none any more, but the ranks left still follow each other.
        width = min(map(len, orders), default=0)
        crossing = tuple(tuple(order[p] for order in orders) for p in range(width)) if len(orders) > 1 else ()
        inside = self.inside if any(len(order) > 1 for order in orders) else "none"
        return GroupPlan(kept(self.groups), inside, "ring" if crossing else "none", orders, crossing)

    def __str__(self) -> str:
        lines = []
        if self.inside != "none":
            lines += [f"{self.inside} inside {_ranks(order)}" for order in self.orders if len(order) > 1]
        if self.between != "none":
            lines += [f"{self.between} between groups: {_ranks(ring)}" for ring in self.crossing]
        return "\n".join(lines or ["one rank: nothing to exchange"])


def plan_groups(topology: Topology) -> GroupPlan:
    """The levels that a topology asks for; groups of different shapes use the form that all of them can."""
    groups = topology.fast_groups()
    forms = [_form(topology, group) for group in groups]
    ranking = ("none", "direct", "ring", "tree")
    inside = max((form for form, _ in forms), key=ranking.index)
    orders = tuple(order for _, order in forms)
    if len(groups) == 1:
        return GroupPlan(groups, inside, "none", orders, ())
    width = min(map(len, groups))
    crossing = tuple(tuple(group[place] for group in groups) for place in range(width))
    return GroupPlan(groups, inside, "ring", orders, crossing)


def _form(topology: Topology, group: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    names = topology.devices
    if len(group) == 1:
        return "none", tuple(group)
    near = {a: [b for b in group if b != a and topology.has_link(names[a], names[b])] for a in group}
    if not any(near.values()) or all(len(n) == len(group) - 1 for n in near.values()):
        return "direct", tuple(group)  # without links of their own, devices meet in their host's memory
    order = _circle(near, [group[0]])
    if order:
        return "ring", tuple(order)
    return "tree", tuple(group)


def _circle(near: dict[int, list[int]], path: list[int]) -> list[int]:
    """A way along links through all ranks and back; empty if there is none. Groups are small: 16 at most."""
    if len(path) == len(near):
        return path if path[0] in near[path[-1]] else []
    if len(near) > 16:
        return []
    for rank in near[path[-1]]:
        if rank not in path:
            found = _circle(near, [*path, rank])
            if found:
                return found
    return []


def _ranks(ranks: Sequence[int]) -> str:
    return "ranks " + ", ".join(map(str, ranks))


def groups_of(p: Builder, text: str) -> tuple[tuple[int, ...], ...]:
    """The groups that an option names, or the host cliques when it names none.

    Raises:
        ValueError: they are not a partition of the ranks; names algorithm and rank.
    """
    if not text:
        return p.cliques
    words = [group.split("+") for group in text.split("/")]
    if not all(word.strip().isdecimal() for group in words for word in group):
        p.fail(f"groups={text} is not understood: write 0+1+2+3/4+5+6+7")
    groups = tuple(tuple(map(int, group)) for group in words)
    if sorted(rank for group in groups for rank in group) != list(p.ranks):
        p.fail(f"groups={text} must hold each of the ranks 0..{p.size - 1} once")
    return groups
