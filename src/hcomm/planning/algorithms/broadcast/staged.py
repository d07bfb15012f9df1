"""broadcast, shared memory."""

from ...builder import Builder
from ...registry import SHARED_MEMORY, algorithm
from ...volume import Volume


@algorithm(
    "broadcast",
    requires=SHARED_MEMORY,
    formula=lambda p: Volume(meets=p.size > 1, moved=2),
)
def staged(p: Builder) -> None:
    """The root copies a tile into its window, the others copy out the one before: 2n traffic, one meet per tile."""
    shown = p.window(0, like=p.output(), of=p.root)
    with p.tiles(256 << 10, buffers=2, stages=2):
        if p.rank == p.root:
            p.move(dst=shown, src=p.output(), stage=0)
        else:
            p.move(dst=p.output(), src=shown, stage=1)
        p.meet()
