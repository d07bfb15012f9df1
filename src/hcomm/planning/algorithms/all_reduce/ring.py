"""all_reduce round a ring."""

from ...builder import MAX_STAGES, Builder
from ...registry import algorithm
from ...volume import Volume

#: Over TCP inside a host 100 MB take 0.77 of the time that whole chunks take (2 and 4 ranks).
CHUNK = 1 << 20


@algorithm("all_reduce", formula=lambda p, chunk=0: Volume(2 * (p.size - 1), 2 * (p.size - 1) / p.size))
def ring(p: Builder, *, chunk: int = CHUNK) -> None:
    """Reduce-scatter, then all-gather, round a ring: 2(p-1)α + 2(p-1)/p·nβ (Patarasuk & Yuan 2009).

    Messages are at most `chunk` bytes (HCOMM_RING_CHUNK_SIZE; 0: whole chunks): what a piece adds is still in the
    cache when it is sent on. Latency is nothing to pieces of 1 MB; of smaller ones as many are under way as the ring
    has hops, if the engine has a stage for each: a hop sends what came in the iteration before.
    """
    hops = range(2 * (p.size - 1))
    flowing = 0 < chunk < CHUNK and 0 < len(hops) <= MAX_STAGES
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
