"""The choice by measured costs: every algorithm that can run is priced, and the cheapest taken.

Pricing plays the programs of all ranks, so it is done for small worlds and once for each class of sizes; the table
serves the others. All of it is arithmetic on what all ranks have alike, the agreed costs: ranks choose alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .cost import Scene
from .program import Program
from .registry import Algorithm, Options
from .select import MOST_RANKS, Request, Setting
from .simulate import programs_of, simulate

#: The most steps that are played for one algorithm: some ms.
MOST_STEPS = 2_000
#: The table's choice is kept while nothing is predicted to take less than this part of its time.
MARGIN = 0.95


def size_class(nbytes: int) -> int:
    """The size for which vectors of `nbytes` are priced: the middle of half a power of two, in bytes."""
    if nbytes < 64:
        return nbytes and 64
    power = 1 << nbytes.bit_length() - 1
    return power * 5 // 4 if nbytes < power + power // 2 else power * 7 // 4


def by_cost(
    world: Setting, request: Request, able: Sequence[tuple[Algorithm, Options]], table: Sequence[str]
) -> tuple[str, str] | None:
    """(name, reason) of the cheapest; None where costs say nothing: no choice, too many ranks, uneven blocks.

    Args:
        able: what can run here and may be chosen.
        table: what the table would choose, in order.
    """
    even = request.nbytes > 0 or request.operation == "barrier"
    if world.scene is None or len(able) < 2 or world.size > MOST_RANKS or not even:
        return None
    nbytes = size_class(request.nbytes)
    prices = {
        entry.name: _seconds(entry, options, _Same(world.scene), request.operation, nbytes, request.root)
        for entry, options in able
    }
    best = min(sorted(prices), key=prices.__getitem__)
    usual = next((name for name in table if name in prices), best)
    if prices[best] > MARGIN * prices[usual]:
        best = usual
    return (
        best,
        f"{prices[best] * 1e6:.3g} µs by measured costs; none of {len(prices)} algorithms is clearly cheaper",
    )


class _Same:
    """A scene as a key: the same object is the same scene, and its costs need not be compared."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.scene is self.scene

    def __hash__(self) -> int:
        return id(self.scene)


@lru_cache(maxsize=1024)
def _seconds(
    entry: Algorithm, options: Options, place: _Same, operation: str, nbytes: int, root: int
) -> float:
    try:
        programs = _programs(entry, options, place, root)
        return simulate(programs.__getitem__, place.scene, operation, nbytes, root, most=MOST_STEPS).seconds
    except ValueError:
        return float("inf")


@lru_cache(maxsize=256)
def _programs(entry: Algorithm, options: Options, place: _Same, root: int) -> list[Program]:
    return list(map(programs_of(entry, place.scene, root, options), range(place.scene.size)))
