"""all_gather round a ring."""

from ...builder import Builder
from ...registry import algorithm


@algorithm("all_gather")
def ring(p: Builder) -> None:
    """Every block travels once round the ring: (p-1)α + (p-1)/p·nβ (Thakur, Rabenseifner, Gropp 2005)."""
    p.move(dst=p.out_block(p.rank), src=p.input())
    for step in range(p.size - 1):
        p.send(p.next, p.out_block((p.rank - step) % p.size))
        p.recv(p.prev, p.out_block((p.rank - step - 1) % p.size))
