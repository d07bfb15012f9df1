"""What each rank writes into its input, and what must come out: NumPy's arithmetic on small whole numbers.

A buffer repeats a tile of a prime number of values, so no block of a round size begins like another. Values depend on
rank and turn: neither a missing contribution, nor one counted twice, nor the result of the call before can pass for a
right one. bfloat16, which NumPy lacks, is its bits in uint16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any

import numpy as np

TILE = 1021
#: Different inputs before the first comes again.
TURNS = 4
#: Largest number up to which a type holds every sum exactly.
_EXACT = {"int8": 127, "uint8": 255, "float16": 2048, "bfloat16": 256}
_MOST_VALUES = 13

Array = np.ndarray[Any, np.dtype[Any]]

_OPERATORS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_BOOL = {"sum": "bor", "max": "bor", "prod": "band", "min": "band"}


def storage(dtype: str) -> np.dtype[Any]:
    """The NumPy type in which elements of `dtype` lie."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def numbers(dtype: str, operator: str, rank: int, ranks: int, turn: int) -> Array:
    """The TILE numbers of one rank as exact int64 (complex128 for complex types)."""
    index = np.arange(TILE, dtype=np.int64)
    if operator == "prod":
        # At each place one rank has something other than 1, so that no product leaves its type.
        mine = (index + turn) % ranks == rank
        found = np.where(mine, 1 + (7 * index + 3 * turn) % 5, 1)
    else:
        most = min(_MOST_VALUES, max(2, _EXACT.get(dtype, 1 << 20) // ranks + 1))
        found = (7 * index + 3 * rank + turn) % most
    if dtype == "bool":
        return (7 * index + 3 * rank + turn + rank * index) % 3 % 2
    if dtype.startswith("complex"):
        other = np.where(found == 1, 0, 2) if operator == "prod" else (5 * index + rank + 2 * turn) % 7
        return found + 1j * other
    return found


def encode(values: Array, dtype: str) -> Array:
    """Numbers as they lie in memory: rounded to nearest even, integers wrapped."""
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype(storage(dtype))


@lru_cache(maxsize=512)
def tile(dtype: str, operator: str, rank: int, ranks: int, turn: int) -> Array:
    """What `rank` writes in a turn."""
    return encode(numbers(dtype, operator, rank, ranks, turn % TURNS), dtype)


@lru_cache(maxsize=128)
def reduced(dtype: str, operator: str, ranks: int, turn: int) -> Array:
    """What a reduction of all ranks' tiles must give."""
    everyone = [numbers(dtype, operator, rank, ranks, turn % TURNS) for rank in range(ranks)]
    rule = _BOOL.get(operator, operator) if dtype == "bool" else operator
    total = reduce(_OPERATORS[rule], everyone)
    if operator != "avg":
        return encode(total, dtype)
    if storage(dtype).kind in "iu" and dtype != "bfloat16":
        wrapped = encode(total, dtype).astype(np.int64)
        return encode(np.sign(wrapped) * (np.abs(wrapped) // ranks), dtype)
    if dtype in ("float16", "bfloat16"):  # divided in float32, rounded once
        return encode(total.astype(np.float32) / np.float32(ranks), dtype)
    if dtype.startswith("complex"):  # part by part
        return encode(total.real / ranks + 1j * (total.imag / ranks), dtype)
    return encode(total / ranks, dtype)


def write(view: Array, values: Array, shift: int = 0) -> None:
    """Fill `view` with the repeated tile, beginning `shift` values after its start."""
    rows, rest, rolled = _laid(view, values, shift)
    rows[:] = rolled
    rest[:] = rolled[: rest.size]


def wrong(view: Array, values: Array, shift: int = 0) -> int:
    """How many elements of `view` are not those of the repeated tile."""
    rows, rest, rolled = _laid(view, values, shift)
    return int(np.count_nonzero(rows != rolled) + np.count_nonzero(rest != rolled[: rest.size]))


def _laid(view: Array, values: Array, shift: int) -> tuple[Array, Array, Array]:
    """Whole tiles as rows, what is left, and the tile as it is met there."""
    whole = view.size // TILE * TILE
    rolled = np.roll(values, -(shift % TILE)) if shift % TILE else values
    return view[:whole].reshape(-1, TILE), view[whole:], rolled


def blocks(view: Array, parts: int) -> Sequence[Array]:
    """Equal parts of `view`, one after the other."""
    width = view.size // parts
    return [view[part * width : (part + 1) * width] for part in range(parts)]
