"""reduce_scatter with one rounding over any links."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


@algorithm(
    "reduce_scatter",
    reduces_once=True,
    formula=lambda p: Volume(p.size - 1, (p.size - 1) / p.size, moved=(p.size + 1) / p.size),
)
def pairwise(p: Builder) -> None:
    """Each rank gathers all parts of its block, tile by tile, and reduces them in rank order: α + (p-1)/p·nβ."""
    mine = p.in_block(p.rank)
    with p.tiles(256 << 10, stages=2):
        for k in range(1, p.size):
            p.send((p.rank + k) % p.size, p.in_block((p.rank + k) % p.size), stage=0)
        for k in range(1, p.size):
            p.recv((p.rank - k) % p.size, p.scratch((p.rank - k) % p.size, like=mine), stage=1)
        p.move(
            dst=p.output(), src=[mine if r == p.rank else p.scratch(r, like=mine) for r in p.ranks], stage=1
        )
