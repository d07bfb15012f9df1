"""A second, independent reading of programs: all ranks on real NumPy arrays, from the encoded bytes.

Shares nothing with `verify` but the decoder: regions are looked up with arithmetic of its own. Ranks run as coroutines
in an order drawn from a seed, so that every test tries another interleaving.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator

import numpy as np

from hcomm.planning.program import EVERY, FINAL, Kind, Part, Program, Region, Space, decode

OPERATORS = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


class World:
    """Arrays of all ranks, and the tables of block boundaries where blocks exist."""

    def __init__(
        self,
        inputs: list[np.ndarray],
        outputs: list[np.ndarray],
        *,
        count: int = 0,
        bounds_in: list[list[int]] | None = None,
        bounds_out: list[list[int]] | None = None,
        tile: int = 16,
        align: int = 16,
    ) -> None:
        self.inputs, self.outputs, self.count, self.tile, self.align = inputs, outputs, count, tile, align
        self.bounds_in, self.bounds_out = bounds_in, bounds_out
        self.slots: dict[tuple[int, Space, int], np.ndarray] = {}

    def span(self, rank: int, region: Region) -> tuple[int, int]:
        if region.part is Part.IN_ALL:
            return 0, len(self.inputs[rank])
        if region.part is Part.OUT_ALL:
            return 0, len(self.outputs[rank])
        if region.part is Part.EVEN:
            return self._even(region.begin, region.parts), self._even(region.end, region.parts)
        tables = self.bounds_in if region.part is Part.TABLE_IN else self.bounds_out
        assert tables is not None
        return tables[rank][region.begin], tables[rank][region.end]

    def _even(self, index: int, parts: int) -> int:
        if index == parts:
            return self.count
        whole = (self.count * index) // parts
        return whole - whole % self.align

    def longest(self, rank: int, regions: list[Region]) -> int:
        """From this rank's regions alone: every rank must come to the same number by itself."""
        return max((end - begin for begin, end in (self.span(rank, r) for r in regions)), default=0)


def run(programs: list[bytes], world: World, op: str = "sum", seed: int = 0) -> None:
    """Run all ranks to their end. Raises AssertionError where they cannot go on."""
    random_order = random.Random(seed)
    mail: dict[tuple[int, int], deque[np.ndarray]] = defaultdict(deque)
    posts: dict[tuple[int, int], int] = defaultdict(int)
    tasks = {rank: _rank(rank, decode(p), world, op, mail, posts) for rank, p in enumerate(programs)}
    idle = 0
    while tasks:
        rank = random_order.choice(list(tasks))
        moved = next(tasks[rank], None)
        if moved is None:
            del tasks[rank]
        idle = 0 if moved or moved is None else idle + 1
        assert idle < 200 * len(programs), f"nobody moves: ranks {sorted(tasks)} wait"


def _rank(
    rank: int,
    program: Program,
    world: World,
    op: str,
    mail: dict[tuple[int, int], deque[np.ndarray]],
    posts: dict[tuple[int, int], int],
) -> Iterator[bool]:
    for block in program.blocks:
        tiles, last = 1, 0
        if block.tile_bytes:
            regions = [r for s in block.steps for r in s.dst + s.src]
            tiles = -(-world.longest(rank, regions) // world.tile)
            last = tiles + block.stages - 2
        for i in range(last + 1):
            for step in block.steps:
                tile = i - step.stage
                if block.tile_bytes and (i == last if step.stage == EVERY else not 0 <= tile < tiles):
                    continue

                def view(region: Region, block=block, tile=tile) -> np.ndarray:
                    return _view(rank, world, region, block if block.tile_bytes else None, tile)

                yield True
                if step.kind is Kind.SEND:
                    mail[rank, step.peer].append(view(step.src[0]).copy())
                elif step.kind in (Kind.RECV, Kind.RECV_REDUCE):
                    while not mail[step.peer, rank]:
                        yield False
                    data, dst = mail[step.peer, rank].popleft(), view(step.dst[0])
                    assert len(data) == len(dst), f"rank {rank}: {step}: {len(data)} elements for {len(dst)}"
                    dst[:] = data if step.kind is Kind.RECV else OPERATORS[op](dst, data)
                elif step.kind is Kind.MOVE:
                    total = view(step.src[0]).copy()
                    for region in step.src[1:]:
                        total = OPERATORS[op](total, view(region))
                    if step.flags & FINAL and op == "avg":
                        total = total / len(world.inputs)
                    for region in step.dst:
                        view(region)[:] = total
                elif step.kind is Kind.FINISH and op == "avg":
                    view(step.dst[0])[:] /= len(world.inputs)
                if step.kind in (Kind.POST, Kind.MEET):
                    for peer in step.ranks:
                        posts[rank, peer] += 1
                if step.kind in (Kind.AWAIT, Kind.MEET):
                    for peer in step.ranks:
                        while not posts[peer, rank]:
                            yield False
                        posts[peer, rank] -= 1


def _view(rank: int, world: World, region: Region, block, tile: int) -> np.ndarray:
    owner = rank if region.owner < 0 else region.owner
    begin, end = world.span(rank, region)
    first, last = 0, end - begin
    if block:
        first, last = min(last, tile * world.tile), min(last, (tile + 1) * world.tile)
    if region.space in (Space.INPUT, Space.OUTPUT):
        memory = (world.inputs if region.space is Space.INPUT else world.outputs)[owner]
        assert begin + last <= len(memory), f"rank {rank}: {region} leaves the memory of rank {owner}"
        return memory[begin + first : begin + last]
    slot = region.slot * block.buffers + tile % block.buffers if block else region.slot
    key = (owner, region.space, slot)
    size = world.tile if block else end - begin
    old = world.slots.get(key)
    if old is None or len(old) < size:
        world.slots[key] = np.full(size, np.nan)
        if old is not None:
            world.slots[key][: len(old)] = old
    return world.slots[key][: last - first]
