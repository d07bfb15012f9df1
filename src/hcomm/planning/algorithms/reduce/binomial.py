"""reduce up a binomial tree."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume

PIECES = 8


def _volume(p: Builder) -> Volume:
    me = (p.rank - p.root) % p.size
    adds = me % 2 == 0 and me + 1 < p.size
    return Volume(PIECES, 1, moved=2 * adds) if me else Volume(moved=2)


@algorithm(
    "reduce",
    formula=_volume,
)
def binomial(p: Builder) -> None:
    """Pairs add up, then pairs of pairs: ⌈lg p⌉α + nβ(1 + ⌈lg p⌉/8), as the vector goes up in 8 pieces.

    Inner ranks add in scratch memory, because the buffers of all but the root stay as they are. Each piece has a
    scratch slot of its own: nobody tells a sender that its slot is free again.
    """
    me = (p.rank - p.root) % p.size
    strides = [1 << bit for bit in range(p.size.bit_length()) if 1 << bit < p.size]
    lowest = (me & -me) if me else p.size
    children = [(me + s + p.root) % p.size for s in strides if s < lowest and me + s < p.size]
    for number in range(PIECES):
        piece = p.chunk(number, of=PIECES)
        total = p.scratch(number, like=piece) if me and children else p.input(piece) if me else piece
        if total != p.input(piece):
            p.move(dst=total, src=p.input(piece))
        for child in children:
            p.recv_reduce(child, total)
        if me:
            p.send((me - lowest + p.root) % p.size, total)
        elif p.size > 1:
            p.finish(total)
