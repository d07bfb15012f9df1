"""reduce with one rounding over any links."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


@algorithm(
    "reduce",
    reduces_once=True,
    formula=lambda p: Volume(moved=p.size + 1) if p.rank == p.root else Volume(1, 1),
)
def gather(p: Builder) -> None:
    """The root gathers all contributions, tile by tile, and reduces them in rank order: α + (p-1)nβ at the root."""
    with p.tiles(256 << 10):
        if p.rank != p.root:
            p.send(p.root, p.input())
        else:
            tile = p.input()
            for r in p.ranks:
                if r != p.rank:
                    p.recv(r, p.scratch(r, like=tile))
            p.move(dst=p.output(), src=[tile if r == p.rank else p.scratch(r, like=tile) for r in p.ranks])
