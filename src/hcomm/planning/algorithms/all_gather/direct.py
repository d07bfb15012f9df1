"""all_gather, peer access."""

from ...builder import Builder
from ...registry import ACCESS, algorithm
from ...volume import Volume


@algorithm(
    "all_gather",
    requires=ACCESS,
    formula=lambda p: Volume(meets=2 * (p.size > 1), moved=(p.size + 1) / p.size),
)
def direct(p: Builder) -> None:
    """Each rank writes its block into all outputs, its own first: 2 meets, n written per rank, each block read once."""
    places = [p.at((p.rank + k) % p.size, p.out_block(p.rank)) for k in p.ranks]
    p.meet()
    p.move(dst=places, src=p.input())
    p.meet()
