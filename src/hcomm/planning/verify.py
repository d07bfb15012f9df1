"""Proof of algorithms: all ranks' programs, played symbolically on a small number of elements.

Every element carries which ranks' contributions it holds and from which place of the vector, so a lost, doubled or
misplaced contribution shows at the step that makes it.

**One run decides for every interleaving.** A rank's steps are a fixed sequence; sends and posts never wait; a receive
or await waits for the next message of one given rank. Such a network of sequential processes (Kahn 1974) computes the
same messages, and stops in the same place, in every order, as long as memory is not shared without order. That
condition is checked in the same run with vector clocks (Fidge, Mattern 1988): two accesses to one element, one of them
a write, must be ordered by messages, posts and awaits. The receipt of a message counts as a read of its source.

Counts are small, but regions keep their meaning (even chunks, uneven tables, tiles of one element).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ..errors import HcommError
from .builder import REDUCING, ROOTED
from .geometry import Sizes
from .program import FINAL, IN_PLACE, OWN, Block, Kind, Program, Region, Space, Step
from .registry import Algorithm, Options
from .specification import expected, samples
from .volume import disagreement

#: What an element holds: a set of ranks as bits, the place in the vector, how often it was finished.
Value = tuple[int, int, int]
#: Address of an element: owner, memory, layout of slots, slot, index.
Cell = tuple[int, int, tuple[int, ...], int, int]


class VerificationError(HcommError, ValueError):
    """An algorithm is wrong; the message names the rank, the step and the region."""


def verify(
    algorithm: Algorithm,
    size: int,
    cliques: Sequence[Sequence[int]] | None = None,
    root: int | None = None,
    options: Options = (),
) -> None:
    """Prove `algorithm` for `size` ranks: right values, no deadlock, no race, for even and uneven sizes down to none.

    And each rank does as much as the algorithm's formula says, if it has one.

    Args:
        cliques: host cliques, default one of all ranks.
        root: the root of a rooted operation; default: every rank in turn.
        options: options of the algorithm.

    Raises:
        VerificationError: what is wrong first, with rank, step and region.
        ValueError: the algorithm cannot be written for such a world.
    """
    roots = range(size) if root is None and algorithm.operation in ROOTED else (root or 0,)
    for chosen in roots:
        programs = [algorithm.program(rank, size, cliques, chosen, options) for rank in range(size)]
        for sizes, tile in samples(algorithm.operation, size, chosen, algorithm.even_only):
            verify_programs(programs, sizes, tile, name=f"{algorithm.operation} algorithm '{algorithm.name}'")
        verify_volume(algorithm, programs, cliques, chosen, options)


def verify_volume(
    algorithm: Algorithm,
    programs: Sequence[Program],
    cliques: Sequence[Sequence[int]] | None = None,
    root: int = 0,
    options: Options = (),
) -> None:
    """Hold the messages, meets and bytes of every rank against the algorithm's formula.

    Raises:
        VerificationError: the first rank of which the formula is not true.
    """
    if algorithm.formula is None:
        return
    size = len(programs)
    builders = [algorithm.builder(rank, size, cliques, root) for rank in range(size)]
    said = [algorithm.formula(p, **dict(options)) for p in builders]
    if wrong := disagreement(algorithm.operation, programs, said, root):
        raise VerificationError(
            f"{algorithm.operation} algorithm '{algorithm.name}' for {size} ranks: {wrong}"
        )


def verify_programs(programs: Sequence[Program], sizes: Sizes, tile: int = 1, name: str = "program") -> None:
    """Prove the programs of all ranks for one choice of sizes, with tiles of `tile` elements.

    Raises:
        VerificationError: as `verify`.
    """
    _Player(programs, sizes, tile, name).play()


@dataclass(frozen=True)
class _Message:
    values: list[Value]
    cells: list[Cell]
    clock: list[int]
    origin: str


@dataclass(frozen=True)
class _Where:
    """The step that a rank is at."""

    rank: int
    block: int
    index: int
    tile: int
    step: Step
    tiled: Block | None

    def __str__(self) -> str:
        tile = f" of tile {self.tile}" if self.tiled else ""
        return f"rank {self.rank}, block {self.block}, step {self.index}{tile} ({self.step})"


class _Player:
    """Plays all programs; see the module."""

    def __init__(self, programs: Sequence[Program], sizes: Sizes, tile: int, name: str) -> None:
        self.programs, self.sizes, self.tile, self.name = programs, sizes, tile, name
        self.size = len(programs)
        self.reduces = sizes.operation in REDUCING
        self.values: dict[Cell, Value] = {}
        self.written: dict[Cell, tuple[int, int]] = {}
        self.reads: dict[Cell, dict[int, int]] = {}
        self.unreceived: dict[Cell, list[_Message]] = {}
        self.messages: dict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        self.posts: dict[tuple[int, int], deque[list[int]]] = defaultdict(deque)
        self.clocks = [[0] * self.size for _ in programs]
        self.heard: list[set[int]] = [set() for _ in programs]
        # Per owner: layout of slots → when each rank last touched the window under it.
        self.layouts: list[dict[tuple[int, ...], dict[int, int]]] = [{} for _ in programs]
        # Per owner: when each other rank last touched its input or output.
        self.touched: list[dict[int, int]] = [{} for _ in programs]
        self.ended = [False] * self.size
        self.steps = 0
        for rank in range(self.size):
            for index in range(sizes.n_in[rank]):
                self.values[self._user(rank, Space.INPUT, index)] = (1 << rank, index, 0)

    # The run

    def play(self) -> None:
        self._agree()
        runs = {rank: self._run(rank) for rank in range(self.size)}
        waits: dict[int, str] = {}
        while runs:
            before = self.steps
            for rank, run in list(runs.items()):
                waits[rank] = next(run, "")
                if not waits[rank]:
                    del runs[rank]
                    self.steps += 1
            if self.steps == before:
                self._fail("deadlock: " + "; ".join(waits[rank] for rank in runs))
        self._finish()

    def _agree(self) -> None:
        for what in ("window_slots", "uses_access"):
            found = [getattr(program, what) for program in self.programs]
            if len(set(found)) > 1:
                self._fail(f"ranks disagree about {what}: {found} for ranks 0..{self.size - 1}")

    def _run(self, rank: int) -> Iterator[str]:
        """Play one rank; yields what it waits for, whenever it has to."""
        for number, block in enumerate(self.programs[rank].blocks):
            tiles = -(-self.sizes.longest(block) // self.tile) if block.tile_bytes else 1
            for index, tile in block.schedule(tiles):
                step = block.steps[index]
                at = _Where(rank, number, index, tile, step, block if block.tile_bytes else None)
                self.clocks[rank][rank] += 1
                self.steps += 1
                if step.kind is Kind.SEND:
                    self._send(at)
                elif step.kind in (Kind.RECV, Kind.RECV_REDUCE):
                    queue = self.messages[step.peer, rank]
                    while not queue:
                        yield f"{at} waits for a message that rank {step.peer} does not send"
                    self._receive(at, queue.popleft())
                elif step.kind is Kind.MOVE:
                    self._move(at)
                elif step.kind is Kind.FINISH:
                    self._finish_region(at, step.dst[0])
                if step.kind in (Kind.POST, Kind.MEET):
                    for peer in step.ranks:
                        self.posts[rank, peer].append(list(self.clocks[rank]))
                if step.kind in (Kind.AWAIT, Kind.MEET):
                    for peer in step.ranks:
                        while not self.posts[peer, rank]:
                            yield f"{at} waits for a post that rank {peer} does not make"
                        self._join(rank, self.posts[peer, rank].popleft())
                        self.heard[rank].add(peer)
        self._end(rank)

    def _send(self, at: _Where) -> None:
        cells = self._cells(at, at.step.src[0])
        message = _Message([self._read(at, c) for c in cells], cells, list(self.clocks[at.rank]), str(at))
        for cell in cells:
            self.unreceived.setdefault(cell, []).append(message)
        self.messages[at.rank, at.step.peer].append(message)

    def _receive(self, at: _Where, message: _Message) -> None:
        cells = self._cells(at, at.step.dst[0])
        if len(cells) != len(message.values):
            self._fail(
                f"{at} expects {len(cells)} elements and gets {len(message.values)} from {message.origin}"
            )
        self._join(at.rank, message.clock)
        now = self.clocks[at.rank][at.rank]
        for cell in message.cells:
            self.unreceived[cell].remove(message)
            self.reads.setdefault(cell, {})[at.rank] = now
        for cell, value in zip(cells, message.values, strict=True):
            if at.step.kind is Kind.RECV_REDUCE:
                value = self._add(at, self._read(at, cell), value)
            self._write(at, cell, value)

    def _move(self, at: _Where) -> None:
        sources = [self._cells(at, region) for region in at.step.src]
        targets = [self._cells(at, region) for region in at.step.dst]
        lengths = [len(cells) for cells in sources + targets]
        if len(set(lengths)) > 1:
            self._fail(f"{at}: the regions have different lengths {lengths}")
        if at.step.flags & FINAL and len(sources) != self.size:
            self._fail(f"{at} is marked complete with {len(sources)} of {self.size} contributions")
        for target in targets:
            for source in sources:
                if target != source and not set(target).isdisjoint(source):
                    self._fail(f"{at}: a destination overlaps a source without being the same")
        results = []
        for position in range(lengths[0]):
            value = self._read(at, sources[0][position])
            for source in sources[1:]:
                value = self._add(at, value, self._read(at, source[position]))
            results.append((value[0], value[1], value[2] + 1) if at.step.flags & FINAL else value)
        for target in targets:
            for cell, value in zip(target, results, strict=True):
                self._write(at, cell, value)

    def _finish_region(self, at: _Where, region: Region) -> None:
        for cell in self._cells(at, region):
            ranks, place, finished = self._read(at, cell)
            if finished:
                self._fail(f"{at}: element {place} of the vector is finished a second time")
            if ranks != (1 << self.size) - 1:
                self._fail(f"{at}: element {place} of the vector is finished without {self._missing(ranks)}")
            self._write(at, cell, (ranks, place, 1))

    # Memory

    def _user(self, owner: int, space: Space, index: int) -> Cell:
        memory, offset = self.sizes.place(owner, space)
        return (owner, memory, (), IN_PLACE, offset + index)

    def _cells(self, at: _Where, region: Region) -> list[Cell]:
        """The elements of a region (of the tile that the step works on)."""
        owner = at.rank if region.owner == OWN else region.owner
        offset, length = self.sizes.extent(at.rank, region)
        first, last = 0, length
        if at.tiled:
            first, last = min(length, at.tile * self.tile), min(length, (at.tile + 1) * self.tile)
        if owner != at.rank and owner not in self.heard[at.rank]:
            self._fail(f"{at} touches {region} before it has met or awaited rank {owner}")
        if region.space in (Space.INPUT, Space.OUTPUT):
            return self._user_cells(at, region, owner, offset, first, last)
        slots = self.programs[at.rank].window_slots
        if region.space is Space.WINDOW and not 0 <= region.slot < slots:
            self._fail(f"{at}: {region} does not exist, the program declares {slots} window slots")
        layout: tuple[int, ...] = (0,)
        slot = region.slot
        if at.tiled:
            layout = (at.tiled.tile_bytes, at.tiled.buffers)
            slot = slot * at.tiled.buffers + at.tile % at.tiled.buffers
        if region.space is Space.WINDOW and last > first:
            self._touch_window(at, owner, layout, region)
        return [(owner, int(region.space), layout, slot, index) for index in range(last - first)]

    def _user_cells(
        self, at: _Where, region: Region, owner: int, offset: int, first: int, last: int
    ) -> list[Cell]:
        length = (self.sizes.n_in if region.space is Space.INPUT else self.sizes.n_out)[owner]
        if last > first and offset + last > length:
            self._fail(f"{at}: {region} ends at element {offset + last}, but rank {owner} has {length}")
        if owner != at.rank and last > first:
            if self.ended[owner]:
                self._fail(
                    f"{at} touches {region} when rank {owner} may have returned: a closing meet is missing"
                )
            self.touched[owner][at.rank] = self.clocks[at.rank][at.rank]
        return [self._user(owner, region.space, offset + index) for index in range(first, last)]

    def _touch_window(self, at: _Where, owner: int, layout: tuple[int, ...], region: Region) -> None:
        # Slots of blocks with other tiles lie elsewhere in the same window.
        for other, times in self.layouts[owner].items():
            for rank, time in times.items():
                if other != layout and rank != at.rank and self.clocks[at.rank][rank] < time:
                    self._fail(
                        f"{at}: {region} reuses a window that rank {rank} used in another block, without order"
                    )
        self.layouts[owner].setdefault(layout, {})[at.rank] = self.clocks[at.rank][at.rank]

    def _read(self, at: _Where, cell: Cell) -> Value:
        value = self.values.get(cell)
        rank, time = self.written.get(cell, (at.rank, 0))
        if rank != at.rank and self.clocks[at.rank][rank] < time:
            self._fail(f"{at} reads {_name(cell)}, which rank {rank} writes without order")
        if value is None:
            self._fail(f"{at} reads {_name(cell)}, which nobody has written")
        self.reads.setdefault(cell, {})[at.rank] = self.clocks[at.rank][at.rank]
        return value

    def _write(self, at: _Where, cell: Cell, value: Value) -> None:
        clock = self.clocks[at.rank]
        for message in self.unreceived.get(cell, ()):
            self._fail(f"{at} overwrites {_name(cell)} before its receipt; it was sent by {message.origin}")
        rank, time = self.written.get(cell, (at.rank, 0))
        if rank != at.rank and clock[rank] < time:
            self._fail(f"{at} writes {_name(cell)}, which rank {rank} writes without order")
        for rank, time in self.reads.pop(cell, {}).items():
            if rank != at.rank and clock[rank] < time:
                self._fail(f"{at} overwrites {_name(cell)}, which rank {rank} reads without order")
        self.values[cell] = value
        self.written[cell] = (at.rank, clock[at.rank])

    def _join(self, rank: int, clock: list[int]) -> None:
        self.clocks[rank] = [max(pair) for pair in zip(self.clocks[rank], clock, strict=True)]

    def _add(self, at: _Where, left: Value, right: Value) -> Value:
        if left[1] != right[1]:
            self._fail(f"{at} adds element {right[1]} of the vector to element {left[1]}")
        if left[0] & right[0]:
            self._fail(f"{at} adds the contribution of {self._names(left[0] & right[0])} twice")
        if left[2] or right[2]:
            self._fail(f"{at} adds to element {left[1]} of the vector after it was finished")
        return left[0] | right[0], left[1], 0

    # The end

    def _end(self, rank: int) -> None:
        self.ended[rank] = True
        for other, time in self.touched[rank].items():
            if self.clocks[rank][other] < time:
                self._fail(
                    f"rank {rank} may return while rank {other} touches its buffers: a closing meet is missing"
                )

    def _finish(self) -> None:
        for (source, target), queue in self.messages.items():
            if queue:
                self._fail(
                    f"rank {target} never receives what is sent by {queue[0].origin} (from rank {source})"
                )
        for (source, target), posts in self.posts.items():
            if posts:
                self._fail(f"rank {target} never awaits {len(posts)} of the posts of rank {source}")
        for rank in range(self.size):
            self._check_output(rank)
            self._check_input(rank)
            silent = [r for r in range(self.size) if r != rank and not self.clocks[rank][r]]
            if self.sizes.operation == "barrier" and silent:
                self._fail(f"rank {rank} leaves the barrier without hearing of rank {silent[0]}")

    def _check_output(self, rank: int) -> None:
        if self.sizes.operation == "barrier":
            return
        for index in range(self.sizes.n_out[rank]):
            ranks, place = expected(self.sizes, rank, index)
            found = self.values.get(self._user(rank, Space.OUTPUT, index))
            here = f"rank {rank}, output element {index}"
            if found is None:
                self._fail(f"{here} is never written; expected element {place} of {self._names(ranks)}")
            if found[:2] != (ranks, place):
                self._fail(
                    f"{here} holds element {found[1]} of {self._names(found[0])}; "
                    f"expected element {place} of {self._names(ranks)}"
                )
            if self.reduces and self.size > 1 and found[2] != 1:
                self._fail(f"{here} is finished {found[2]} times, not once: an average would be wrong")

    def _check_input(self, rank: int) -> None:
        outputs = {self._user(rank, Space.OUTPUT, index) for index in range(self.sizes.n_out[rank])}
        for index in range(self.sizes.n_in[rank]):
            cell = self._user(rank, Space.INPUT, index)
            if cell not in outputs and self.values[cell] != (1 << rank, index, 0):
                self._fail(f"rank {rank}, input element {index} is changed; inputs must stay as they are")

    def _names(self, ranks: int) -> str:
        return "ranks " + ", ".join(str(r) for r in range(self.size) if ranks >> r & 1)

    def _missing(self, ranks: int) -> str:
        return self._names(~ranks & (1 << self.size) - 1)

    def _fail(self, problem: str) -> NoReturn:
        sizes = (
            f"{self.sizes.operation} of {max(self.sizes.count, *self.sizes.n_in, *self.sizes.n_out)} elements"
        )
        raise VerificationError(f"{self.name} for {self.size} ranks ({sizes}): {problem}")


def _name(cell: Cell) -> str:
    owner, memory, _, slot, index = cell
    return f"{Space(memory).name.lower()}{'' if slot == IN_PLACE else f'[{slot}]'} element {index} of rank {owner}"
