"""all_reduce, shared memory, through windows."""

from ...builder import Builder
from ...registry import SHARED_MEMORY, algorithm
from ...volume import Volume


@algorithm(
    "all_reduce",
    requires=SHARED_MEMORY,
    reduces_once=True,
    formula=lambda p: Volume(meets=p.size > 1, moved=(5 * p.size - 2) / p.size),
)
def staged(p: Builder) -> None:
    """Copy in what others need, reduce the own chunk, copy out: 3n memory traffic per rank, one meet per tile.

    Slot r of a window holds the rank's part of chunk r; slot `rank` holds the reduced own chunk. In iteration i
    the stages work on tiles i, i-1 and i-2. What one stage writes, the next reads an iteration later, while the
    other buffer is written: so one meet per iteration orders all of it.
    """
    mine = p.chunk(p.rank)
    others = [r for r in p.ranks if r != p.rank]
    with p.tiles(512 << 10, buffers=2, stages=3):
        for r in others:
            p.move(dst=p.chunk(r), src=p.window(r, like=p.chunk(r), of=r), stage=2)
        p.move(
            dst=[mine, p.window(p.rank, like=mine)],
            src=[mine if r == p.rank else p.window(p.rank, like=mine, of=r) for r in p.ranks],
            stage=1,
        )
        for r in others:
            p.move(dst=p.window(r, like=p.chunk(r)), src=p.chunk(r), stage=0)
        p.meet()
