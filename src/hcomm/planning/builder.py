"""Builder: the words in which algorithms are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn

from .program import EVERY, FINAL, IN_PLACE, OWN, Block, Kind, Part, Program, Region, Space, Step

#: Operations that combine contributions with an operator.
REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
#: Operations on one vector of `count` elements, which may be cut into even chunks.
_EVEN = frozenset({"all_reduce", "broadcast", "reduce"})
#: Operations that have a root.
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
_TABLE_IN = frozenset({"reduce_scatter", "scatter", "all_to_all"})
_TABLE_OUT = frozenset({"all_gather", "gather", "all_to_all"})

#: The most stages of a tiled block that the engine runs.
MAX_STAGES = 64

Regions = Region | Sequence[Region]


class Requirement(IntEnum):
    """What an algorithm needs of the ranks: any links, one host clique, or reach into each other's ordinary memory."""

    LINKS = 0
    SHARED_MEMORY = 1
    ACCESS = 2


class Builder:
    """Writes the program of rank `rank` among `size`.

    Attributes:
        operation: name of the collective.
        rank, size, ranks: this rank, how many there are, and all of them.
        next, prev: the neighbours on a ring in rank order.
        root: the root of a rooted collective, else 0.
        cliques: the host cliques, a partition of `ranks`.
        local: the clique of this rank, itself included, ascending.

    Every mistake raises ValueError naming the algorithm, the rank and the step.
    """

    def __init__(
        self,
        operation: str,
        rank: int,
        size: int,
        *,
        cliques: Sequence[Sequence[int]] | None = None,
        root: int = 0,
        algorithm: str = "unnamed",
        requires: Requirement = Requirement.LINKS,
    ) -> None:
        self.operation = operation
        self.rank = rank
        self.size = size
        self.ranks = range(size)
        self.root = root
        self.next = (rank + 1) % size
        self.prev = (rank - 1) % size
        self.cliques = tuple(tuple(sorted(c)) for c in cliques) if cliques else (tuple(range(size)),)
        self.local = next((c for c in self.cliques if rank in c), (rank,))
        self._near = frozenset(self.local)
        self._algorithm = algorithm
        self._requires = requires
        self._blocks: list[Block] = []
        self._steps: list[Step] = []
        self._tiled: tuple[int, int, int] | None = None
        self._window_slots = 0
        if sorted(r for c in self.cliques for r in c) != list(self.ranks):
            self.fail(f"cliques {self.cliques} are not a partition of the ranks 0..{size - 1}")
        if not 0 <= root < size:
            self.fail(f"root {root} is not a rank; ranks are 0..{size - 1}")

    # Regions

    def chunk(self, index: int, of: int | None = None) -> Region:
        """Even chunk `index` (taken modulo) of `of` (default: world size) of the vector, in the output."""
        parts = self.size if of is None else of
        if parts < 1:
            self.fail(f"a vector cannot be cut into {parts} chunks")
        index %= parts
        return self.chunks(index, index + 1, parts)

    def chunks(self, begin: int, end: int, of: int | None = None) -> Region:
        """Even chunks `begin` up to but not `end` of `of` of the vector, in the output."""
        parts = self.size if of is None else of
        if self.operation not in _EVEN:
            self.fail(
                f"{self.operation} has blocks of its own sizes, not even chunks; use in_block or out_block"
            )
        if not 0 <= begin <= end <= parts:
            self.fail(f"chunks {begin} to {end} are out of range: there are {parts}")
        return Region(Space.OUTPUT, OWN, IN_PLACE, Part.EVEN, begin, end, parts)

    def input(self, part: Region | None = None) -> Region:
        """The whole input, or `part` of it."""
        if part is None:
            return Region(Space.INPUT, OWN, IN_PLACE, Part.IN_ALL)
        return part._replace(space=Space.INPUT, owner=OWN, slot=IN_PLACE)

    def output(self, part: Region | None = None) -> Region:
        """The whole output, or `part` of it."""
        if part is None:
            return Region(Space.OUTPUT, OWN, IN_PLACE, Part.OUT_ALL)
        return part._replace(space=Space.OUTPUT, owner=OWN, slot=IN_PLACE)

    def in_block(self, rank: int) -> Region:
        """The block of the input that is meant for `rank` (reduce_scatter, scatter, all_to_all)."""
        if self.operation not in _TABLE_IN:
            self.fail(f"the input of {self.operation} has no blocks")
        self._check_rank(rank)
        return Region(Space.INPUT, OWN, IN_PLACE, Part.TABLE_IN, rank, rank + 1, self.size)

    def out_block(self, rank: int) -> Region:
        """The block of the output that comes from `rank` (all_gather, gather, all_to_all)."""
        self._check_rank(rank)
        return self.out_blocks(rank, rank + 1)

    def out_blocks(self, begin: int, end: int) -> Region:
        """The blocks of the output that come from the ranks `begin` up to but not `end`; not in tiled blocks.

        Blocks may be of any length, so ranks that name different spans would not agree on a number of tiles.
        """
        if self.operation not in _TABLE_OUT:
            self.fail(f"the output of {self.operation} has no blocks")
        if not 0 <= begin < end <= self.size:
            self.fail(f"blocks {begin} to {end} do not exist; ranks are 0..{self.size - 1}")
        if end - begin > 1 and self._tiled:
            self.fail(
                f"blocks {begin} to {end} cannot be tiled: their length is not known alike to all ranks"
            )
        return Region(Space.OUTPUT, OWN, IN_PLACE, Part.TABLE_OUT, begin, end, self.size)

    def scratch(self, slot: int, like: Region) -> Region:
        """Private memory number `slot`, as long as `like`."""
        return _elsewhere(like, Space.SCRATCH, OWN, self._check_slot(slot))

    def window(self, slot: int, like: Region, of: int | None = None) -> Region:
        """Shared memory number `slot` of rank `of` (default: this one), as long as `like`."""
        owner = OWN if of is None else self._owner(of)
        self._window_slots = max(self._window_slots, slot + 1)
        return _elsewhere(like, Space.WINDOW, owner, self._check_slot(slot))

    def windows(self, slots: int) -> None:
        """The program uses `slots` slots of each window, even if this rank itself does not.

        All ranks must say the same, so an algorithm in which only some touch a window declares it.
        """
        self._window_slots = max(self._window_slots, slots)

    def at(self, rank: int, region: Region) -> Region:
        """The same region in the memory of `rank`, which shares memory with this one."""
        return _elsewhere(region, region.space, self._owner(rank), region.slot)

    # Steps

    def send(self, peer: int, src: Region, stage: int = 0) -> None:
        """Send `src` to `peer`. Does not wait; `src` must stay as it is until the peer has received it."""
        self._check_peer(peer, "send to")
        self._add(Kind.SEND, stage, peer, src=(src,))

    def recv(self, peer: int, dst: Region, stage: int = 0) -> None:
        """Receive the next message of `peer` into `dst`."""
        self._check_peer(peer, "receive from")
        self._add(Kind.RECV, stage, peer, dst=(dst,))

    def recv_reduce(self, peer: int, dst: Region, stage: int = 0) -> None:
        """dst = dst op the next message of `peer`, rounded to the element type."""
        self._check_peer(peer, "receive from")
        self._check_reducing("recv_reduce")
        self._add(Kind.RECV_REDUCE, stage, peer, dst=(dst,))

    def move(self, dst: Regions, src: Regions, stage: int = 0) -> None:
        """Copy one source, or reduce several in the listed order and round once, into every destination.

        A reduction of as many sources as there are ranks is complete: averages are divided in it.
        """
        to = (dst,) if isinstance(dst, Region) else tuple(dst)
        of = (src,) if isinstance(src, Region) else tuple(src)
        if not to or not of:
            self.fail(f"a move needs a source and a destination; got {len(of)} and {len(to)}")
        if len(of) > 1:
            self._check_reducing("a move of several sources")
        final = self.operation in REDUCING and len(of) == self.size
        self._add(Kind.MOVE, stage, flags=FINAL if final else 0, dst=to, src=of)

    def finish(self, dst: Region, stage: int = 0) -> None:
        """`dst` holds every contribution: divide it by the world size if the operator is avg."""
        self._check_reducing("finish")
        self._add(Kind.FINISH, stage, dst=(dst,))

    def post(self, peers: Sequence[int], stage: int | None = None) -> None:
        """Tell local `peers` that everything written so far may be read."""
        self._sync(Kind.POST, peers, stage)

    def await_(self, peers: Sequence[int], stage: int | None = None) -> None:
        """Wait for one post of each of the local `peers`."""
        self._sync(Kind.AWAIT, peers, stage)

    def meet(self, ranks: Sequence[int] | None = None, stage: int | None = None) -> None:
        """Post to all local `ranks` (default: the whole clique) and await them all.

        In a tiled block a synchronising step without a stage stands in every iteration but the last.
        """
        self._sync(Kind.MEET, self.local if ranks is None else ranks, stage)

    @contextmanager
    def tiles(self, tile_bytes: int, buffers: int = 1, stages: int = 1) -> Iterator[None]:
        """Steps inside run tile by tile; see `Block`. Slots exist `buffers` times and rotate with the tile.

        With `tile_bytes` 0 they run once, on whole regions.
        """
        if self._tiled:
            self.fail("tiled blocks cannot be nested")
        if tile_bytes < 0 or tile_bytes % 64 or buffers < 1 or not 1 <= stages <= MAX_STAGES:
            self.fail(
                f"tiles need a positive multiple of 64 bytes, buffers, and 1 to {MAX_STAGES} stages; "
                f"got {tile_bytes}, {buffers}, {stages}"
            )
        self._close()
        if tile_bytes:
            self._tiled = (tile_bytes, buffers, stages)
        yield
        self._close()
        self._tiled = None

    def build(self) -> Program:
        """The program written so far."""
        self._close()
        return Program(tuple(self._blocks), self._window_slots, self._requires is Requirement.ACCESS)

    # Checks

    def _close(self) -> None:
        if self._steps:
            self._blocks.append(Block(tuple(self._steps), *(self._tiled or ())))
            self._steps = []

    def _add(
        self,
        kind: Kind,
        stage: int,
        peer: int = -1,
        flags: int = 0,
        dst: tuple[Region, ...] = (),
        src: tuple[Region, ...] = (),
        ranks: tuple[int, ...] = (),
    ) -> None:
        if stage:
            stages = self._tiled[2] if self._tiled else 1
            if not (0 <= stage < stages or (stage == EVERY and self._tiled and ranks)):
                self.fail(f"stage {stage} does not exist: this block has stages 0..{stages - 1}")
        for regions in (dst, src):
            for region in regions:
                if region.owner != OWN:
                    self._check_remote(kind, region)
        self._steps.append(Step(kind, stage, peer, flags, dst, src, ranks))

    def _sync(self, kind: Kind, ranks: Sequence[int], stage: int | None) -> None:
        others = tuple(r for r in ranks if r != self.rank)
        for r in others:
            self._owner(r)
        if len(set(others)) != len(others):
            self.fail(f"ranks {others} are named twice in {kind.name.lower()}")
        if others:
            self._add(kind, (EVERY if self._tiled else 0) if stage is None else stage, ranks=others)

    def _check_remote(self, kind: Kind, region: Region) -> None:
        if kind is not Kind.MOVE:
            self.fail(f"{kind.name.lower()} works on own memory only, not on {region}; use move")
        if region.space is Space.SCRATCH:
            self.fail(f"{region}: scratch memory is private")
        if region.space is not Space.WINDOW and self._requires is not Requirement.ACCESS:
            self.fail(f"{region} is not a window: the algorithm must say requires=ACCESS")

    def _check_reducing(self, what: str) -> None:
        if self.operation not in REDUCING:
            self.fail(f"{self.operation} has no operator, so {what} has no meaning in it")

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            self.fail(f"rank {rank} does not exist; ranks are 0..{self.size - 1}")

    def _check_peer(self, peer: int, what: str) -> None:
        if peer == self.rank or not 0 <= peer < self.size:
            self._check_rank(peer)
            self.fail(f"cannot {what} itself; use move")

    def _check_slot(self, slot: int) -> int:
        if slot < 0:
            self.fail(f"slot {slot} is negative")
        return slot

    def _owner(self, rank: int) -> int:
        self._check_rank(rank)
        if rank not in self._near:
            self.fail(f"rank {rank} shares no memory with this one; ranks {list(self.local)} do")
        return OWN if rank == self.rank else rank

    def fail(self, problem: str) -> NoReturn:
        """Refuse to go on: raise ValueError with `problem`, naming algorithm, rank and step."""
        step = sum(len(b.steps) for b in self._blocks) + len(self._steps)
        raise ValueError(
            f"{self.operation} algorithm '{self._algorithm}', rank {self.rank} of {self.size}, step {step}: {problem}"
        )


def _elsewhere(like: Region, space: Space, owner: int, slot: int) -> Region:
    """A region as long as `like` in another place; a fraction of what `_replace` takes."""
    _, _, _, part, begin, end, parts = like
    return Region(space, owner, slot, part, begin, end, parts)
