"""broadcast, peer access."""

from ...builder import Builder
from ...registry import ACCESS, algorithm
from ...volume import Volume


@algorithm(
    "broadcast",
    requires=ACCESS,
    formula=lambda p: Volume(meets=2 * (p.size > 1), moved=2 * (p.rank != p.root)),
)
def direct(p: Builder) -> None:
    """Each rank copies the vector out of the root's buffer: 2 meets, 2n traffic per rank."""
    p.meet()
    if p.rank != p.root:
        p.move(dst=p.output(), src=p.at(p.root, p.output()))
    p.meet()
