"""Plays all ranks' programs against the clock: a discrete-event simulation.

Every rank has a clock and runs its steps in order, the rank with the earliest clock first. What ranks share is a
queue, first come first served:

- **a host's processors**, when it has more ranks than processors: see `turns`;
- **a host's memory**: all bytes that its ranks read and write;
- **a host's network**, out and in separately: messages to and from other hosts;
- **a pair's stream**: messages of one pair follow each other.

A message flows while it is sent: its first byte arrives α after it has left, its last byte when the slowest of
stream, network out, network in and memory has passed it on; the receiver adds it up as it comes.

**Symmetry.** With `ranks` given, only those are played and stand for all: rank r of host h behaves as rank r of host 0.
That is exact when all hosts are alike and the program of rank r + k is that of rank r with every peer moved by k,
the ranks per host (`simulate.symmetric` looks at it), except that even chunks differ by up to 64 bytes. Where several
hosts send to one at the same moment, who is first is settled in another order than if all were played: up to some ten
percent (`pairwise`); rings, grids and hierarchies come out the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from .cost import LOOPBACK, SHM, LinkCost, Scene
from .geometry import even_offset
from .program import EVERY, OWN, Block, Kind, Part, Program, Region, Space
from .turns import Processors

#: Bytes on which even chunks begin.
_LINE = 64
_SEND, _RECV, _MOVE, _POST, _AWAIT, _STEP = range(6)
Op = tuple[Any, ...]


@dataclass(frozen=True)
class Played:
    """How a collective went.

    Attributes:
        seconds: until the last rank was done.
        finish: rank → when it was done (of the ranks played).
        messages: most messages that one rank sent.
        outside: most bytes that one host sent to other hosts.
        traffic: most bytes that moved through one host's memory.
        exact: every step was played; otherwise times are extrapolated in the number of tiles.
        played: number of ranks whose programs were played.
    """

    seconds: float
    finish: dict[int, float]
    messages: int
    outside: int
    traffic: int
    exact: bool = True
    played: int = 0


class Lengths:
    """Bytes of regions in an operation whose blocks are all equally long.

    Args:
        nbytes: of the whole vector, or of the big side.
    """

    def __init__(self, operation: str, size: int, nbytes: int, root: int) -> None:
        self._vector = nbytes if operation in ("all_reduce", "broadcast", "reduce") else 0
        self._block = nbytes // size
        self.nbytes = nbytes
        self._operation = operation
        self._root = root

    def of(self, rank: int, region: Region) -> int:
        """Bytes of a region of `rank`'s program."""
        part, begin, end, parts = region.part, region.begin, region.end, region.parts
        if part is Part.EVEN:
            first = even_offset(self._vector, begin, parts, _LINE)
            return even_offset(self._vector, end, parts, _LINE) - first if end > begin else 0
        if part in (Part.TABLE_IN, Part.TABLE_OUT):
            return self._block * (end - begin)
        small = part is Part.IN_ALL and self._operation in ("all_gather", "gather")
        small = small or (part is Part.OUT_ALL and self._operation in ("reduce_scatter", "scatter"))
        return self._block if small else self.nbytes

    def longest(self, block: Block) -> int:
        """Bytes of the longest region that any rank has in the place of one of this block's."""
        longest = 0
        for part, span, parts in {
            (r.part, r.end - r.begin, r.parts) for step in block.steps for r in step.dst + step.src
        }:
            last = Region(Space.OUTPUT, -1, -1, part, max(parts - span, 0), max(parts, span), parts)
            first = last._replace(begin=0, end=span)
            longest = max(longest, self.of(0, first), self.of(0, last))
        return longest


