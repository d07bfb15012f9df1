"""reduce, shared memory."""

from ...builder import Builder
from ...registry import SHARED_MEMORY, algorithm
from ...volume import Volume


@algorithm(
    "reduce",
    requires=SHARED_MEMORY,
    reduces_once=True,
    formula=lambda p: Volume(
        meets=p.size > 1,
        moved=((3 if p.rank != p.root else 5) * p.size - (1 if p.rank != p.root else 3)) / p.size,
    ),
)
def staged(p: Builder) -> None:
    """As all_reduce staged, but only the root copies out, and the others leave their buffers as they are.

    Every rank reduces one chunk, so all share the work: 2n traffic per rank, n more at the root, one meet per tile.
    """
    mine = p.input(p.chunk(p.rank))
    others = [r for r in p.ranks if r != p.rank]
    with p.tiles(512 << 10, buffers=2, stages=3):
        if p.rank == p.root:
            for r in others:
                p.move(dst=p.chunk(r), src=p.window(r, like=p.chunk(r), of=r), stage=2)
        p.move(
            dst=p.chunk(p.rank) if p.rank == p.root else p.window(p.rank, like=mine),
            src=[mine if r == p.rank else p.window(p.rank, like=mine, of=r) for r in p.ranks],
            stage=1,
        )
        for r in others:
            p.move(dst=p.window(r, like=p.chunk(r)), src=p.input(p.chunk(r)), stage=0)
        p.meet()
