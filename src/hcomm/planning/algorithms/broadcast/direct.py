"""broadcast, peer access."""

from ...builder import Builder
from ...registry import ACCESS, algorithm
from ...volume import Volume


@algorithm(
    "broadcast",
    requires=ACCESS,
    formula=lambda p: Volume(meets=2 * (p.size > 1), moved=p.size > 1),
)
def direct(p: Builder) -> None:
    """Each rank, the root too, copies one chunk from the root's buffer into all others: 2 meets, n traffic per rank."""
    mine = p.chunk(p.rank)
    others = [(p.rank + k) % p.size for k in p.ranks if (p.rank + k) % p.size != p.root]
    p.meet()
    if others:
        p.move(dst=[p.at(r, mine) for r in others], src=p.at(p.root, mine))
    p.meet()
