"""all_gather round a ring."""

from ...builder import MAX_STAGES, Builder
from ...registry import algorithm
from ...volume import Volume


@algorithm(
    "all_gather",
    formula=lambda p, chunk=0: Volume(p.size - 1, (p.size - 1) / p.size, moved=2 / p.size),
)
def ring(p: Builder, *, chunk: int = 0) -> None:
    """Every block travels once round the ring: (p-1)α + (p-1)/p·nβ (Thakur, Rabenseifner, Gropp 2005).

    With `chunk` bytes (HCOMM_RING_CHUNK_SIZE), messages are at most that long: see all_reduce's ring.
    """
    hops = range(p.size - 1)
    flowing = bool(chunk) and 0 < len(hops) <= MAX_STAGES
    with p.tiles(-(-chunk // 64) * 64, stages=len(hops) if flowing else 1):
        p.move(dst=p.out_block(p.rank), src=p.input())
        if flowing:
            for hop in hops:
                p.send(p.next, p.out_block((p.rank - hop) % p.size), stage=hop)
        for hop in hops:
            if not flowing:
                p.send(p.next, p.out_block((p.rank - hop) % p.size))
            p.recv(p.prev, p.out_block((p.rank - hop - 1) % p.size), stage=hop if flowing else 0)
