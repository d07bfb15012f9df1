"""gather over any links."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


@algorithm(
    "gather",
    formula=lambda p: Volume(moved=2 / p.size) if p.rank == p.root else Volume(1, 1 / p.size),
)
def pairwise(p: Builder) -> None:
    """Everybody sends its block to the root: α + (p-1)/p·nβ at the root."""
    if p.rank != p.root:
        p.send(p.root, p.input())
        return
    p.move(dst=p.out_block(p.rank), src=p.input())
    for k in range(1, p.size):
        r = (p.rank + k) % p.size
        p.recv(r, p.out_block(r))
