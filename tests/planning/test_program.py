"""Programs as bytes and as text; the Builder's checks."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcomm.planning.builder import Builder, Requirement
from hcomm.planning.geometry import even_offset
from hcomm.planning.program import Block, Kind, Part, Program, Region, Space, Step, decode
from hcomm.planning.registry import SHARED_MEMORY, Algorithm, algorithm, algorithms, lookup

small = st.integers(0, 50)
regions = st.builds(
    Region,
    st.sampled_from(Space),
    st.integers(-1, 50),
    st.integers(-1, 50),
    st.sampled_from(Part),
    small,
    small,
    small,
)
some_regions = st.lists(regions, max_size=4).map(tuple)
steps = st.builds(
    Step,
    st.sampled_from(Kind),
    st.integers(-1, 5),
    st.integers(-1, 50),
    st.integers(0, 1),
    some_regions,
    some_regions,
    st.lists(small, max_size=4).map(tuple),
)
program_blocks = st.builds(Block, st.lists(steps, max_size=5).map(tuple), small, small, small)
programs = st.builds(Program, st.lists(program_blocks, max_size=3).map(tuple), small, st.booleans())


@given(programs)
def test_decode_reads_what_encode_wrote(program: Program) -> None:
    assert decode(program.encode()) == program


@given(programs, st.integers(0, 400))
def test_cut_programs_are_refused(program: Program, length: int) -> None:
    data = program.encode()
    if length < len(data):
        with pytest.raises(ValueError):
            decode(data[:length])


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_surplus_and_magic() -> None:
    data = Program(()).encode()
    with pytest.raises(ValueError, match="1 words follow the last block"):
        decode(data + bytes(4))
    with pytest.raises(ValueError, match="expected magic 0x48434d50 version 1, found 0x48434d50 version 2"):
        decode(data[:4] + struct.pack("<i", 2) + data[8:])


def test_encoding_word_by_word() -> None:
    """The layout that the engine reads, written out by hand."""
    p = Builder("all_reduce", 1, 2)
    p.send(0, p.chunk(1))
    with p.tiles(128, buffers=2, stages=2):
        p.move(
            dst=p.window(1, like=p.chunk(0)), src=[p.output(), p.window(0, like=p.output(), of=0)], stage=1
        )
        p.meet()
    words = struct.unpack(f"<{len(p.build().encode()) // 4}i", p.build().encode())
    assert words == (
        *(0x48434D50, 1, 2, 2, 0),  # two blocks, two window slots
        *(0, 1, 1, 1),
        *(1, 0, 0, 0, 0, 1, 0),  # send to 0
        *(1, -1, -1, 2, 1, 2, 2),  # output, chunk 1 of 2
        *(128, 2, 2, 2),
        *(4, 1, -1, 1, 1, 2, 0),  # move, complete
        *(3, -1, 1, 2, 0, 1, 2),  # own window slot 1, like chunk 0
        *(1, -1, -1, 1, 0, 0, 0),  # whole output
        *(3, 0, 0, 1, 0, 0, 0),  # window slot 0 of rank 0
        *(7, -1, -1, 0, 0, 0, 1, 0),  # meet with 0 in every iteration
    )


def test_text() -> None:
    text = str(lookup("all_reduce", "staged").program(0, 2))
    assert "program: 2 window slots" in text
    assert "block 0: tiles of 524288 bytes, 2 buffers, 3 stages" in text
    assert (
        "[1] move output chunk 0/2, window[0] chunk 0/2 <- output chunk 0/2 + window[0] of rank 1 chunk 0/2 (complete)"
        in text
    )
    assert "[every] meet ranks 1" in text
    assert "recv_reduce output chunk 1/2 from rank 1" in str(lookup("all_reduce", "ring").program(0, 2))


# Sizes


@given(st.integers(0, 1 << 40), st.integers(1, 1024), st.sampled_from([4, 8, 16, 32, 64]))
def test_even_chunks_cover_the_vector(count: int, parts: int, align: int) -> None:
    offsets = [even_offset(count, i, parts, align) for i in range(parts + 1)]
    assert offsets[0] == 0
    assert offsets[-1] == count
    assert offsets == sorted(offsets)
    assert all(o % align == 0 for o in offsets[:-1])
    assert max(b - a for a, b in itertools.pairwise(offsets)) <= count // parts + 2 * align


def test_more_elements_than_32_bits_hold() -> None:
    """Field report D2: bytes and counts beyond 2^32 neither wrap nor lose their tail."""
    count = 2**32 + 5
    assert [even_offset(count, i, 3, 64) for i in range(4)] == [0, 1431655744, 2863311488, 4294967301]
    assert even_offset(count, 1, 2, 64) == 2**31
    assert count - even_offset(count, 1, 2, 64) == 2**31 + 5


# The Builder's checks


def mistake(message: str, write, operation: str = "all_reduce", **options) -> None:
    p = Builder(operation, 2, 4, cliques=[(0, 1), (2, 3)], algorithm="mine", **options)
    p.send(3, p.input())
    with pytest.raises(ValueError, match=rf"{operation} algorithm 'mine', rank 2 of 4, step 1: {message}"):
        write(p)


def test_mistakes_name_algorithm_rank_and_step() -> None:
    mistake("rank 4 does not exist; ranks are 0..3", lambda p: p.send(4, p.output()))
    mistake("cannot receive from itself; use move", lambda p: p.recv(2, p.output()))
    mistake(r"rank 1 shares no memory with this one; ranks \[2, 3\] do", lambda p: p.at(1, p.output()))
    mistake("rank 0 shares no memory", lambda p: p.meet([0, 2]))
    mistake(
        "send works on own memory only, not on window.0. of rank 3",
        lambda p: p.send(3, p.window(0, p.output(), 3)),
    )
    mistake(
        "output of rank 3 is not a window: .*requires=ACCESS",
        lambda p: p.move(p.output(), p.at(3, p.output())),
    )
    mistake(
        "scratch.0. of rank 3: scratch memory is private",
        lambda p: p.move(p.output(), p.at(3, p.scratch(0, p.output()))),
    )
    mistake("chunks 3 to 5 are out of range: there are 4", lambda p: p.chunks(3, 5))
    mistake("a vector cannot be cut into 0 chunks", lambda p: p.chunk(0, of=0))
    mistake("a move needs a source and a destination", lambda p: p.move([], p.output()))
    mistake("stage 1 does not exist: this block has stages 0..0", lambda p: p.send(3, p.output(), stage=1))
    mistake("slot -1 is negative", lambda p: p.scratch(-1, p.output()))
    mistake("the input of all_reduce has no blocks", lambda p: p.in_block(0))
    mistake("rank 9 does not exist", lambda p: p.out_block(9), "all_gather")
    mistake("all_gather has blocks of its own sizes", lambda p: p.chunk(0), "all_gather")
    mistake("broadcast has no operator, so recv_reduce", lambda p: p.recv_reduce(3, p.output()), "broadcast")
    mistake(
        "broadcast has no operator, so a move of several",
        lambda p: p.move(p.output(), [p.output()] * 2),
        "broadcast",
    )
    mistake(r"ranks \(3, 3\) are named twice in post", lambda p: p.post([3, 3]))


def test_tiles_are_checked() -> None:
    def nested(p: Builder) -> None:
        with p.tiles(64), p.tiles(64):
            pass

    def odd(p: Builder) -> None:
        with p.tiles(100):
            pass

    mistake("tiled blocks cannot be nested", nested)
    mistake("tiles need a positive multiple of 64 bytes", odd)


def test_worlds_are_checked() -> None:
    with pytest.raises(ValueError, match=r"not a partition of the ranks 0\.\.3"):
        Builder("barrier", 0, 4, cliques=[(0, 1), (1, 2, 3)])
    with pytest.raises(ValueError, match="root 4 is not a rank"):
        Builder("broadcast", 0, 4, root=4)


def test_only_complete_reductions_are_marked() -> None:
    p = Builder("all_reduce", 0, 3)
    p.move(p.output(), [p.output(), p.scratch(0, p.output())])
    p.move(p.output(), [p.output(), p.scratch(0, p.output()), p.scratch(1, p.output())])
    p.move(p.output(), p.scratch(0, p.output()))
    assert [step.flags for step in p.build().blocks[0].steps] == [0, 1, 0]


def test_registering() -> None:
    with pytest.raises(ValueError, match="unknown operation 'all_sum'; known: all_reduce, broadcast"):
        algorithm("all_sum")
    with pytest.raises(ValueError, match="all_reduce algorithm 'ring' is taken by hcomm"):
        algorithm("all_reduce", name="ring")(lambda p: None)
    ring = lookup("all_reduce", "ring")
    assert ring.summary.startswith("Reduce-scatter, then all-gather, round a ring")
    assert all(a.summary for a in algorithms())


def test_an_algorithm_of_ones_own_is_checked_where_it_is_written() -> None:
    entry = Algorithm("all_reduce", "mine", lambda p: p.send(p.size, p.output()), SHARED_MEMORY, False)
    with pytest.raises(
        ValueError, match="all_reduce algorithm 'mine', rank 0 of 2, step 0: rank 2 does not exist"
    ):
        entry.program(0, 2)
    assert entry.requires is Requirement.SHARED_MEMORY
