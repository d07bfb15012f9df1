"""Which algorithm: a pure function of what all ranks know alike.

Where costs were measured, the cheapest (`pricing`); otherwise the answer is a table, measured with
`python -m benchmarks.selection`. Inside one host the shared-memory forms win, unless ranks outnumber processors: every
meeting then waits until each has had its turn. Between hosts few hops win while latency rules, and every byte should
travel once when bandwidth does. Groups of fast links that the user has described are used first. Sums of 16-bit floats
are only ever given to algorithms that add all contributions in float32 and round once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UnknownAlgorithm
from . import override
from .builder import REDUCING, Requirement
from .program import Program
from .registry import Algorithm, Options, algorithms, lookup

if TYPE_CHECKING:
    from .cost import Scene

#: Vectors are shown whole as long as all ranks' together have at most this size: below it a meet more costs more than
#: reading them all (bytes).
ONESHOT_BYTES = 256 << 10
#: From here on peer access beats copying through windows, if it is preferred at all (bytes).
DIRECT_BYTES = 64 << 10
#: all_reduce where ranks outnumber processors: up to so many bytes, what a power of two of ranks runs, what others run,
#: and why. A rank in a ring waits for the messages of its neighbours, in a meeting for whoever comes last. (Measured
#: with 3 and 4 ranks on 2 processors.)
CROWDED: tuple[tuple[int, str, str, str], ...] = (
    (16 << 10, "oneshot", "oneshot", "one meeting"),
    (32 << 10, "star", "star", "fewest turns"),
    (2 << 20, "halving_doubling", "grouped", "neighbours wait for each other, not all for all"),
    (16 << 20, "staged", "staged", "what is copied stays in the cache"),
    (1 << 62, "direct", "direct", "two meetings in all"),
)
#: Between hosts, up to this size the number of hops decides (bytes).
LATENCY_BYTES = 64 << 10
#: The same for two ranks, of which each needs all of the other's vector in any case (bytes).
PAIR_BYTES = 256 << 10
#: Up to here halves of halves beat a ring among a power of two of ranks; among others, up to so much for each (bytes).
HALVING_BYTES, HALVING_BYTES_EACH = 4 << 20, 128 << 10
#: The most ranks whose programs are played to choose by measured costs: what that takes grows with their square.
MOST_RANKS = 16
#: Broadcasts are cut into tiles of this size (bytes).
PIPELINE_BYTES = 1 << 20
#: What runs in an operation in which some rank offers no access to its buffers; `staged` where nothing is said.
FALLBACK: Mapping[str, str] = {"all_to_all": "pairwise"}
#: The least a tile may hold (bytes): one cache line.
_LINE = 64
_HALF = frozenset({"float16", "bfloat16"})
_FLOATS = _HALF | {"float32", "float64", "complex64", "complex128"}


@dataclass(frozen=True)
class Request:
    """One call, in terms that all ranks agree on. `nbytes`: the whole vector, or the big side; 0 if ranks differ."""

    operation: str
    dtype: str
    op: str | None
    nbytes: int
    root: int


@dataclass(frozen=True)
class Setting:
    """What a communicator offers: see `planner.Planner`.

    Attributes:
        crowded: on some host ranks outnumber the processors that they may use.
        groups: groups of fast links that the user described, as `groups.GroupPlan.text` has them; empty: none.
        inside: how these exchange inside, `direct` or `ring`.
        scene: where ranks are and what was measured to cost what; None: nothing was.
    """

    size: int
    cliques: tuple[tuple[int, ...], ...]
    window_bytes: int
    access: bool
    prefer_direct: bool
    options: Mapping[str, str]
    #: `window_need` of this rank's program of an algorithm with options, for a root.
    window_need: Callable[[Algorithm, Options, int], tuple[int, int]]
    crowded: bool = False
    groups: str = ""
    inside: str = "direct"
    scene: Scene | None = None

    @property
    def shared(self) -> bool:
        """All ranks share memory."""
        return len(self.cliques) == 1


def option_name(operation: str) -> str:
    """Name of the setting that forces an algorithm: ALLREDUCE_ALGO for all_reduce."""
    return operation.replace("_", "").upper() + "_ALGO"


class Selection(NamedTuple):
    """An algorithm, its options, and the reason in words."""

    entry: Algorithm
    options: Options
    why: str


def fallback(operation: str) -> Algorithm:
    """What runs instead of an algorithm with peer access, when a rank does not offer it."""
    return lookup(operation, FALLBACK.get(operation, "staged"))


def obstacle(entry: Algorithm, world: Setting, request: Request, options: Options = ()) -> str:
    """Why `entry` cannot serve `request` in this communicator; empty if it can."""
    if entry.requires is not Requirement.LINKS and not world.shared:
        return f"it needs memory shared by all ranks, but they form {len(world.cliques)} groups {list(world.cliques)}"
    if entry.requires is Requirement.ACCESS and not world.access:
        return "it needs access to the buffers of other ranks, which this communicator does not have"
    if entry.even_only and not request.nbytes:
        return "it needs blocks of one length on all ranks"
    if entry.requires is Requirement.ACCESS:
        # Access is agreed on anew in each operation; without it this one runs.
        return obstacle(fallback(request.operation), world, request)
    try:
        fixed, whole = world.window_need(entry, options, request.root)
    except ValueError as error:
        return str(error)
    needed = fixed * _LINE + whole * -(-request.nbytes // _LINE) * _LINE
    if needed > world.window_bytes:
        return (
            f"it needs {needed} bytes of each rank's window for {request.nbytes} bytes, "
            f"and one operation has {world.window_bytes}"
        )
    return ""


def window_need(program: Program) -> tuple[int, int]:
    """(tiles, whole vectors) that lie in a window at once; tiles may be small, vectors are what they are."""
    if all(block.tile_bytes for block in program.blocks):
        return program.window_slots * max((block.buffers for block in program.blocks), default=1), 0
    return 0, program.window_slots


def wished(world: Setting, request: Request, asked: str | None) -> tuple[override.Override, str, str]:
    """What the call asks for, or else the setting: understood, as it was written, and who says so."""
    if asked:
        return override.parse(request.operation, asked, "algorithm"), asked, "the call"
    name = option_name(request.operation)
    text = world.options.get(name, "")
    return override.parse(request.operation, text, "HCOMM_" + name), text, f"the setting {name}"


def select(world: Setting, request: Request, asked: str | None = None) -> Selection:
    """The algorithm, its options and the reason.

    Raises:
        UnknownAlgorithm: the one asked for (by `asked` or a setting) is not registered, or cannot run here.
        ConfigError: what was asked for is not understood.
    """
    wish, text, source = wished(world, request, asked)
    if rule := wish.rule(request.nbytes):
        options = settled(rule.entry, rule.options, world, request)
        if problem := obstacle(rule.entry, world, request, options):
            raise UnknownAlgorithm(
                f"{request.operation} algorithm '{rule.entry.name}' (asked for by {source}) cannot run: {problem}"
            )
        return Selection(rule.entry, options, f"asked for by {source}")
    choices = _preferences(world, request)
    if world.scene is not None and (best := cheapest_name(world, request, choices, wish.excluded)):
        choices = [best, *choices]
    if wish.excluded:
        choices = [*choices, *_others(world, request)]
    for name, why in choices:
        entry = lookup(request.operation, name)
        options = settled(entry, (), world, request)
        if name not in wish.excluded and not obstacle(entry, world, request, options):
            return Selection(entry, options, why)
    if wish.excluded:
        raise UnknownAlgorithm(f"no {request.operation} algorithm is left that can run: {source} says {text}")
    raise UnknownAlgorithm(f"no {request.operation} algorithm can run here")


def cheapest_name(
    world: Setting, request: Request, table: list[tuple[str, str]], excluded: frozenset[str]
) -> tuple[str, str] | None:
    """What the measured costs say is cheapest, and why; None where they say nothing."""
    from .pricing import by_cost

    once = _rounds_once(world, request)
    able = []
    for entry in algorithms(request.operation):
        options = settled(entry, (), world, request)
        # Whether peers' buffers can be reached is settled call by call, so nothing can be promised of such algorithms.
        usable = entry.requires is not Requirement.ACCESS and (entry.reduces_once or not once)
        if usable and entry.name not in excluded and not obstacle(entry, world, request, options):
            able.append((entry, options))
    return by_cost(world, request, able, [name for name, _ in table])


def settled(entry: Algorithm, options: Options, world: Setting, request: Request) -> Options:
    """`options`, and what settings and sizes say of others: chunks of rings and trees, groups of fast links."""
    options = entry.fitted(options, request.nbytes, world.size)
    if world.groups and "groups" in entry.defaults and "groups" not in dict(options):
        options = (*options, ("groups", world.groups))
        if "inside" in entry.defaults and "inside" not in dict(options):
            options = (*options, ("inside", world.inside))
        options = tuple(sorted(options))
    chunk = world.options.get("RING_CHUNK_SIZE", "").strip()
    if (
        entry.name != "ring"
        or "chunk" in dict(options)
        or "chunk" not in entry.defaults
        or chunk in ("", "0")
    ):
        return options
    return entry.options({"chunk": chunk})


def _others(world: Setting, request: Request) -> list[tuple[str, str]]:
    """What may serve when exclusions leave none of the preferences."""
    once = _rounds_once(world, request)
    able = [a.name for a in algorithms(request.operation) if a.reduces_once or not once]
    return [(name, "the choices before it are excluded") for name in able]


def _preferences(world: Setting, request: Request) -> list[tuple[str, str]]:
    """Names in order of preference, with reasons; the last one can always run."""
    once = _rounds_once(world, request)
    if world.size == 1:
        return [(_anywhere(world, request, once)[0], "one rank: nothing to exchange")]
    choices = [_anywhere(world, request, once)]
    fast = _fast_groups(world, request, once)
    if not world.shared:
        if not once and request.nbytes > LATENCY_BYTES and any(len(clique) > 1 for clique in world.cliques):
            name = "hierarchical"
            if request.operation in ("all_reduce", "all_gather", "reduce_scatter"):
                choices.insert(0, (name, "hosts of several ranks: inside first, each byte once between them"))
        return [fast, *choices] if fast else choices
    if request.operation == "barrier":
        choices.insert(0, ("meet", "all ranks share memory"))
    elif request.operation in ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"):
        choices.insert(0, ("staged", "all ranks share memory"))
    oneshot = ("oneshot", f"all ranks share memory, together at most {ONESHOT_BYTES} bytes")
    if request.operation == "reduce" and request.nbytes * world.size <= ONESHOT_BYTES:
        choices.insert(0, oneshot)
    if request.operation == "all_reduce":
        if world.crowded and world.size > 2:
            choices[:0] = _crowded(world, request, once)
        elif request.nbytes * world.size <= ONESHOT_BYTES:
            choices.insert(0, oneshot)
        elif world.prefer_direct and request.nbytes >= DIRECT_BYTES:
            choices.insert(0, ("direct", "all ranks reach each other's buffers"))
    if fast:
        choices.insert(0, fast)
    return choices


def _crowded(world: Setting, request: Request, once: bool) -> list[tuple[str, str]]:
    """all_reduce in shared memory where ranks outnumber processors."""
    most, even, odd, why = next(row for row in CROWDED if request.nbytes <= row[0])
    name = even if world.size & (world.size - 1) == 0 else odd
    if once and not lookup("all_reduce", name).reduces_once:
        return []
    limit = f", at most {most} bytes" if most < CROWDED[-1][0] else ""
    return [(name, f"more ranks than processors{limit}: {why}")]


def _fast_groups(world: Setting, request: Request, once: bool) -> tuple[str, str] | None:
    """What uses the groups that the user described."""
    name = {"all_reduce": "grouped", "all_gather": "hierarchical", "reduce_scatter": "hierarchical"}
    if not world.groups or once or request.operation not in name or request.nbytes <= LATENCY_BYTES:
        return None
    return name[request.operation], f"fast links inside the groups {world.groups}"


def _rounds_once(world: Setting, request: Request) -> bool:
    """Must all contributions be added before rounding?"""
    if request.operation not in REDUCING:
        return False
    if world.options.get("DETERMINISTIC", "").strip().lower() == "strict" and request.dtype in _FLOATS:
        return True
    # Two ranks have one addition and so one rounding, unless a division follows it.
    return request.dtype in _HALF and (world.size > 2 or request.op == "avg")


def _anywhere(world: Setting, request: Request, once: bool) -> tuple[str, str]:
    """The choice that needs nothing but links."""
    small = request.nbytes <= LATENCY_BYTES
    rounding = f"{request.dtype} is added in rank order and rounded once"
    few_hops, each_byte_once = f"at most {LATENCY_BYTES} bytes: fewest hops", "large: every byte travels once"
    match request.operation:
        case "all_reduce":
            if once:
                return "pairwise", rounding
            return _all_reduce(world.size, request.nbytes, few_hops, each_byte_once)
        case "broadcast":
            if request.nbytes <= PIPELINE_BYTES:
                return "binomial", f"at most {PIPELINE_BYTES} bytes: not worth cutting"
            return "pipelined_tree", "large: all levels of the tree busy at once"
        case "reduce":
            return ("gather", rounding) if once else ("binomial", "the work is shared along a tree")
        case "all_gather":
            return ("pairwise", few_hops) if small else ("ring", each_byte_once)
        case "reduce_scatter":
            if once:
                return "pairwise", rounding
            return ("pairwise", few_hops) if small else ("ring", each_byte_once)
        case "barrier":
            return "dissemination", "fewest hops"
    return "pairwise", "every block goes straight to its rank"


def _all_reduce(size: int, nbytes: int, few_hops: str, each_byte_once: str) -> tuple[str, str]:
    if size > 1 and nbytes <= (PAIR_BYTES if size == 2 else LATENCY_BYTES):
        return "recursive_doubling", few_hops
    power = size & (size - 1) == 0
    halving = HALVING_BYTES if power else size * HALVING_BYTES_EACH
    if size > 2 and nbytes <= halving:
        return "halving_doubling", f"at most {halving} bytes: few hops, and every byte travels once"
    return "ring", each_byte_once