def tile_bytes(block: Block, slots: int, window_bytes: int) -> int:
    """Bytes of a tile: the block's, or less where the window is small."""
    if not slots:
        return block.tile_bytes
    return max(_LINE, min(block.tile_bytes, window_bytes // (slots * block.buffers) // _LINE * _LINE))


class Player:
    """One play of one collective.

    Args:
        programs: rank → its program.
        scene: where the ranks are.
        lengths: how long regions are.
        ranks: the ranks to play; fewer than all: see Symmetry.
        vector: bytes of a rank's vector, by which memory counts as near or far; None: those of `lengths`.
    """

    def __init__(
        self,
        programs: Callable[[int], Program],
        scene: Scene,
        lengths: Lengths,
        ranks: Sequence[int],
        vector: int | None = None,
    ) -> None:
        self._scene = scene
        self._costs = scene.costs
        self._lengths = lengths
        self._size = scene.size
        self._ranks = ranks
        self._few = len(ranks) < scene.size
        self._class_of = scene.class_of()
        self._host = {r: h for h, members in enumerate(scene.hosts) for r in members}
        self._links: dict[str, tuple[float, float, float, float, bool]] = {}
        costs = scene.costs
        busiest = max(map(len, scene.hosts))
        together = busiest * (lengths.nbytes if vector is None else vector)
        beyond = max(0.0, 1 - costs.cache / together) if costs.cache and together else 0.0
        #: What a byte of a user's vector costs more, each time it is read or written.
        self._extra = beyond * costs.copy * (costs.far - 1) / 2
        #: rank → the processor that it shares with others; nothing where each has its own.
        self._core = {
            rank: (h, place % costs.cores)
            for h, members in enumerate(scene.hosts)
            for place, rank in enumerate(members)
            if costs.cores and len(members) > costs.cores
        }
        self._programs = [self._compile(r, programs(r)) for r in ranks]

    def events(self) -> int:
        """How many steps there are to play, tiles counted."""
        return sum(len(steps) * tiles for program in self._programs for steps, _, tiles, _ in program)

    def _link(self, a: int, b: int) -> tuple[float, float, float, float, bool]:
        """(α, β, processor per byte, processor per message, shared memory) of a pair; processors at each end."""
        name = self._class_of(a, b)
        found = self._links.get(name)
        if found is None:
            cost: LinkCost = self._costs.link(name)
            # Links inside a host are as slow as the processors at both ends; what lies between stays in the cache.
            extra = 0.0 if name not in (SHM, LOOPBACK) else self._extra
            # Inside a host all of α is work of processors, half of it at each end.
            own = cost.alpha / 2 if name == LOOPBACK else 0.0
            found = self._links[name] = (
                cost.alpha - 2 * own,
                cost.beta + extra,
                cost.cpu + extra,
                own,
                name == SHM,
            )
        return found

    def _key(self, to: int, source: int) -> tuple[int, int]:
        """Name of the stream from `source` to `to`: the receiver's representative, and how far the sender is."""
        return (to % len(self._ranks) if self._few else to, (source - to) % self._size)

    def _compile(self, rank: int, program: Program) -> list[tuple[list[tuple[int, Op, int]], int, int, int]]:
        """Blocks of (stage, operation, bytes), with tile size, number of tiles and number of stages."""
        blocks = []
        for block in program.blocks:
            steps = []
            for step in block.steps:
                for op, nbytes in self._operations(rank, step, bool(block.tile_bytes)):
                    steps.append((step.stage, op, nbytes))
            tile = (
                tile_bytes(block, program.window_slots, self._scene.window_bytes) if block.tile_bytes else 0
            )
            tiles = max(1, -(-self._lengths.longest(block) // tile)) if tile else 1
            blocks.append((steps, tile, tiles, block.stages))
        return blocks

    def _operations(self, rank: int, step: Any, tiled: bool) -> Iterator[tuple[Op, int]]:
        kind, length, costs = step.kind, self._lengths.of, self._costs
        step_cost = costs.step
        if kind is Kind.SEND:
            outside = self._host[rank] != self._host[step.peer]
            to = self._host[step.peer] if not self._few else 0
            key = self._key(step.peer, rank)
            yield (_SEND, key, self._link(rank, step.peer), outside, to), length(rank, step.src[0])
        elif kind in (Kind.RECV, Kind.RECV_REDUCE):
            add = costs.reduce + self._extra if kind is Kind.RECV_REDUCE else 0.0
            _, _, cpu, own, _ = self._link(rank, step.peer)
            yield (_RECV, self._key(rank, step.peer), cpu + add, own + step_cost), length(rank, step.dst[0])
        elif kind is Kind.MOVE:
            nsrc, ndst = len(step.src), len(step.dst)
            near = sum(r.owner != OWN and r.space is Space.WINDOW for r in step.dst + step.src)
            reached = sum(r.owner != OWN and r.space is not Space.WINDOW for r in step.dst + step.src)
            # Tiles of windows and scratch memory stay in the cache.
            far = sum(not tiled or r.space in (Space.INPUT, Space.OUTPUT) for r in step.dst + step.src)
            work = costs.copy * ndst + costs.reduce * (nsrc - 1) + far * self._extra
            work += costs.fetch * near + costs.access * reached
            yield (_MOVE, work, nsrc + ndst, step_cost + costs.reach * reached), length(rank, step.dst[0])
        elif kind is Kind.FINISH:
            yield (_STEP,), 0
        else:
            if kind is not Kind.AWAIT:
                yield (_POST, [self._key(q, rank) for q in step.ranks]), 0
            if kind is not Kind.POST:
                for q in step.ranks:
                    yield (_AWAIT, self._key(rank, q)), 0

    def play(self) -> Played:
        """Run to the end.

        One long function: it runs millions of steps, and a call for each would double its time.

        Raises:
            ValueError: a rank waits for ever.
        """
        costs, ranks, host = self._costs, self._ranks, self._host
        step_cost, nic, memory, meet = costs.step, costs.nic, costs.memory, costs.meet
        hosts = len(self._scene.hosts)
        out_free, in_free, memory_free = [0.0] * hosts, [0.0] * hosts, [0.0] * hosts
        outside_bytes, traffic = [0] * hosts, [0] * hosts
        sent = dict.fromkeys(ranks, 0)
        stream_free: dict[tuple[int, int], float] = {}
        queues: dict[tuple[int, int], deque[tuple[float, float]]] = {}
        posts: dict[tuple[int, int], deque[float]] = {}
        waiting: dict[tuple[bool, tuple[int, int]], tuple[int, float]] = {}
        pending: dict[int, tuple[Op, int]] = {}
        finish: dict[int, float] = {}
        steps = {r: _expand(p) for r, p in zip(ranks, self._programs, strict=True)}
        shared = Processors(self._core, costs.turn, costs.call)
        heap = [(0.0 if r in self._core else costs.call, r) for r in ranks]

        def move(h: int, at: float, nbytes: int) -> float:
            """When the memory of host `h` has passed bytes on."""
            begin = memory_free[h] if memory_free[h] > at else at
            memory_free[h] = begin + nbytes * memory
            traffic[h] += nbytes
            return memory_free[h]

        while heap:
            now, rank = heappop(heap)
            if shared.ranks and not shared.begin(rank, now, heap):
                continue
            h, mine = host[rank], steps[rank]
            item = pending.pop(rank, None) or next(mine, None)
            while item is not None:
                op, n = item
                kind = op[0]
                if kind == _SEND:
                    _, key, (alpha, beta, cpu, own, shm), outside, to = op
                    begin, start = stream_free.get(key, 0.0), now + own
                    begin = start if start > begin else begin
                    now = start + step_cost + n * cpu
                    if outside:
                        begin = out_free[h] if out_free[h] > begin else begin
                        out_free[h] = begin + n * nic
                        enter = in_free[to] if in_free[to] > begin else begin
                        in_free[to] = enter + n * nic
                        end = max(begin + n * beta, in_free[to])
                        outside_bytes[h] += n
                    else:
                        end = begin + n * beta
                        if shm:
                            end = max(end, move(h, start, 4 * n))
                    stream_free[key] = end
                    sent[rank] += 1
                    queues.setdefault(key, deque()).append((begin + alpha, max(end, now) + alpha))
                    woken = waiting.pop((False, key), None)
                    if woken:
                        heappush(heap, (max(woken[1], begin + alpha), woken[0]))
                elif kind == _RECV:
                    _, key, cpu, own = op
                    queue = queues.get(key)
                    if not queue or (shared.ranks and queue[0][0] > now):
                        if queue:
                            heappush(heap, (queue[0][0], rank))
                        else:
                            waiting[False, key] = (rank, now)
                        pending[rank] = item
                        shared.end(rank, now, heap)
                        break
                    first, last = queue.popleft()
                    now = max(last, (now if now > first else first) + own + n * cpu)
                elif kind == _MOVE:
                    now = max(now + op[3] + n * op[1], move(h, now, n * op[2]))
                elif kind == _POST:
                    for key in op[1]:
                        posts.setdefault(key, deque()).append(now + meet)
                        woken = waiting.pop((True, key), None)
                        if woken:
                            heappush(heap, (max(woken[1], now + meet), woken[0]))
                elif kind == _AWAIT:
                    seen = posts.get(op[1])
                    if not seen or (shared.ranks and seen[0] > now):
                        if seen:
                            heappush(heap, (seen[0], rank))
                        else:
                            waiting[True, op[1]] = (rank, now)
                        pending[rank] = item
                        shared.end(rank, now, heap)
                        break
                    now = max(now, seen.popleft())
                else:
                    now += step_cost
                if heap and heap[0][0] < now:
                    follower = next(mine, None)
                    if follower is None:
                        finish[rank] = now
                        shared.end(rank, now, heap)
                    else:
                        pending[rank] = follower
                        heappush(heap, (now, rank))
                    break
                item = next(mine, None)
            else:
                finish[rank] = now
                shared.end(rank, now, heap)
        if waiting:
            raise ValueError(f"ranks {sorted({r for r, _ in waiting.values()})[:8]} wait for ever")
        return Played(
            max(finish.values()),
            finish,
            max(sent.values()),
            max(outside_bytes),
            max(traffic),
            True,
            len(ranks),
        )


def _expand(blocks: list[tuple[list[tuple[int, Op, int]], int, int, int]]) -> Iterator[tuple[Op, int]]:
    """(operation, bytes) in the order of execution. What a tile lacks is empty: its header is sent all the same."""
    for steps, tile, tiles, stages in blocks:
        if not tile:
            for _, op, n in steps:
                yield op, n
            continue
        last = tiles + stages - 2
        for iteration in range(last + 1):
            for stage, op, n in steps:
                if stage == EVERY:
                    if iteration < last:
                        yield op, 0
                    continue
                t = iteration - stage
                if 0 <= t < tiles:
                    left = n - t * tile
                    yield op, 0 if left < 0 else left if left < tile else tile
