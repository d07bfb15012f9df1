"""broadcast down a binomial tree."""

from ...builder import Builder
from ...registry import algorithm


@algorithm("broadcast")
def binomial(p: Builder) -> None:
    """The number of ranks that have the vector doubles with each step: ⌈lg p⌉(α + nβ)."""
    me = (p.rank - p.root) % p.size
    stride = 1
    while stride < p.size:
        peer = me ^ stride
        if me < stride and peer < p.size:
            p.send((peer + p.root) % p.size, p.output())
        elif stride <= me < 2 * stride:
            p.recv((peer + p.root) % p.size, p.output())
        stride *= 2
