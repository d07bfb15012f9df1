"""reduce_scatter, peer access."""

from ...builder import Builder
from ...registry import ACCESS, algorithm
from ...volume import Volume


@algorithm(
    "reduce_scatter",
    requires=ACCESS,
    reduces_once=True,
    formula=lambda p: Volume(meets=2 * (p.size > 1), moved=(p.size + 1) / p.size),
)
def direct(p: Builder) -> None:
    """Each rank reduces its block straight from all buffers: 2 meets, n traffic per rank."""
    p.meet()
    p.move(dst=p.output(), src=[p.at(r, p.in_block(p.rank)) for r in p.ranks])
    p.meet()
