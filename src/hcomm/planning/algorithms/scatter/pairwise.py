"""scatter over any links."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


@algorithm(
    "scatter",
    formula=lambda p: (
        Volume(p.size - 1, (p.size - 1) / p.size, moved=2 / p.size) if p.rank == p.root else Volume()
    ),
)
def pairwise(p: Builder) -> None:
    """The root sends each rank its block: α + (p-1)/p·nβ at the root."""
    if p.rank != p.root:
        p.recv(p.root, p.output())
        return
    for k in range(1, p.size):
        r = (p.rank + k) % p.size
        p.send(r, p.in_block(r))
    p.move(dst=p.output(), src=p.in_block(p.rank))
