"""all_reduce at rank 0."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


@algorithm(
    "all_reduce",
    formula=lambda p: Volume(p.size - 1, p.size - 1) if p.rank == 0 else Volume(1, 1),
)
def star(p: Builder) -> None:
    """Rank 0 adds up all in rank order and sends the sum back: 2(p-1)(α + nβ) at rank 0, two hops for all others."""
    if p.rank == 0:
        for r in p.ranks[1:]:
            p.recv_reduce(r, p.output())
        p.finish(p.output())
        for r in p.ranks[1:]:
            p.send(r, p.output())
    else:
        p.send(0, p.output())
        p.recv(0, p.output())
