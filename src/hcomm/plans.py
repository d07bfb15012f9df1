"""Bound programs, kept for the next call of the same shape."""

from __future__ import annotations

import hashlib
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

#: Plans of one generation; at most twice as many are kept per communicator.
CAPACITY = 128


class Signature(NamedTuple):
    """All that a bound program depends on.

    Attributes:
        operation: name in `codes.OPERATIONS`.
        dtype: name in `codes.DTYPES`.
        op: reduction operator, or None.
        root: group rank of the root, -1 if there is none.
        elements: elements that every rank agrees on: of the vector; of the big side of gather-like operations;
            of the input of an even all_to_all, 0 for an uneven one.
        n_in: elements of this rank's input.
        n_out: elements of this rank's output.
        nbytes: bytes of `elements`, by which an algorithm is chosen.
        bounds_in: where each rank's block of the input begins, in elements, and the end; or empty.
        bounds_out: the same of the output.
        agreed: hash of whatever else ranks must agree on; 0 if nothing.
        algorithm: what the call asks for; '' leaves it to the communicator.
    """

    operation: str
    dtype: str
    op: str | None
    root: int
    elements: int
    n_in: int
    n_out: int
    nbytes: int
    bounds_in: tuple[int, ...] = ()
    bounds_out: tuple[int, ...] = ()
    agreed: int = 0
    algorithm: str = ""


class PlanCache(dict[Key, Value], Generic[Key, Value]):
    """A bounded dictionary whose hits cost no more than a dictionary's.

    Two generations stand in for an exact least-recently-used order: when the young one is full it becomes the
    old one, and what is used from the old one moves back. So nothing that is used at least once in `CAPACITY`
    different keys is forgotten.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__()
        self._capacity = capacity
        self._old: dict[Key, Value] = {}

    def __missing__(self, key: Key) -> Value:
        value = self._old.pop(key)
        self[key] = value
        return value

    def __setitem__(self, key: Key, value: Value) -> None:
        if len(self) >= self._capacity and key not in self:
            self._old = dict(self)
            super().clear()
        super().__setitem__(key, value)

    def clear(self) -> None:
        """Forget both generations."""
        self._old = {}
        super().clear()


def agreement(*parts: object) -> int:
    """A hash of data that ranks must agree on: 64 bits, never 0, the same in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
