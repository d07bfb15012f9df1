"""broadcast down a binomial tree."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


def _volume(p: Builder) -> Volume:
    me = (p.rank - p.root) % p.size
    # The strides above one's own number, as long as they stay in the world.
    children = (p.size - 1 - me).bit_length() - me.bit_length() if 2 * me < p.size else 0
    return Volume(children, children)


@algorithm(
    "broadcast",
    formula=_volume,
)
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
