"""all_reduce, shared memory, small vectors."""

from ...builder import Builder
from ...registry import SHARED_MEMORY, algorithm
from ...volume import Volume


@algorithm(
    "all_reduce",
    requires=SHARED_MEMORY,
    reduces_once=True,
    formula=lambda p: Volume(meets=p.size > 1, moved=p.size + 3),
)
def oneshot(p: Builder) -> None:
    """Everybody shows its vector and adds up all: one meet, p·n read per rank.

    The vector must fit one window. There is no closing meet: windows rotate from operation to operation.
    """
    vector = p.output()
    p.move(dst=p.window(0, like=vector), src=vector)
    p.meet()
    p.move(dst=vector, src=[vector if r == p.rank else p.window(0, like=vector, of=r) for r in p.ranks])
