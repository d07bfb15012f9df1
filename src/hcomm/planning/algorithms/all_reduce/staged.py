"""all_reduce, shared memory, through windows."""

from ...builder import Builder
from ...registry import SHARED_MEMORY, algorithm
from ...volume import Volume

#: Tiles, and smaller ones for vectors of which a part stays in the nearest cache together with the windows: from 2 to
#: 16 MB they take 0.8 of the time, beyond 1.08 times (2 to 4 ranks on 2 processors with 1 MB each).
TILE, SMALL_TILE = 512 << 10, 256 << 10
_SMALL_FROM, _SMALL_TO = 2 << 20, 16 << 20


def _fit(nbytes: int, size: int) -> dict[str, int]:
    return {"chunk": SMALL_TILE} if _SMALL_FROM <= nbytes <= _SMALL_TO else {}


@algorithm(
    "all_reduce",
    requires=SHARED_MEMORY,
    reduces_once=True,
    fit=_fit,
    formula=lambda p, chunk=0: Volume(meets=p.size > 1, moved=(5 * p.size - 2) / p.size),
)
def staged(p: Builder, *, chunk: int = TILE) -> None:
    """Copy in what others need, reduce the own chunk, copy out: 3n memory traffic per rank, one meet per tile.

    Slot r of a window holds the rank's part of chunk r; slot `rank` holds the reduced own chunk. In iteration i
    the stages work on tiles i, i-1 and i-2. What one stage writes, the next reads an iteration later, while the
    other buffer is written: so one meet per iteration orders all of it.
    """
    mine = p.chunk(p.rank)
    others = [r for r in p.ranks if r != p.rank]
    with p.tiles(-(-chunk // 64) * 64, buffers=2, stages=3):
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
