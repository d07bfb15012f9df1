"""all_gather, everybody to everybody."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


@algorithm(
    "all_gather",
    formula=lambda p: Volume(p.size - 1, (p.size - 1) / p.size, moved=2 / p.size),
)
def pairwise(p: Builder) -> None:
    """Each rank sends its block to all others at once: α + (p-1)/p·nβ, for small blocks."""
    p.move(dst=p.out_block(p.rank), src=p.input())
    for k in range(1, p.size):
        p.send((p.rank + k) % p.size, p.input())
    for k in range(1, p.size):
        p.recv((p.rank - k) % p.size, p.out_block((p.rank - k) % p.size))
