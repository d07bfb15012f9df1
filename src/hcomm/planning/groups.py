"""How a collective uses the groups of a topology: what runs inside the fast groups, and what between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..topology.model import Topology


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
