"""The operations that are measured, with nccl-tests' definitions of their size and of bus bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hcomm.errors import UnsupportedOperator
from hcomm.operators import check


def _all_reduce(n: int) -> float:
    return 2 * (n - 1) / n


def _all_but_own(n: int) -> float:
    return (n - 1) / n


def _whole(n: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Definition:
    """One operation.

    Attributes:
        name: as users write it.
        factor: of the number of ranks; busbw = algbw * factor.
        divided: the size S is that of all ranks' blocks together, and `count` is the block of one rank.
        reduces: it has an operator.
        rooted: it has a root.
        sized: it moves data at all.
        in_place: there is such a form: the input lies where the output comes.
    """

    name: str
    factor: Callable[[int], float]
    divided: bool = False
    reduces: bool = False
    rooted: bool = False
    sized: bool = True
    in_place: bool = True


DEFINITIONS: dict[str, Definition] = {
    entry.name: entry
    for entry in (
        Definition("all_reduce", _all_reduce, reduces=True),
        Definition("broadcast", _whole, rooted=True),
        Definition("reduce", _whole, reduces=True, rooted=True),
        Definition("all_gather", _all_but_own, divided=True),
        Definition("reduce_scatter", _all_but_own, divided=True, reduces=True),
        Definition("all_to_all", _all_but_own, divided=True, in_place=False),
        Definition("gather", _all_but_own, divided=True, rooted=True),
        Definition("scatter", _all_but_own, divided=True, rooted=True),
        Definition("barrier", _whole, sized=False, in_place=False),
        Definition("send_recv", _whole, in_place=False),
        Definition("ping_pong", _whole, in_place=False),
    )
}


def elements(definition: Definition, nbytes: int, itemsize: int, ranks: int) -> tuple[int, int]:
    """The size that is really measured for `nbytes`, which is rounded down to whole elements of all ranks.

    Returns:
        (count, size in bytes): count is nccl-tests' column: of one rank's block where the size is divided.
    """
    if not definition.sized:
        return 0, 0
    parts = ranks if definition.divided else 1
    count = nbytes // (itemsize * parts)
    return count, count * itemsize * parts


def accepts(operator: str, dtype: str) -> bool:
    """Whether the operator means something for the type."""
    try:
        check(operator, dtype)
    except UnsupportedOperator:
        return False
    return True
