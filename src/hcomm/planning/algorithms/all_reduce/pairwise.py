"""all_reduce with one rounding over any links."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


@algorithm(
    "all_reduce",
    reduces_once=True,
    formula=lambda p: Volume(2 * (p.size - 1), 2 * (p.size - 1) / p.size, moved=(p.size + 1) / p.size),
)
def pairwise(p: Builder) -> None:
    """Each rank gathers all parts of its chunk, reduces them in rank order at once, sends the result to all.

    2α + 2(p-1)/p·nβ: as the ring, in two hops, with p·(p-1) messages at a time. The sum does not depend on
    arrival. Sends run one tile ahead of receives, results arrive one tile later; scratch is p tiles.
    """
    mine = p.chunk(p.rank)
    after = [(p.rank + k) % p.size for k in range(1, p.size)]
    before = after[::-1]
    with p.tiles(256 << 10, stages=3):
        for r in after:
            p.send(r, p.chunk(r), stage=0)
        for r in before:
            p.recv(r, p.scratch(r, like=mine), stage=1)
        p.move(dst=mine, src=[mine if r == p.rank else p.scratch(r, like=mine) for r in p.ranks], stage=1)
        for r in after:
            p.send(r, mine, stage=1)
        for r in before:
            p.recv(r, p.chunk(r), stage=2)
