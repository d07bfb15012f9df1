"""reduce_scatter, shared memory."""

from ...builder import Builder
from ...registry import SHARED_MEMORY, algorithm
from ...volume import Volume


@algorithm(
    "reduce_scatter",
    requires=SHARED_MEMORY,
    reduces_once=True,
    formula=lambda p: Volume(meets=p.size > 1, moved=(3 * p.size - 1) / p.size),
)
def staged(p: Builder) -> None:
    """Copy in what others need while each reduces its block of the tile before: 2n traffic per rank, one meet per tile.

    A window holds the blocks of the others in rank order, without a gap for the own one.
    """
    mine = p.in_block(p.rank)
    with p.tiles(512 << 10, buffers=2, stages=2):
        p.move(
            dst=p.output(),
            src=[mine if r == p.rank else p.window(p.rank - (r < p.rank), like=mine, of=r) for r in p.ranks],
            stage=1,
        )
        for r in p.ranks:
            if r != p.rank:
                p.move(dst=p.window(r - (r > p.rank), like=p.in_block(r)), src=p.in_block(r), stage=0)
        p.meet()
