"""reduce_scatter by halving."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


def _volume(p: Builder) -> Volume:
    rounds = (p.size - 1).bit_length()
    kept = max((min(1 << k, p.size - (1 << k)) for k in range(rounds)), default=1)
    return Volume(p.size - 1, (p.size - 1) / p.size, moved=2 * kept / p.size)


@algorithm("reduce_scatter", formula=_volume)
def recursive(p: Builder) -> None:
    """In each round hand half of the partial sums to the rank half as far away: ⌈lg p⌉α + (p-1)/p·nβ, any p.

    The all-gather of Bruck et al. 1997 played backwards. Partial sums lie in scratch memory, because inputs stay as
    they are: block by block, as no two need be of one length.
    """
    total = {r: p.in_block(r) for r in p.ranks}
    for k in reversed(range((p.size - 1).bit_length())):
        stride = 1 << k
        count = min(stride, p.size - stride)
        for i in range(count):
            p.send((p.rank + stride) % p.size, total[(p.rank + stride + i) % p.size])
        for i in range(count):
            r = (p.rank + i) % p.size
            if total[r] == p.in_block(r):
                total[r] = p.scratch(i, like=p.in_block(r)) if i else p.output()
                p.move(dst=total[r], src=p.in_block(r))
            p.recv_reduce((p.rank - stride) % p.size, total[r])
    if p.size > 1:
        p.finish(p.output())
    else:
        p.move(dst=p.output(), src=p.input())
