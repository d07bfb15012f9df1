"""One operation on its buffers: what each rank writes before a call, and what it must find afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hcomm.bench import values
from hcomm.bench.memory import Memory
from hcomm.bench.order import Point
from hcomm.bench.values import Array

#: Sizes of input and output in blocks of `count`, as functions of the number of ranks.
_INPUT_PARTS = ("reduce_scatter", "all_to_all", "scatter")
_OUTPUT_PARTS = ("all_gather", "all_to_all", "gather")


class Buffers:
    """The buffers of one point, on one rank; every line that is measured side by side uses them.

    Attributes:
        source, source_view: the input, as libraries want it and as NumPy sees it.
        target, target_view: the output; in place, it is the input or the input lies in it.
    """

    def __init__(self, point: Point, rank: int, ranks: int, memory: Memory, in_place: bool) -> None:
        count, name = point.count, point.operation
        inputs = count * ranks if name in _INPUT_PARTS else count
        outputs = count * ranks if name in _OUTPUT_PARTS else count
        dtype = "uint8" if point.dtype == "none" else point.dtype
        self.source: Any
        self.target: Any
        if not in_place:
            self.source, self.source_view = memory.new(inputs, dtype)
            self.target, self.target_view = memory.new(outputs, dtype)
        elif inputs >= outputs:
            self.source, self.source_view = memory.new(inputs, dtype)
            own = slice(rank * count, (rank + 1) * count) if inputs > outputs else slice(None)
            self.target, self.target_view = self.source[own], self.source_view[own]
        else:
            self.target, self.target_view = memory.new(outputs, dtype)
            own = slice(rank * count, (rank + 1) * count)
            self.source, self.source_view = self.target[own], self.target_view[own]
        values.write(self.target_view, values.storage(dtype).type(0).reshape(1).repeat(values.TILE))


class Case:
    """A point with its buffers, on one rank.

    Args:
        point: operation, type and size.
        rank, ranks: of the caller, and how many there are.
        memory: where buffers come from.
        in_place: the in-place form.
    """

    def __init__(self, point: Point, rank: int, ranks: int, memory: Memory, in_place: bool) -> None:
        self.point = point
        self.rank = rank
        self.ranks = ranks
        self.in_place = in_place
        buffers = Buffers(point, rank, ranks, memory, in_place)
        self.source, self.target = buffers.source, buffers.target
        self.source_view, self.target_view = buffers.source_view, buffers.target_view
        #: The operator by which inputs are chosen: every one of them has its own values.
        self._operator = point.operator if point.definition.reduces else "sum"

    def refill(self, turn: int) -> None:
        """Write this rank's whole input of a turn."""
        if self.point.count:
            values.write(self.source_view, self._tile(self.rank, turn))

    def wrong(self, turn: int, keeps_input: bool = True) -> int:
        """How many elements on this rank are not what the call of a turn must leave.

        Args:
            turn: of the call.
            keeps_input: a reduce must leave the tensors of other ranks than the root alone.
        """
        if not self.point.count:
            return 0
        if self.point.operation == "reduce" and self.rank != self.point.root and not keeps_input:
            return 0
        rules: dict[str, Callable[[int], int]] = {
            "all_reduce": self._wrong_reduced,
            "reduce": self._wrong_at_root,
            "broadcast": lambda turn: values.wrong(self.target_view, self._tile(self.point.root, turn)),
            "all_gather": self._wrong_gathered,
            "gather": self._wrong_at_root,
            "reduce_scatter": self._wrong_block,
            "all_to_all": self._wrong_exchanged,
            "scatter": self._wrong_scattered,
            "send_recv": lambda turn: values.wrong(
                self.target_view, self._tile((self.rank - 1) % self.ranks, turn)
            ),
            "ping_pong": self._wrong_returned,
        }
        return rules[self.point.operation](turn)

    def _tile(self, rank: int, turn: int) -> Array:
        return values.tile(self.point.dtype, self._operator, rank, self.ranks, turn % values.TURNS)

    def _reduced(self, turn: int) -> Array:
        return values.reduced(self.point.dtype, self._operator, self.ranks, turn % values.TURNS)

    def _wrong_reduced(self, turn: int) -> int:
        return values.wrong(self.target_view, self._reduced(turn))

    def _wrong_at_root(self, turn: int) -> int:
        """The root has the result; the others' inputs are untouched."""
        if self.rank != self.point.root:
            return values.wrong(self.source_view, self._tile(self.rank, turn))
        if self.point.operation == "gather":
            return self._wrong_gathered(turn)
        return self._wrong_reduced(turn)

    def _wrong_gathered(self, turn: int) -> int:
        parts = values.blocks(self.target_view, self.ranks)
        return sum(values.wrong(part, self._tile(rank, turn)) for rank, part in enumerate(parts))

    def _wrong_block(self, turn: int) -> int:
        return values.wrong(self.target_view, self._reduced(turn), self.rank * self.point.count)

    def _wrong_exchanged(self, turn: int) -> int:
        parts = values.blocks(self.target_view, self.ranks)
        shift = self.rank * self.point.count
        return sum(values.wrong(part, self._tile(rank, turn), shift) for rank, part in enumerate(parts))

    def _wrong_scattered(self, turn: int) -> int:
        return values.wrong(self.target_view, self._tile(self.point.root, turn), self.rank * self.point.count)

    def _wrong_returned(self, turn: int) -> int:
        """Rank 0's message, at rank 1 and back again."""
        if self.rank > 1:
            return 0
        return values.wrong(self.target_view, self._tile(0, turn))
