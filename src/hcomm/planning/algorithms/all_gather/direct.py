"""all_gather, peer access."""

from ...builder import Builder
from ...registry import ACCESS, algorithm
from ...volume import Volume


@algorithm("all_gather", requires=ACCESS, formula=lambda p: Volume(meets=2 * (p.size > 1), moved=2))
def direct(p: Builder) -> None:
    """Each rank puts its block in place, and copies the others' out of their buffers: 2 meets, 2n traffic per rank."""
    p.move(dst=p.out_block(p.rank), src=p.input())
    p.meet()
    for k in range(1, p.size):
        block = p.out_block((p.rank + k) % p.size)
        p.move(dst=block, src=p.at((p.rank + k) % p.size, block))
    p.meet()
