"""Every algorithm is proved; without any one of its steps it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hcomm.planning.builder import ROOTED
from hcomm.planning.program import Program
from hcomm.planning.registry import LINKS, Algorithm, algorithms
from hcomm.planning.verify import VerificationError, samples, verify, verify_programs

EVERY_ALGORITHM = [pytest.param(a, id=f"{a.operation}-{a.name}") for a in algorithms()]
ON_LINKS = [pytest.param(a, id=f"{a.operation}-{a.name}") for a in algorithms() if a.requires is LINKS]


@pytest.mark.parametrize("entry", EVERY_ALGORITHM)
@pytest.mark.parametrize("size", range(1, 10))
def test_every_algorithm(entry: Algorithm, size: int) -> None:
    # Every root of the smaller worlds; of the larger ones first, middle and last.
    roots = range(size) if size <= 5 else (0, size // 2, size - 1)
    for root in roots if entry.operation in ROOTED else (0,):
        verify(entry, size, root=root)


@pytest.mark.parametrize("entry", ON_LINKS)
@pytest.mark.parametrize(
    "cliques", [[(0,), (1,), (2,)], [(0, 1), (2, 3)], [(0, 2, 4), (1, 3)], [(0,), (1, 2, 3), (4, 5)]], ids=str
)
def test_links_serve_any_hosts(entry: Algorithm, cliques: list[tuple[int, ...]]) -> None:
    verify(entry, sum(map(len, cliques)), cliques, root=1)


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
