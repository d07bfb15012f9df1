"""Programs: what one rank does in one collective, as data.

A `Program` is a list of blocks of steps over named regions. Regions are named in units that do not depend on the
element count ("chunk 2 of 4", "block of rank 3"), so one program serves every size of its class. The C++ engine reads
the encoded form; `verify` reads the objects.

A **tiled** block cuts every region into tiles of T bytes and runs, for `i in range(tiles + stages - 1)`, each step on
tile `i - step.stage` where that tile exists. Slot `s` of tile `t` is then physical slot `s * buffers + t % buffers`.

Regions and steps are named tuples, which cost a fraction of a frozen dataclass to make: a ring of 1024 ranks has
4092 steps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

MAGIC = 0x48434D50  # "HCMP"
VERSION = 1
#: Flag of a MOVE whose result is complete: averages are divided here.
FINAL = 1
#: Stage of a synchronising step that stands in every iteration of a tiled block but the last.
EVERY = -1
#: Owner of a region in the rank's own memory.
OWN = -1
#: Slot of a region that lies at its own place in INPUT or OUTPUT.
IN_PLACE = -1


class Space(IntEnum):
    """The memories of a rank. WINDOW is seen by all ranks of its host clique."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    WINDOW = 3


class Part(IntEnum):
    """How a region's place and length follow from the sizes of the operation."""

    IN_ALL = 0
    OUT_ALL = 1
    EVEN = 2
    TABLE_IN = 3
    TABLE_OUT = 4


class Kind(IntEnum):
    """The steps."""

    SEND = 1
    RECV = 2
    RECV_REDUCE = 3
    MOVE = 4
    POST = 5
    AWAIT = 6
    MEET = 7
    FINISH = 8


class Region(NamedTuple):
    """A piece of memory of this rank (`owner` -1) or, in a move only, of a rank of the same host."""

    space: Space
    owner: int
    slot: int
    part: Part
    begin: int = 0
    end: int = 0
    parts: int = 0

    def __str__(self) -> str:
        name = self.space.name.lower()
        if self.slot != IN_PLACE:
            name += f"[{self.slot}]"
        if self.owner != OWN:
            name += f" of rank {self.owner}"
        if self.part is Part.EVEN:
            last = f"-{self.end - 1}" if self.end - self.begin > 1 else ""
            return (
                f"{name} chunk {self.begin}{last}/{self.parts}"
                if self.end > self.begin
                else f"{name} nothing"
            )
        if self.part in (Part.TABLE_IN, Part.TABLE_OUT):
            last = f"-{self.end - 1}" if self.end - self.begin > 1 else ""
            return f"{name} block {self.begin}{last}"
        return name


class Step(NamedTuple):
    """One step. SEND has its region in `src`; RECV, RECV_REDUCE and FINISH in `dst`; POST, AWAIT and MEET `ranks`."""

    kind: Kind
    stage: int = 0
    peer: int = -1
    flags: int = 0
    dst: tuple[Region, ...] = ()
    src: tuple[Region, ...] = ()
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        name = self.kind.name.lower()
        if self.kind is Kind.SEND:
            return f"{name} {self.src[0]} to rank {self.peer}"
        if self.kind in (Kind.RECV, Kind.RECV_REDUCE):
            return f"{name} {self.dst[0]} from rank {self.peer}"
        if self.kind is Kind.MOVE:
            to, of = ", ".join(map(str, self.dst)), " + ".join(map(str, self.src))
            return f"{name} {to} <- {of}" + (" (complete)" if self.flags & FINAL else "")
        if self.kind is Kind.FINISH:
            return f"{name} {self.dst[0]}"
        return f"{name} ranks {', '.join(map(str, self.ranks))}"


