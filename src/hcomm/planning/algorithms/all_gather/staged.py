"""all_gather, shared memory."""

from ...builder import Builder
from ...registry import SHARED_MEMORY, algorithm
from ...volume import Volume


@algorithm(
    "all_gather",
    requires=SHARED_MEMORY,
    formula=lambda p: Volume(meets=p.size > 1, moved=(2 * p.size + (p.size > 1)) / p.size),
)
def staged(p: Builder) -> None:
    """Copy a tile into the own window while the others copy out the one before: one meet per tile."""
    mine = p.input()
    with p.tiles(256 << 10, buffers=2, stages=2):
        for r in p.ranks:
            if r != p.rank:
                p.move(dst=p.out_block(r), src=p.window(0, like=p.out_block(r), of=r), stage=1)
        p.move(
            dst=[p.window(0, like=mine), p.out_block(p.rank)] if p.size > 1 else p.out_block(0),
            src=mine,
            stage=0,
        )
        p.meet()
