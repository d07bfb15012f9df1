"""all_reduce by halves of halves."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


def _volume(p: Builder) -> Volume:
    rounds = p.size.bit_length() - 1
    core = 1 << rounds
    extra = p.size - core
    if p.rank < 2 * extra and p.rank % 2 == 0:
        return Volume(1, 1)
    answers = p.rank < 2 * extra
    return Volume(2 * rounds + answers, 2 * (core - 1) / core + answers)


@algorithm("all_reduce", formula=_volume)
def halving_doubling(p: Builder) -> None:
    """Exchange half the vector, then a quarter, …, then back: 2 lg p·α + 2(p-1)/p·nβ (Rabenseifner 2004).

    Beyond a power of two, each rank too many first gives its vector to a neighbour, and waits for the sum: 2nβ.
    """
    core = 1 << p.size.bit_length() - 1
    extra = p.size - core
    if p.rank < 2 * extra and p.rank % 2 == 0:
        p.send(p.rank + 1, p.output())
        p.recv(p.rank + 1, p.output())
        return
    if p.rank < 2 * extra:
        p.recv_reduce(p.rank - 1, p.output())
    me = p.rank // 2 if p.rank < 2 * extra else p.rank - extra
    rounds = []
    for k in reversed(range(core.bit_length() - 1)):
        peer = me ^ 1 << k
        mine, theirs = (p.chunks(v >> k << k, (v >> k) + 1 << k, of=core) for v in (me, peer))
        rounds.append((2 * peer + 1 if peer < extra else peer + extra, mine, theirs))
    for peer, mine, theirs in rounds:
        p.send(peer, theirs)
        p.recv_reduce(peer, mine)
    p.finish(p.chunk(me, of=core))
    for peer, mine, theirs in reversed(rounds):
        p.send(peer, mine)
        p.recv(peer, theirs)
    if p.rank < 2 * extra:
        p.send(p.rank - 1, p.output())
