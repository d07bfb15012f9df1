"""all_gather by doubling."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


def _volume(p: Builder) -> Volume:
    rounds = (p.size - 1).bit_length()
    wraps = sum(p.rank + min(1 << k, p.size - (1 << k)) > p.size for k in range(rounds))
    return Volume(rounds + wraps, (p.size - 1) / p.size, moved=2 / p.size)


@algorithm("all_gather", formula=_volume)
def recursive(p: Builder) -> None:
    """In round k get the 2^k blocks of the rank 2^k ahead: ⌈lg p⌉α + (p-1)/p·nβ, any p (Bruck et al. 1997).

    Blocks lie where they belong from the start; those that go round the end are two messages.
    """
    p.move(dst=p.out_block(p.rank), src=p.input())
    for k in range((p.size - 1).bit_length()):
        stride = 1 << k
        count = min(stride, p.size - stride)
        ahead = (p.rank + stride) % p.size
        for begin, end in _spans(p.rank, count, p.size):
            p.send((p.rank - stride) % p.size, p.out_blocks(begin, end))
        for begin, end in _spans(ahead, count, p.size):
            p.recv(ahead, p.out_blocks(begin, end))


def _spans(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """`count` ranks from `first` on, round the end."""
    over = first + count - size
    return [(first, first + count)] if over <= 0 else [(first, size), (0, over)]
