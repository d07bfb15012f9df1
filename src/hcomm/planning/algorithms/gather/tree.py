"""gather up a binomial tree."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


def _volume(p: Builder) -> Volume:
    me = (p.rank - p.root) % p.size
    subtree = min(me & -me, p.size - me)
    return Volume(subtree, subtree / p.size) if me else Volume(moved=2 / p.size)


@algorithm("gather", formula=_volume)
def tree(p: Builder) -> None:
    """Blocks go up a binomial tree: ⌈lg p⌉ hops and (p-1)/p·nβ at the root, which hears from ⌈lg p⌉ ranks only.

    Each block is a message of its own: it waits in scratch memory, where blocks of any length find no common place.
    """
    me = (p.rank - p.root) % p.size
    low = me & -me or p.size
    for bit in range((p.size - 1).bit_length()):
        child = me + (1 << bit)
        if 1 << bit >= low or child >= p.size:
            break
        for other in range(child, min(child + (1 << bit), p.size)):
            block = p.out_block((other + p.root) % p.size)
            p.recv((child + p.root) % p.size, p.scratch(other - me, like=block) if me else block)
    if me == 0:
        p.move(dst=p.out_block(p.rank), src=p.input())
        return
    parent = (me - low + p.root) % p.size
    p.send(parent, p.input())
    for other in range(me + 1, min(me + low, p.size)):
        p.send(parent, p.scratch(other - me, like=p.out_block((other + p.root) % p.size)))
