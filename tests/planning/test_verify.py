"""Every algorithm is proved; without any one of its steps it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hcomm.planning.builder import ROOTED
from hcomm.planning.program import Program
from hcomm.planning.registry import LINKS, Algorithm, algorithms, lookup
from hcomm.planning.verify import VerificationError, samples, verify, verify_programs

EVERY_ALGORITHM = [pytest.param(a, id=f"{a.operation}-{a.name}") for a in algorithms()]
ON_LINKS = [pytest.param(a, id=f"{a.operation}-{a.name}") for a in algorithms() if a.requires is LINKS]


#: Hosts of different size, in any order of ranks: (size, cliques).
UNEVEN = [
    (3, [(0,), (1, 2)]),
    (5, [(0, 2, 4), (1, 3)]),
    (6, [(0,), (1, 2, 3), (4, 5)]),
    (8, [(0, 1, 2), (3, 4, 5), (6, 7)]),
]
#: The same, larger: minutes.
UNEVEN_LARGE = [
    (13, [(0, 3, 6, 9, 12), (1, 4, 7, 10), (2, 5, 8, 11)]),
    (17, [tuple(range(8)), tuple(range(8, 16)), (16,)]),
    (24, [tuple(range(8)), tuple(range(8, 20)), tuple(range(20, 24))]),
]
GRIDS = [(6, "3x2"), (6, "2x3"), (9, "3x3"), (15, "5x3"), (7, "7x1"), (7, "1x7")]
GRIDS_LARGE = [(15, "3x5"), (21, "3x7"), (25, "5x5"), (35, "7x5")]


def roots_of(entry: Algorithm, size: int) -> list[int]:
    """Every root of the smaller worlds; of the larger ones one in the middle."""
    if entry.operation not in ROOTED:
        return [0]
    return list(range(size)) if size <= 5 else [size // 2] if size > 9 else [0, size // 2, size - 1]


@pytest.mark.parametrize("entry", EVERY_ALGORITHM)
@pytest.mark.parametrize("size", range(1, 18))
def test_every_algorithm(entry: Algorithm, size: int) -> None:
    for root in roots_of(entry, size):
        verify(entry, size, root=root)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("entry", EVERY_ALGORITHM)
@pytest.mark.parametrize("size", [32, 64])
def test_every_algorithm_at_scale(entry: Algorithm, size: int) -> None:
    verify(entry, size, root=size // 3)


def test_a_sample_at_scale() -> None:
    verify(lookup("all_reduce", "halving_doubling"), 32)
    verify(lookup("all_gather", "recursive"), 32)


@pytest.mark.parametrize("entry", ON_LINKS)
@pytest.mark.parametrize(
    "cliques", [[(0,), (1,), (2,)], [(0, 1), (2, 3)], *(cliques for _, cliques in UNEVEN)], ids=str
)
def test_links_serve_any_hosts(entry: Algorithm, cliques: list[tuple[int, ...]]) -> None:
    verify(entry, sum(map(len, cliques)), cliques, root=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("entry", ON_LINKS)
@pytest.mark.parametrize("cliques", [cliques for _, cliques in UNEVEN_LARGE], ids=str)
def test_links_serve_any_hosts_at_scale(entry: Algorithm, cliques: list[tuple[int, ...]]) -> None:
    verify(entry, sum(map(len, cliques)), cliques, root=1)


@pytest.mark.parametrize(
    ("size", "grid"), [*GRIDS, *(pytest.param(*g, marks=pytest.mark.slow) for g in GRIDS_LARGE)]
)
def test_grids(size: int, grid: str) -> None:
    verify(lookup("all_reduce", "torus2d"), size, options=(("grid", grid),))


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_rings_in_pieces(operation: str, size: int) -> None:
    verify(lookup(operation, "ring"), size, options=(("chunk", 1000),))
    program = lookup(operation, "ring").program(0, size, options=(("chunk", 1000),))
    assert [block.tile_bytes for block in program.blocks if block.steps] == [1024] * len(program.blocks)


def test_a_ring_with_more_hops_than_stages_still_works_in_pieces() -> None:
    program = lookup("all_reduce", "ring").program(0, 40, options=(("chunk", 4096),))
    assert (program.blocks[0].tile_bytes, program.blocks[0].stages) == (4096, 1)


@pytest.mark.parametrize("entry", EVERY_ALGORITHM)
def test_one_rank_sees_the_longest_region_of_all(entry: Algorithm) -> None:
    """Each rank finds the number of tiles from the regions of its own program: no agreement is needed."""
    for size in (2, 3, 5, 8):
        for root in (0, size - 1):
            for sizes, _ in samples(entry.operation, size, root):
                for rank in range(size):
                    for block in entry.program(rank, size, root=root).blocks:
                        own = [sizes.extent(rank, r)[1] for s in block.steps for r in s.dst + s.src]
                        assert not block.tile_bytes or max(own) == sizes.longest(block)


def test_shared_memory_needs_one_host() -> None:
    for entry in algorithms():
        if entry.requires is not LINKS:
            with pytest.raises(ValueError, match="needs memory shared by all ranks"):
                verify(entry, 4, [(0, 1), (2, 3)])


@pytest.mark.parametrize("entry", EVERY_ALGORITHM)
def test_every_step_matters(entry: Algorithm) -> None:
    """Leave out any one step of any rank: the proof fails."""
    for size, cliques in ((2, None), (3, None), (4, None), (5, [(0, 1), (2, 3, 4)])):
        if size == 5 and entry.requires is not LINKS:
            continue
        programs = [entry.program(rank, size, cliques, root=1) for rank in range(size)]
        for rank, program in enumerate(programs):
            for number, block in enumerate(program.blocks):
                for index in range(len(block.steps)):
                    broken = list(programs)
                    broken[rank] = _without(program, number, index)
                    with pytest.raises(VerificationError, match=rf"for {size} ranks .*rank \d"):
                        for sizes, tile in samples(entry.operation, size, 1, entry.even_only):
                            verify_programs(broken, sizes, tile)


def _without(program: Program, number: int, index: int) -> Program:
    block = program.blocks[number]
    less = replace(block, steps=block.steps[:index] + block.steps[index + 1 :])
    return replace(program, blocks=(*program.blocks[:number], less, *program.blocks[number + 1 :]))
