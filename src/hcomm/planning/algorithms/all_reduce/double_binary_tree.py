"""all_reduce up and down two trees."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


def _parent(place: int, size: int) -> int:
    """In a tree of which odd places are the leaves, 0 is the root, and children are 2^k to both sides."""
    low = place & -place
    return up if (up := place - low | low << 1) < size else place - low


def _depth(place: int, size: int) -> int:
    return 1 + _depth(_parent(place, size), size) if place else 0


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
    of the other, so everybody sends. A tile makes one hop in an iteration: what a rank waits for was sent in the
    iteration before, so neither tree holds up the other, and the messages of a pair keep one order.
    """
    top = p.size.bit_length()  # the stage at which sums are complete: no tree is deeper
    mirrored = [p.size - 1 - r if p.size % 2 == 0 else (r - 1) % p.size for r in p.ranks]
    trees = []
    for half, order in enumerate((list(p.ranks), mirrored)):
        place = order.index(p.rank)
        children = [order[c] for c in range(1, p.size) if _parent(c, p.size) == place]
        trees.append((p.chunk(half, of=2), order[_parent(place, p.size)], children, _depth(place, p.size)))
    with p.tiles(-(-chunk // 64) * 64, stages=2 * top + 1):
        for part, parent, children, depth in trees:
            for child in children:
                p.recv_reduce(child, part, stage=top - depth)
            if depth:
                p.send(parent, part, stage=top - depth)
            else:
                p.finish(part, stage=top)
        for part, parent, children, depth in trees:
            if depth:
                p.recv(parent, part, stage=top + depth)
            for child in children:
                p.send(child, part, stage=top + depth)
