"""reduce, shared memory, small vectors."""

from ...builder import Builder
from ...registry import SHARED_MEMORY, algorithm
from ...volume import Volume


@algorithm(
    "reduce",
    requires=SHARED_MEMORY,
    reduces_once=True,
    formula=lambda p: Volume(meets=p.size > 1, moved=p.size + 1 if p.rank == p.root else 2),
)
def oneshot(p: Builder) -> None:
    """All but the root show their vectors, and the root adds up all: one meet, p·n read at the root.

    The vector must fit one window. There is no closing meet: windows rotate from operation to operation.
    """
    vector = p.input()
    p.windows(1)
    if p.rank != p.root:
        p.move(dst=p.window(0, like=vector), src=vector)
    p.meet()
    if p.rank == p.root:
        shown = [vector if r == p.rank else p.window(0, like=vector, of=r) for r in p.ranks]
        p.move(dst=p.output(), src=shown)
