"""broadcast of large vectors down a binary tree."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


def _volume(p: Builder, chunk: int = 0) -> Volume:
    children = min(2, max(0, p.size - 1 - 2 * ((p.rank - p.root) % p.size)))
    return Volume(children, children)


@algorithm(
    "broadcast",
    formula=_volume,
)
def pipelined_tree(p: Builder, *, chunk: int = 1 << 20) -> None:
    """Tiles of T = `chunk` bytes flow down a binary tree, all levels busy at once: ⌈lg p⌉(α + Tβ) + 2nβ."""
    me = (p.rank - p.root) % p.size
    with p.tiles(-(-chunk // 64) * 64):
        if me:
            p.recv(((me - 1) // 2 + p.root) % p.size, p.output())
        for child in (2 * me + 1, 2 * me + 2):
            if child < p.size:
                p.send((child + p.root) % p.size, p.output())
