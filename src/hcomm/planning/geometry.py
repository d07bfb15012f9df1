"""Where the regions of a program lie once the sizes of an operation are known.

The same arithmetic as in the C++ engine, in Python's unbounded integers; `verify` plays programs with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from .program import IN_PLACE, Block, Part, Region, Space


def even_offset(count: int, index: int, parts: int, align: int) -> int:
    """First element of even chunk `index` of `parts` of a vector of `count` elements.

    Chunks begin on multiples of `align` elements (64 bytes), so that no two ranks write to one cache line; "chunk
    `parts`" begins at the end of the vector.
    """
    return count if index == parts else count * index // parts // align * align


def bounds(lengths: Sequence[int]) -> tuple[int, ...]:
    """Block boundaries: 0 and the running sums of `lengths`."""
    return (0, *accumulate(lengths))


@dataclass(frozen=True)
class Sizes:
    """The sizes of one operation on all ranks, in elements.

    Attributes:
        count: elements of the vector (all_reduce, broadcast, reduce), else 0.
        n_in, n_out: per rank, elements of input and output.
        bounds_in, bounds_out: per rank, the block boundaries of input and output, where they have blocks.
        align: elements to which even chunks are aligned.
        in_place: input and output share memory, as MPI_IN_PLACE has it: the smaller is a part of the larger.
    """

    operation: str
    count: int
    n_in: tuple[int, ...]
    n_out: tuple[int, ...]
    bounds_in: tuple[tuple[int, ...], ...] = ()
    bounds_out: tuple[tuple[int, ...], ...] = ()
    align: int = 1
    in_place: bool = False
    root: int = 0
    _longest: dict[Block, int] = field(default_factory=dict, compare=False, repr=False)

    def extent(self, rank: int, region: Region) -> tuple[int, int]:
        """(offset, length) of a region in a program of `rank`; the offset is 0 in slots."""
        begin, end = self._interval(rank, region.part, region.begin, region.end, region.parts)
        return (begin if region.slot == IN_PLACE else 0), end - begin

    def place(self, owner: int, space: Space) -> tuple[int, int]:
        """(memory, offset) of the first element of INPUT or OUTPUT: memory 0 and 1, or 1 for both in place."""
        if not self.in_place or (space is Space.OUTPUT and not self.n_out[owner]):
            return int(space), 0
        if self.operation in ("all_gather", "gather") and space is Space.INPUT and self.n_out[owner]:
            return 1, self.bounds_out[owner][owner]
        if self.operation in ("reduce_scatter", "scatter") and space is Space.OUTPUT and self.n_in[owner]:
            return 1, self.bounds_in[owner][owner]
        return 1, 0

    def longest(self, block: Block) -> int:
        """Elements of the longest region that any rank has in the place of one of this block's."""
        if block not in self._longest:
            kinds = {(r.part, r.end - r.begin, r.parts) for step in block.steps for r in step.dst + step.src}
            self._longest[block] = max((self._longest_of(*kind) for kind in kinds), default=0)
        return self._longest[block]

    def _longest_of(self, part: Part, span: int, parts: int) -> int:
        ranks = range(len(self.n_in))
        starts = range(parts - span + 1) if part not in (Part.IN_ALL, Part.OUT_ALL) else range(1)
        if part is Part.EVEN:
            ranks = range(1)
        lengths = []
        for rank in ranks:
            for start in starts:
                begin, end = self._interval(rank, part, start, start + span, parts)
                lengths.append(end - begin)
        return max(lengths)

    def _interval(self, rank: int, part: Part, begin: int, end: int, parts: int) -> tuple[int, int]:
        if part is Part.IN_ALL:
            return 0, self.n_in[rank]
        if part is Part.OUT_ALL:
            return 0, self.n_out[rank]
        if part is Part.EVEN:
            first = even_offset(self.count, begin, parts, self.align)
            return first, first if begin == end else even_offset(self.count, end, parts, self.align)
        tables = self.bounds_in if part is Part.TABLE_IN else self.bounds_out
        return tables[rank][begin], tables[rank][end]


def vector(
    operation: str, size: int, count: int, root: int = 0, align: int = 1, in_place: bool = False
) -> Sizes:
    """Sizes of all_reduce, broadcast, reduce of `count` elements (or of a barrier)."""
    whole = (count,) * size
    n_out = tuple(count * (r == root) for r in range(size)) if operation == "reduce" else whole
    same = operation in ("all_reduce", "broadcast") or in_place
    return Sizes(operation, count, whole, n_out, align=align, in_place=same, root=root)


def blocks(operation: str, lengths: Sequence[int], root: int = 0, in_place: bool = False) -> Sizes:
    """Sizes of all_gather, gather, reduce_scatter, scatter where `lengths` are the blocks of the big side."""
    size, table = len(lengths), bounds(lengths)
    rooted = operation in ("gather", "scatter")
    big = tuple(table[-1] * (not rooted or r == root) for r in range(size))
    # Every rank knows all lengths, so ranks between the root and others can pass blocks on.
    tables = (table,) * size
    if operation in ("all_gather", "gather"):
        return Sizes(operation, 0, tuple(lengths), big, bounds_out=tables, in_place=in_place, root=root)
    return Sizes(operation, 0, big, tuple(lengths), bounds_in=tables, in_place=in_place, root=root)


def exchange(lengths: Sequence[Sequence[int]]) -> Sizes:
    """Sizes of all_to_all where rank q sends `lengths[q][r]` elements to rank r."""
    ins = tuple(bounds(row) for row in lengths)
    outs = tuple(bounds([row[r] for row in lengths]) for r in range(len(lengths)))
    return Sizes(
        "all_to_all", 0, tuple(t[-1] for t in ins), tuple(t[-1] for t in outs), bounds_in=ins, bounds_out=outs
    )
