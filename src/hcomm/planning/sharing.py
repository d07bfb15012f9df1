"""Operations on memory that ranks have shared: which go straight between the buffers, and who must offer what."""

from __future__ import annotations

from .program import OWN, Kind, Program, Space
from .registry import Algorithm, Options, algorithms
from .select import Request, Setting, fallback, obstacle, wished

#: From here on a second meeting costs less than copying through windows (bytes).
SHARED_BYTES = 32 << 10
#: Above this many ranks on one host nothing is asked: writing everybody's program would take too long.
MOST_RANKS = 64
_NAME = "direct"


def candidate(world: Setting, request: Request, asked: str | None) -> Algorithm | None:
    """What runs in an operation whose tensors all lie in shared memory; None if the usual choice does there too."""
    if not 1 < world.size <= MOST_RANKS or not world.shared or request.nbytes < SHARED_BYTES:
        return None
    wish = wished(world, request, asked)[0]
    if wish.rule(request.nbytes) or _NAME in wish.excluded:
        return None
    entry = next((a for a in algorithms(request.operation) if a.name == _NAME), None)
    if entry is None or (entry.even_only and not request.nbytes):
        return None
    # Without sharing its fallback must be able to run, as for everything that needs access.
    return None if obstacle(fallback(request.operation), world, request) else entry


def reach(entry: Algorithm, world: Setting, root: int, options: Options) -> tuple[list[bool], list[bool]]:
    """By rank: whether others reach into its input, and into its output; empty: into everybody's, or nobody looked."""
    if world.size > MOST_RANKS:
        return [], []
    inputs, outputs = [False] * world.size, [False] * world.size
    for rank in range(world.size):
        _note(entry.program(rank, world.size, world.cliques, root, options), inputs, outputs)
    return inputs, outputs


def _note(program: Program, inputs: list[bool], outputs: list[bool]) -> None:
    for block in program.blocks:
        for step in block.steps:
            if step.kind is not Kind.MOVE:
                continue
            for region in (*step.dst, *step.src):
                if region.owner != OWN and region.space in (Space.INPUT, Space.OUTPUT):
                    (inputs if region.space is Space.INPUT else outputs)[region.owner] = True
