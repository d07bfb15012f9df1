"""How much one rank has to do: what an algorithm says of itself, and what its programs say."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import NamedTuple

from .geometry import Sizes, blocks, exchange, vector
from .program import Kind, Part, Program


class Volume(NamedTuple):
    """The work of one rank. Bytes are multiples of n: the size of the vector, or of the big side.

    Attributes:
        messages: how many it sends; of a tiled block, per tile.
        sent: bytes it sends.
        meets: how often it awaits ranks that share memory; of a tiled block, per tile.
        moved: bytes that its moves read and write.
    """

    messages: float = 0
    sent: float = 0
    meets: float = 0
    moved: float = 0

    def __str__(self) -> str:
        return f"{self.messages:g} messages of {self.sent:.6g} n bytes, {self.meets:g} meets, {self.moved:.6g} n moved"


def even_sizes(operation: str, programs: Sequence[Program], root: int = 0) -> tuple[Sizes, int]:
    """The least sizes that all regions divide evenly, and n."""
    size = len(programs)
    if operation == "all_to_all":
        return exchange([[1] * size] * size), size
    if operation not in ("all_reduce", "broadcast", "reduce", "barrier"):
        return blocks(operation, [1] * size, root), size
    regions = (r for p in programs for b in p.blocks for step in b.steps for r in step.dst + step.src)
    count = lcm(*(region.parts for region in regions if region.part is Part.EVEN))
    return vector(operation, size, count if operation != "barrier" else 0, root), count


def volume(program: Program, rank: int, sizes: Sizes, n: int) -> Volume:
    """What the program of `rank` does, counted step by step."""
    messages = sent = meets = moved = 0
    for block in program.blocks:
        for step in block.steps:
            if step.kind is Kind.SEND:
                messages += 1
                sent += sizes.extent(rank, step.src[0])[1]
            elif step.kind is Kind.MOVE:
                moved += (len(step.src) + len(step.dst)) * sizes.extent(rank, step.src[0])[1]
            elif step.kind in (Kind.MEET, Kind.AWAIT):
                meets += 1
    return Volume(messages, sent / n, meets, moved / n)


def disagreement(operation: str, programs: Sequence[Program], said: Sequence[Volume], root: int = 0) -> str:
    """The first rank whose program does not do what is said of it, in words; empty if there is none."""
    sizes, n = even_sizes(operation, programs, root)
    for rank, program in enumerate(programs):
        done = volume(program, rank, sizes, n)
        if any(abs(a - b) > 1e-9 * max(1, a) for a, b in zip(said[rank], done, strict=True)):
            return f"rank {rank} has {done}, but the formula says {said[rank]}"
    return ""
