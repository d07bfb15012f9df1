"""What an algorithm says of its cost is held against its programs; numbers by hand."""

from __future__ import annotations

import pytest

from hcomm.planning.builder import Builder
from hcomm.planning.registry import LINKS, Algorithm, algorithms, lookup
from hcomm.planning.verify import VerificationError, verify, verify_volume
from hcomm.planning.volume import Volume, even_sizes, volume


def counted(operation: str, name: str, size: int, cliques=None, options=()) -> list[Volume]:
    programs = [lookup(operation, name).program(r, size, cliques, 0, options) for r in range(size)]
    sizes, n = even_sizes(operation, programs)
    return [volume(program, rank, sizes, n) for rank, program in enumerate(programs)]


def test_every_algorithm_says_what_it_costs() -> None:
    assert [f"{a.operation} {a.name}" for a in algorithms() if a.formula is None] == []


@pytest.mark.parametrize(
    ("name", "size", "messages", "sent"),
    [
        ("ring", 4, [6] * 4, [1.5] * 4),
        ("ring", 5, [8] * 5, [1.6] * 5),
        ("star", 4, [3, 1, 1, 1], [3, 1, 1, 1]),
        ("recursive_doubling", 8, [3] * 8, [3] * 8),
        # Six ranks: 0 and 2 fold into 1 and 3; four ranks exchange twice, two of them answer.
        ("recursive_doubling", 6, [1, 3, 1, 3, 2, 2], [1, 3, 1, 3, 2, 2]),
        ("halving_doubling", 8, [6] * 8, [1.75] * 8),
        ("halving_doubling", 6, [1, 5, 1, 5, 4, 4], [1, 2.5, 1, 2.5, 1.5, 1.5]),
        # Four ranks, trees 0-2-(1,3) and 3-1-(2,0): the inner rank of a tree has three neighbours.
        ("double_binary_tree", 4, [2, 4, 4, 2], [1, 2, 2, 1]),
        ("torus2d", 6, [6] * 6, [5 / 3] * 6),
        ("torus2d", 7, [12] * 7, [12 / 7] * 7),
    ],
)
def test_all_reduce_by_hand(name: str, size: int, messages: list[float], sent: list[float]) -> None:
    found = counted("all_reduce", name, size)
    assert [v.messages for v in found] == messages
    assert [v.sent for v in found] == pytest.approx(sent)


def test_no_rank_of_two_trees_sends_more_than_twice_the_vector() -> None:
    """Sanders, Speck, Träff 2009: full bandwidth, because nobody is an inner node of both trees."""
    for size in range(2, 40):
        found = counted("all_reduce", "double_binary_tree", size)
        assert max(v.sent for v in found) <= 2
        assert sum(v.sent for v in found) == pytest.approx(2 * (size - 1))


def test_between_hosts_hierarchical_sends_the_share_of_its_rank() -> None:
    """Two hosts of four: between them 2(h-1)/h of a quarter of the vector, in two messages."""
    for v in counted("all_reduce", "hierarchical", 8, [(0, 1, 2, 3), (4, 5, 6, 7)]):
        assert (v.messages, v.sent, v.meets) == (2, 0.25, 2)
    # Hosts of one and of three: one lane; the other two ranks of the larger host send nothing.
    uneven = counted("all_reduce", "hierarchical", 4, [(0,), (1, 2, 3)])
    assert [v.sent for v in uneven] == [1, 1, 0, 0]


def test_a_torus_has_a_row_for_each_host() -> None:
    """Two hosts of three: rows stay inside; each rank exchanges halves of a third of the vector with one other host."""
    cliques = [(0, 2, 4), (1, 3, 5)]
    for rank in range(6):
        program = lookup("all_reduce", "torus2d").program(rank, 6, cliques)
        sends = [step for block in program.blocks for step in block.steps if step.kind.name == "SEND"]
        across = [step.peer for step in sends if step.peer % 2 != rank % 2]
        assert len(sends) == 2 * (3 - 1) + 2 * (2 - 1)
        assert across == [rank ^ 1] * 2
    # Uneven hosts have no such grid: as square as can be.
    assert {v.messages for v in counted("all_reduce", "torus2d", 6, [(0, 1), (2, 3, 4, 5)])} == {6}


def test_each_block_enters_a_host_once() -> None:
    """Of the bytes that all_gather moves between two hosts of three, each half of the vector crosses once."""
    cliques = [(0, 1, 2), (3, 4, 5)]
    crossing = 0
    for rank in range(6):
        for block in lookup("all_gather", "hierarchical").program(rank, 6, cliques).blocks:
            for step in block.steps:
                crossing += step.kind.name == "SEND" and (step.peer < 3) != (rank < 3)
    assert crossing == 6


def test_a_wrong_formula_is_refused() -> None:
    def write(p: Builder) -> None:
        """Everybody tells its neighbour."""
        lookup("all_reduce", "ring").write(p)

    for wrong in (
        lambda p: Volume(2 * p.size, 2 * (p.size - 1) / p.size),
        lambda p: Volume(2 * (p.size - 1), 2),
        lambda p: Volume(2 * (p.size - 1), 2 * (p.size - 1) / p.size, moved=1),
        lambda p: Volume(2 * (p.size - 1), 2 * (p.size - 1) / p.size, meets=p.rank == 2),
    ):
        entry = Algorithm("all_reduce", "wrong", write, LINKS, False, wrong)
        with pytest.raises(
            VerificationError,
            match=r"all_reduce algorithm 'wrong' for 3 ranks: rank \d has 4 messages of 1.33333 n bytes, 0 meets, "
            r"0 n moved, but the formula says",
        ):
            verify(entry, 3)
        programs = [entry.program(r, 3) for r in range(3)]
        with pytest.raises(VerificationError):
            verify_volume(entry, programs)
