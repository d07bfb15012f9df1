"""all_gather, shared memory."""

from ...builder import Builder
from ...registry import SHARED_MEMORY, algorithm
from ...volume import Volume


@algorithm(
    "all_gather",
    requires=SHARED_MEMORY,
    formula=lambda p: Volume(meets=p.size > 1, moved=2 if p.size == 1 else (2 * p.size + 2) / p.size),
)
def staged(p: Builder) -> None:
    """Show a tile in the own window, put it in place, and copy out the others' tiles before it: one wait per tile.

    A post says that the tile is shown and the others' tiles before it are read, so two buffers are enough. The own copy
    stands between post and wait, for whoever comes later.
    """
    mine = p.input()
    others = [r for r in p.ranks if r != p.rank]
    with p.tiles(256 << 10, buffers=2, stages=2):
        p.await_(others, stage=1)
        for r in others:
            p.move(dst=p.out_block(r), src=p.window(0, like=p.out_block(r), of=r), stage=1)
        if others:
            p.move(dst=p.window(0, like=mine), src=mine, stage=0)
        p.post(others, stage=0)
        p.move(dst=p.out_block(p.rank), src=mine, stage=0)