@dataclass(frozen=True)
class Block:
    """Steps that run once (`tile_bytes` 0), or tile by tile with `buffers` copies of each slot and `stages` stages."""

    steps: tuple[Step, ...]
    tile_bytes: int = 0
    buffers: int = 1
    stages: int = 1

    def schedule(self, tiles: int) -> Iterator[tuple[int, int]]:
        """(index of step, tile) in the order of execution; untiled blocks have the one tile 0."""
        if not self.tile_bytes:
            yield from ((index, 0) for index in range(len(self.steps)))
            return
        last = tiles + self.stages - 2
        for iteration in range(last + 1):
            for index, step in enumerate(self.steps):
                if step.stage == EVERY:
                    if iteration < last:
                        yield index, iteration
                elif 0 <= iteration - step.stage < tiles:
                    yield index, iteration - step.stage


@dataclass(frozen=True)
class Program:
    """What one rank does. `window_slots` and `uses_access` are the same on all ranks."""

    blocks: tuple[Block, ...]
    window_slots: int = 0
    uses_access: bool = False

    def encode(self) -> bytes:
        """Little-endian int32 words.

        A header of 5 (magic, version, blocks, window slots, access); per block 4 (tile bytes, buffers, stages,
        steps); per step 7 (kind, stage, peer, flags, numbers of dst, src, ranks), 7 per region, 1 per rank.
        """
        words: list[int] = [MAGIC, VERSION, len(self.blocks), self.window_slots, int(self.uses_access)]
        for block in self.blocks:
            words += (block.tile_bytes, block.buffers, block.stages, len(block.steps))
            for kind, stage, peer, flags, dst, src, ranks in block.steps:
                words += (kind, stage, peer, flags, len(dst), len(src), len(ranks))
                for region in dst:
                    words += region
                for region in src:
                    words += region
                if ranks:
                    words += ranks
        return struct.pack(f"<{len(words)}i", *words)

    def __str__(self) -> str:
        lines = [f"program: {self.window_slots} window slots" + (", peer access" if self.uses_access else "")]
        for number, block in enumerate(self.blocks):
            tiles = f"tiles of {block.tile_bytes} bytes, {block.buffers} buffers, {block.stages} stages"
            lines.append(f"block {number}: " + (tiles if block.tile_bytes else "once"))
            for index, step in enumerate(block.steps):
                stage = "every" if step.stage == EVERY else str(step.stage)
                lines.append(f"  {index:3}" + (f" [{stage}]" if block.tile_bytes else "") + f" {step}")
        return "\n".join(lines)


def decode(data: bytes) -> Program:
    """The Program that `encode` wrote.

    Raises:
        ValueError: `data` is cut short, too long, or holds unknown codes.
    """
    if len(data) % 4 or len(data) < 20:
        raise ValueError(f"a program is whole int32 words and at least 5 of them; got {len(data)} bytes")
    reader = _Reader(struct.unpack(f"<{len(data) // 4}i", data))
    magic, version, nblocks, window_slots, access = reader.take(5)
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(
            f"expected magic {MAGIC:#x} version {VERSION}, found {magic & 0xFFFFFFFF:#x} version {version}"
        )
    blocks = []
    for _ in range(nblocks):
        tile_bytes, buffers, stages, nsteps = reader.take(4)
        blocks.append(Block(tuple(reader.step() for _ in range(nsteps)), tile_bytes, buffers, stages))
    if reader.position != len(reader.words):
        raise ValueError(f"{len(reader.words) - reader.position} words follow the last block of the program")
    return Program(tuple(blocks), window_slots, bool(access))


class _Reader:
    """Takes words off an encoded program."""

    def __init__(self, words: Sequence[int]) -> None:
        self.words = words
        self.position = 0

    def take(self, count: int) -> Sequence[int]:
        words = self.words[self.position : self.position + count]
        if count < 0 or len(words) < count:
            raise ValueError(f"the program ends at word {len(self.words)}, in the middle of a record")
        self.position += count
        return words

    def region(self) -> Region:
        space, owner, slot, part, begin, end, parts = self.take(7)
        return Region(Space(space), owner, slot, Part(part), begin, end, parts)

    def step(self) -> Step:
        kind, stage, peer, flags, ndst, nsrc, nranks = self.take(7)
        dst = tuple(self.region() for _ in range(ndst))
        src = tuple(self.region() for _ in range(nsrc))
        return Step(Kind(kind), stage, peer, flags, dst, src, tuple(self.take(nranks)))
