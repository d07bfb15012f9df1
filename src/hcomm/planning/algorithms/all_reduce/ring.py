"""all_reduce round a ring."""

from ...builder import MAX_STAGES, Builder
from ...registry import algorithm
from ...volume import Volume


@algorithm("all_reduce", formula=lambda p, chunk=0: Volume(2 * (p.size - 1), 2 * (p.size - 1) / p.size))
def ring(p: Builder, *, chunk: int = 0) -> None:
    """Reduce-scatter, then all-gather, round a ring: 2(p-1)α + 2(p-1)/p·nβ (Patarasuk & Yuan 2009).

    With `chunk` bytes (HCOMM_RING_CHUNK_SIZE), messages are at most that long. As many of them are under way as
    the ring has hops, if the engine has a stage for each: a hop sends what came in the iteration before.
    """
    hops = range(2 * (p.size - 1))
    flowing = bool(chunk) and 0 < len(hops) <= MAX_STAGES
    with p.tiles(-(-chunk // 64) * 64, stages=len(hops) if flowing else 1):
        if flowing:
            for hop in hops:
                p.send(p.next, p.chunk(p.rank - hop), stage=hop)
        for hop in hops:
            stage = hop if flowing else 0
            if not flowing:
                p.send(p.next, p.chunk(p.rank - hop))
            if hop < p.size - 1:
                p.recv_reduce(p.prev, p.chunk(p.rank - hop - 1), stage)
            else:
                p.recv(p.prev, p.chunk(p.rank - hop - 1), stage)
            if hop == p.size - 2:
                p.finish(p.chunk(p.rank + 1), stage)
