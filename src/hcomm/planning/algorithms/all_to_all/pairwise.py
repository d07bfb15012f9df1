"""all_to_all over any links."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


@algorithm(
    "all_to_all",
    formula=lambda p: Volume(p.size - 1, (p.size - 1) / p.size, moved=2 / p.size),
)
def pairwise(p: Builder) -> None:
    """In step k each rank sends to the one k ahead and receives from the one k behind: (p-1)α + (p-1)/p·nβ."""
    p.move(dst=p.out_block(p.rank), src=p.in_block(p.rank))
    for k in range(1, p.size):
        ahead, behind = (p.rank + k) % p.size, (p.rank - k) % p.size
        p.send(ahead, p.in_block(ahead))
        p.recv(behind, p.out_block(behind))
