"""broadcast of large vectors down a binary tree."""

from math import isqrt

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume

#: α/β: what a link would carry in the time of a hop, on networks of 10 Gbit/s (bytes).
_HOP = 32 << 10


def _volume(p: Builder, chunk: int = 0) -> Volume:
    children = min(2, max(0, p.size - 1 - 2 * ((p.rank - p.root) % p.size)))
    return Volume(children, children)


def _fit(nbytes: int, size: int) -> dict[str, int]:
    """The chunk that balances filling the tree with a hop for each chunk, √(nα/(β lg p)), from 64 KB to 1 MB."""
    even = isqrt(nbytes * _HOP // max(1, size.bit_length() - 1))
    return {"chunk": 1 << min(max(even.bit_length() - 1, 16), 20)}


@algorithm("broadcast", formula=_volume, fit=_fit)
def pipelined_tree(p: Builder, *, chunk: int = 1 << 20) -> None:
    """Tiles of T = `chunk` bytes flow down a binary tree, all levels busy at once: ⌈lg p⌉(α + Tβ) + 2nβ.

    The two children of a rank, and so all leaves, are fed different tiles at the same time. Without `chunk` it follows
    from the size.
    """
    me = (p.rank - p.root) % p.size
    with p.tiles(-(-chunk // 64) * 64, stages=2 if chunk else 1):
        if me:
            p.recv(((me - 1) // 2 + p.root) % p.size, p.output())
        for side, child in enumerate((2 * me + 1, 2 * me + 2)):
            if child < p.size:
                p.send((child + p.root) % p.size, p.output(), stage=side if chunk else 0)
