"""barrier, shared memory."""

from ...builder import Builder
from ...registry import SHARED_MEMORY, algorithm
from ...volume import Volume


@algorithm(
    "barrier",
    requires=SHARED_MEMORY,
    formula=lambda p: Volume(meets=p.size > 1),
)
def meet(p: Builder) -> None:
    """One meet of all."""
    p.meet()
