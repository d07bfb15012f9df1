"""all_reduce up and down two trees."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


def _parent(place: int, size: int) -> int:
    """In a tree of which odd places are the leaves, 0 is the root, and children are 2^k to both sides."""
    low = place & -place
    return up if (up := place - low | low << 1) < size else place - low


def _volume(p: Builder, chunk: int = 0) -> Volume:
    messages = 0
    for place in (p.rank, p.size - 1 - p.rank if p.size % 2 == 0 else (p.rank + 1) % p.size):
        inner = place % 2 == 0 and place > 0
        messages += (1 + (place + 1 < p.size) if inner else place == 0 < p.size - 1) + (place > 0)
    return Volume(messages, messages / 2)


@algorithm("all_reduce", formula=_volume)
def double_binary_tree(p: Builder, *, chunk: int = 128 << 10) -> None:
    """Two trees, half the vector up and down each, in tiles: 4 lg p·α + 2nβ + O(√(αβn lg p)) (Sanders et al. 2009).

    The second tree is the first one mirrored, or shifted by one for odd sizes: leaves of the one are inner nodes
    of the other, so everybody sends. Sums come down as many tiles later as the way up and down has hops.
    """
    lag = 2 * (p.size - 1).bit_length()
    mirrored = [p.size - 1 - r if p.size % 2 == 0 else (r - 1) % p.size for r in p.ranks]
    with p.tiles(-(-chunk // 64) * 64, stages=lag + 1):
        for half, order in enumerate((p.ranks, mirrored)):
            place, part = order.index(p.rank), p.chunk(half, of=2)
            children = [order[c] for c in range(1, p.size) if _parent(c, p.size) == place]
            parent = order[_parent(place, p.size)]
            for child in children:
                p.recv_reduce(child, part, stage=0)
            if place:
                p.send(parent, part, stage=0)
                p.recv(parent, part, stage=lag)
            else:
                p.finish(part, stage=0)
            for child in children:
                p.send(child, part, stage=lag)
