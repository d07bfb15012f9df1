"""What the collectives mean: the output that every rank must have, and the sizes on which to try.

Independent of any algorithm; `verify` holds programs against it.
"""

from __future__ import annotations

from collections.abc import Iterator

from .geometry import Sizes, blocks, exchange, vector


def expected(sizes: Sizes, rank: int, index: int) -> tuple[int, int]:
    """(ranks as bits, place in their input) of what the output of `rank` must hold at `index`."""
    size = len(sizes.n_in)
    match sizes.operation:
        case "broadcast":
            return 1 << sizes.root, index
        case "all_gather" | "gather" | "all_to_all":
            table = sizes.bounds_out[rank]
            source = next(r for r in range(size) if index < table[r + 1])
            start = sizes.bounds_in[source][rank] if sizes.operation == "all_to_all" else 0
            return 1 << source, start + index - table[source]
        case "reduce_scatter":
            return (1 << size) - 1, sizes.bounds_in[rank][rank] + index
        case "scatter":
            return 1 << sizes.root, sizes.bounds_in[sizes.root][rank] + index
    return (1 << size) - 1, index


def samples(operation: str, size: int, root: int = 0, even_only: bool = False) -> Iterator[tuple[Sizes, int]]:
    """(sizes, elements per tile) under which `verify` plays an algorithm.

    `even_only`: only such in which all blocks of an all_to_all are of one length.
    """
    if operation == "barrier":
        yield vector(operation, size, 0), 1
    elif even_only:
        for length in (0, 1, 3):
            yield exchange([[length] * size] * size), 2
    elif operation == "all_to_all":
        yield exchange([[0] * size] * size), 1
        for shift in (1, 2):
            yield exchange([[(q + 2 * r + shift) % 4 for r in range(size)] for q in range(size)]), 1
    elif operation in ("all_reduce", "broadcast", "reduce"):
        for in_place in (False, True) if operation == "reduce" else (True,):
            for count, align, tile in (
                (0, 1, 1),
                (1, 1, 1),
                (size - 1, 1, 1),
                (5 * size + 3, 1, 1),
                (3 * size + 2, 4, 2),
            ):
                yield vector(operation, size, count, root, align, in_place), tile
    else:
        lone = [0] * size
        lone[-1] = 1
        for in_place in (False, True):
            for lengths, tile in (
                ([0] * size, 1),
                (lone, 1),
                ([5] * size, 1),
                ([(3 * r + 2) % 7 for r in range(size)], 2),
            ):
                yield blocks(operation, lengths, root, in_place), tile
