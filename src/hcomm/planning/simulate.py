"""Worlds of any size without a network: algorithms played over a topology.

`play` does the playing; here it is decided which ranks and how many tiles need to be played, and worlds and sizes are
swept through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .cost import Programs, Scene
from .play import Lengths, Played, Player
from .program import OWN, Program, Region
from .registry import Algorithm, Options, algorithms
from .select import Request, Setting, obstacle, window_need

#: Steps that are played before the rest is extrapolated: some seconds of a processor.
MOST_EVENTS = 600_000
#: What no extrapolation helps against: untiled programs of this many steps.
_TOO_MANY = 40_000_000


def simulate(
    programs: Programs, scene: Scene, operation: str, nbytes: int, root: int = 0, most: int | None = None
) -> Played:
    """Play a collective of `nbytes` in `scene`.

    Args:
        programs: rank → its program.
        nbytes: of the whole vector (all_reduce, broadcast, reduce) or of the big side.
        most: steps beyond which it is extrapolated; default: MOST_EVENTS.

    Only one host's ranks are played where all hosts do the same. Where there are more than `most` steps, two smaller
    vectors are played and the time is extrapolated: it grows linearly in the number of tiles once a pipeline is full.

    Raises:
        ValueError: the algorithm cannot be written for this world, waits for ever, or is too large to play.
    """
    known: dict[int, Program] = {}

    def program(rank: int) -> Program:
        if rank not in known:
            known[rank] = programs(rank)
        return known[rank]

    ranks: Sequence[int] = range(scene.size)
    if symmetric(program, scene):
        ranks = scene.hosts[0]

    def player(size: int) -> Player:
        return Player(program, scene, Lengths(operation, scene.size, size, root), ranks, nbytes)

    most = MOST_EVENTS if most is None else most
    whole = player(nbytes)
    events = whole.events()
    if events <= most:
        return whole.play()
    large = player(nbytes * most // events)
    if large.events() > 2 * most:  # not tiles but untiled steps make it large
        if events > _TOO_MANY:
            raise ValueError(f"{events} steps are too many to play; {_TOO_MANY} are the most")
        return whole.play()
    return _extrapolate(player, nbytes, nbytes * most // events)


def _extrapolate(player: Callable[[int], Player], nbytes: int, affordable: int) -> Played:
    half, full = player(affordable // 2).play(), player(affordable).play()
    rest = (nbytes - affordable) / (affordable - affordable // 2)

    def further(small: float, large: float) -> float:
        return large + (large - small) * rest

    return replace(
        full,
        seconds=further(half.seconds, full.seconds),
        finish={r: further(half.finish[r], at) for r, at in full.finish.items()},
        messages=round(further(half.messages, full.messages)),
        outside=round(further(half.outside, full.outside)),
        traffic=round(further(half.traffic, full.traffic)),
        exact=False,
    )


def symmetric(programs: Programs, scene: Scene) -> bool:
    """Whether the ranks of host 0 can stand for all.

    Hosts must be alike and counted one after the other, and rank r + k must do what rank r does with every peer moved
    by k, the ranks per host. That is looked at on a few hosts, not on all: an algorithm that treats another host
    differently would be missed; none of the built-in ones does.
    """
    hosts, k = len(scene.hosts), len(scene.hosts[0])
    regular = tuple(tuple(range(h * k, (h + 1) * k)) for h in range(hosts))
    cliques = (regular, tuple((r,) for r in range(scene.size)))
    if hosts < 2 or scene.hosts != regular or scene.cliques not in cliques or scene.classes:
        return False
    others = sorted({1, hosts // 3, hosts - 1} - {0})
    for local in range(k):
        first = _shape(programs(local), local, scene.size)
        for other in others:
            rank = other * k + local
            if _shape(programs(rank), rank, scene.size) != first:
                return False
    return True


def _shape(program: Program, rank: int, size: int) -> list[object]:
    """What a program's time depends on, with ranks counted from its own."""

    def region(r: Region) -> tuple[int, ...]:
        owner = OWN if r.owner == OWN else (r.owner - rank) % size
        return (r.space, owner, r.part, r.end - r.begin, r.parts)

    def regions(several: tuple[Region, ...]) -> list[tuple[int, ...]]:
        # Sources are reduced in rank order, so their order differs from rank to rank; the time does not.
        return [region(r) for r in several] if len(several) < 2 else sorted(map(region, several))

    shape: list[object] = []
    for block in program.blocks:
        shape.append((block.tile_bytes, block.buffers, block.stages))
        for kind, stage, peer, _, dst, src, ranks in block.steps:
            other = (peer - rank) % size if peer >= 0 else -1
            met = sorted((r - rank) % size for r in ranks) if ranks else ()
            shape.append((kind, stage, other, regions(dst), regions(src), met))
    return shape


def programs_of(entry: Algorithm, scene: Scene, root: int = 0, options: Options = ()) -> Programs:
    """rank → program of a registered algorithm in a scene."""
    size, cliques = scene.size, scene.cliques
    return lambda rank: entry.program(rank, size, cliques, root, options)


def setting_of(scene: Scene, access: bool, options: Mapping[str, str] | None = None) -> Setting:
    """What the selection needs to know of a scene."""

    def need(entry: Algorithm, chosen: Options, root: int) -> tuple[int, int]:
        return window_need(entry.program(0, scene.size, scene.cliques, root, chosen))

    return Setting(scene.size, scene.cliques, scene.window_bytes, access, False, dict(options or {}), need)


@dataclass(frozen=True)
class Candidate:
    """An algorithm for one call: the register's entry, and why it cannot run ('' if it can)."""

    entry: Algorithm
    obstacle: str

    @property
    def name(self) -> str:
        """Its name."""
        return self.entry.name


def candidates(
    operation: str, scene: Scene, nbytes: int, root: int = 0, *, access: bool = False, dtype: str = "float32"
) -> Iterator[Candidate]:
    """Every registered algorithm of an operation.

    Args:
        access: ranks reach each other's ordinary memory.
    """
    request = Request(operation, dtype, "sum", nbytes, root)
    world = setting_of(scene, access)
    for entry in algorithms(operation):
        problem = obstacle(entry, world, request).partition(" [(")[0]  # without the list of all groups
        yield Candidate(entry, problem)


@dataclass(frozen=True)
class Point:
    """One simulated collective; `seconds` is None where the algorithm cannot run, and `note` says why."""

    algorithm: str
    nbytes: int
    hosts: int
    ranks: int
    seconds: float | None
    note: str = ""
    played: Played | None = None


def point(candidate: Candidate, scene: Scene, operation: str, nbytes: int, root: int = 0) -> Point:
    """Simulate one algorithm."""
    hosts, ranks = len(scene.hosts), scene.size
    if candidate.obstacle:
        return Point(candidate.name, nbytes, hosts, ranks, None, candidate.obstacle)
    try:
        options = candidate.entry.fitted((), nbytes, scene.size)
        played = simulate(programs_of(candidate.entry, scene, root, options), scene, operation, nbytes, root)
    except ValueError as error:
        return Point(candidate.name, nbytes, hosts, ranks, None, str(error))
    note = "" if played.exact else "extrapolated in the number of tiles"
    return Point(candidate.name, nbytes, hosts, ranks, played.seconds, note, played)
