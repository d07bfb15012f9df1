"""broadcast of large vectors in pieces."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


def _subtree(place: int, size: int) -> int:
    """How many ranks, itself the first, a rank passes its part of the scatter on to."""
    return min(place & -place or size, size - place)


def _volume(p: Builder) -> Volume:
    me = (p.rank - p.root) % p.size
    below, onward = _subtree(me, p.size), p.size - _subtree((me + 1) % p.size, p.size)
    return Volume((below - 1).bit_length() + onward, (below - 1 + onward) / p.size)


@algorithm("broadcast", formula=_volume)
def scatter_allgather(p: Builder) -> None:
    """Scatter down a binomial tree, all-gather round a ring: (⌈lg p⌉ + p-1)α + 2(p-1)/p·nβ (van de Geijn 1994).

    Nobody is sent again what it had to pass on in the scatter; the root is sent nothing.
    """
    me = (p.rank - p.root) % p.size
    mine, next_has = _subtree(me, p.size), _subtree((me + 1) % p.size, p.size)
    if me:
        p.recv((me - (me & -me) + p.root) % p.size, p.chunks(me, me + mine))
    for bit in reversed(range((mine - 1).bit_length())):
        child = me + (1 << bit)
        p.send((child + p.root) % p.size, p.chunks(child, min(child + (1 << bit), me + mine)))
    for step in range(p.size - 1):
        if step < p.size - next_has:
            p.send(p.next, p.chunk(me - step))
        if step < p.size - mine:
            p.recv(p.prev, p.chunk(me - step - 1))
