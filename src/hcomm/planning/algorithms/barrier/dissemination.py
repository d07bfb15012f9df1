"""barrier over any links."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


@algorithm(
    "barrier",
    formula=lambda p: Volume((p.size - 1).bit_length()),
)
def dissemination(p: Builder) -> None:
    """In step k hear from the rank 2^k behind, and so of all behind it: ⌈lg p⌉α (Hensgen, Finkel, Manber 1988)."""
    stride = 1
    while stride < p.size:
        p.send((p.rank + stride) % p.size, p.input())
        p.recv((p.rank - stride) % p.size, p.scratch(0, like=p.input()))
        stride *= 2
