"""reduce_scatter round a ring."""

from ...builder import Builder
from ...registry import algorithm


@algorithm("reduce_scatter")
def ring(p: Builder) -> None:
    """Partial sums travel round the ring: (p-1)α + (p-1)/p·nβ (Patarasuk & Yuan 2009).

    They lie in scratch memory, since the input stays as it is. Two buffers are enough: when a rank has received
    the last message of a tile, its next neighbour has finished the tile before, as that message came all the way
    round from it.
    """
    with p.tiles(1 << 20, buffers=2):
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
