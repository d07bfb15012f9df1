"""all_reduce by exchanges of whole vectors."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


def _volume(p: Builder) -> Volume:
    rounds = p.size.bit_length() - 1
    extra = p.size - (1 << rounds)
    if p.rank < 2 * extra and p.rank % 2 == 0:
        return Volume(1, 1)
    answers = p.rank < 2 * extra
    return Volume(rounds + answers, rounds + answers, moved=2 * (rounds + (rounds > 1)))


@algorithm("all_reduce", formula=_volume)
def recursive_doubling(p: Builder) -> None:
    """In each round exchange all that is known with the rank 2^k away: ⌈lg p⌉(α + nβ) (Thakur et al. 2005), small n.

    The farthest come first, most likely on other hosts: who is cut off from them is not ahead of its neighbours.
    Beyond a power of two, each rank too many first gives its vector to a neighbour, and waits for the sum: two
    hops more. What is sent must stay as it is until it was received, and no message says so, so each round has
    scratch memory of its own.
    """
    rounds = p.size.bit_length() - 1
    extra = p.size - (1 << rounds)
    if p.rank < 2 * extra and p.rank % 2 == 0:
        p.send(p.rank + 1, p.output())
        p.recv(p.rank + 1, p.output())
        return
    if p.rank < 2 * extra:
        p.recv_reduce(p.rank - 1, p.output())
    me = p.rank // 2 if p.rank < 2 * extra else p.rank - extra
    if rounds:
        p.move(dst=p.scratch(0, like=p.output()), src=p.output())
    for k in range(rounds):
        peer = me ^ 1 << rounds - 1 - k
        peer = 2 * peer + 1 if peer < extra else peer + extra
        total = p.scratch(k + 1, like=p.output()) if k < rounds - 1 else p.output()
        p.send(peer, p.scratch(k, like=p.output()))
        if rounds > 1:  # with one round the output still holds what was sent
            p.move(dst=total, src=p.scratch(k, like=p.output()))
        p.recv_reduce(peer, total)
    p.finish(p.output())
    if p.rank < 2 * extra:
        p.send(p.rank - 1, p.output())
