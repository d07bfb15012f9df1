"""barrier, shared memory."""

from ...builder import Builder
from ...registry import SHARED_MEMORY, algorithm


@algorithm("barrier", requires=SHARED_MEMORY)
def meet(p: Builder) -> None:
    """One meet of all."""
    p.meet()
