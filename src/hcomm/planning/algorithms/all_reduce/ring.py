"""all_reduce round a ring."""

from ...builder import Builder
from ...registry import algorithm


@algorithm("all_reduce")
def ring(p: Builder) -> None:
    """Reduce-scatter, then all-gather, round a ring: 2(p-1)α + 2(p-1)/p·nβ (Patarasuk & Yuan 2009)."""
    for step in range(p.size - 1):
        p.send(p.next, p.chunk(p.rank - step))
        p.recv_reduce(p.prev, p.chunk(p.rank - step - 1))
    p.finish(p.chunk(p.rank + 1))
    for step in range(p.size - 1):
        p.send(p.next, p.chunk(p.rank - step + 1))
        p.recv(p.prev, p.chunk(p.rank - step))
