"""all_reduce, peer access."""

from ...builder import Builder
from ...registry import ACCESS, algorithm
from ...volume import Volume


@algorithm(
    "all_reduce",
    requires=ACCESS,
    reduces_once=True,
    formula=lambda p: Volume(meets=2 * (p.size > 1), moved=2),
)
def direct(p: Builder) -> None:
    """Each rank reduces its chunk from all buffers and writes it into all: 2 meets, 2n traffic per rank."""
    mine = p.chunk(p.rank)
    everywhere = [p.at(r, mine) for r in p.ranks]
    p.meet()
    p.move(dst=everywhere, src=everywhere)
    p.meet()
