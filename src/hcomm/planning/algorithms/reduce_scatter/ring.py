"""reduce_scatter round a ring."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


def _volume(p: Builder, chunk: int = 0) -> Volume:
    hops = p.size - 1
    return Volume(hops, hops / p.size, moved=2 * max(hops, 1) / p.size)


@algorithm("reduce_scatter", formula=_volume)
def ring(p: Builder, *, chunk: int = 1 << 20) -> None:
    """Partial sums travel round the ring: (p-1)α + (p-1)/p·nβ (Patarasuk & Yuan 2009).

    They lie in scratch memory, since the input stays as it is. Two buffers are enough: when a rank has received
    the last message of a tile, its next neighbour has finished the tile before, as that message came all the way
    round from it. Tiles have `chunk` bytes (HCOMM_RING_CHUNK_SIZE).
    """
    with p.tiles(-(-chunk // 64) * 64, buffers=2):
        total = p.in_block((p.rank - 1) % p.size)
        for step in range(p.size - 1):
            p.send(p.next, total)
            block = p.in_block((p.rank - step - 2) % p.size)
            total = p.scratch(step, like=block) if step < p.size - 2 else p.output()
            p.move(dst=total, src=block)
            p.recv_reduce(p.prev, total)
        if p.size > 1:
            p.finish(p.output())
        else:
            p.move(dst=p.output(), src=total)
