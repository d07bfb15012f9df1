"""all_to_all, peer access."""

from ...builder import Builder
from ...registry import ACCESS, algorithm
from ...volume import Volume


@algorithm(
    "all_to_all",
    requires=ACCESS,
    even_only=True,
    formula=lambda p: Volume(meets=2 * (p.size > 1), moved=2),
)
def direct(p: Builder) -> None:
    """Each rank copies its blocks out of the others' buffers: 2 meets, 2n traffic per rank.

    Where a block lies in another's buffer follows from the own lengths only if all blocks are of one length.
    """
    p.meet()
    for k in range(p.size):
        r = (p.rank + k) % p.size
        p.move(dst=p.out_block(r), src=p.at(r, p.in_block(p.rank)))
    p.meet()
