"""Programs with one mistake each are refused, with a message that says where it is."""

from __future__ import annotations

import pytest

from hcomm.planning.builder import Builder, Requirement
from hcomm.planning.geometry import blocks, exchange, vector
from hcomm.planning.program import Program
from hcomm.planning.registry import ACCESS, LINKS
from hcomm.planning.verify import VerificationError, verify_programs


def refuse(
    write,
    message: str,
    *,
    operation: str = "all_reduce",
    size: int = 3,
    count: int = 12,
    sizes=None,
    **options,
):
    requires = options.pop("requires", Requirement.LINKS)
    programs = [_write(write, operation, rank, size, requires) for rank in range(size)]
    with pytest.raises(VerificationError, match=message):
        verify_programs(programs, sizes or vector(operation, size, count, **options))


def _write(write, operation: str, rank: int, size: int, requires: Requirement) -> Program:
    p = Builder(operation, rank, size, algorithm="broken", requires=requires)
    write(p)
    return p.build()


def ring(
    p: Builder, *, lose: bool = False, double: bool = False, finish: int = 1, cross: bool = False
) -> None:
    """A ring all_reduce that can be told to go wrong on rank 1."""
    wrong = p.rank == 1
    for step in range(p.size - 1):
        p.send(p.next, p.chunk(p.rank - step))
        mine = p.chunk(p.rank - step - 1)
        if lose and wrong and step == 1:
            p.recv(p.prev, mine)
        elif cross and wrong:
            p.recv_reduce(p.prev, p.chunk(p.rank - step))
        else:
            p.recv_reduce(p.prev, mine)
        if double and wrong and step == 0:
            p.move(dst=mine, src=[mine, mine])
    for _ in range(finish):
        p.finish(p.chunk(p.rank + 1))
    for step in range(p.size - 1):
        p.send(p.next, p.chunk(p.rank - step + 1))
        p.recv(p.prev, p.chunk(p.rank - step))


def test_sound_ring_passes() -> None:
    verify_programs([_write(ring, "all_reduce", r, 3, LINKS) for r in range(3)], vector("all_reduce", 3, 12))


def test_lost_contribution() -> None:
    refuse(
        lambda p: ring(p, lose=True),
        r"rank 1, block 0, step 4 \(finish output chunk 2/3\): element 8 of the vector is finished without ranks 1",
    )


def test_double_add() -> None:
    refuse(
        lambda p: ring(p, double=True), r"rank 1, block 0, step 2 .*adds the contribution of ranks 0, 1 twice"
    )


def test_crossed_receive() -> None:
    refuse(
        lambda p: ring(p, cross=True), r"rank 1, block 0, step 1 .*adds element 0 of the vector to element 4"
    )


def test_average_forgotten_and_taken_twice() -> None:
    refuse(lambda p: ring(p, finish=0), r"rank 0, output element 0 is finished 0 times, not once")
    refuse(lambda p: ring(p, finish=2), r"step 5 \(finish .*finished a second time")


def test_added_after_average() -> None:
    def early(p: Builder) -> None:
        whole = p.output()
        if p.rank == 0:
            p.recv_reduce(1, whole)
            p.finish(whole)
        else:
            p.send(0, whole)

    refuse(early, r"rank 0, block 0, step 1 .*finished without ranks 2", size=3)


def test_source_overwritten_before_its_receipt() -> None:
    def hasty(p: Builder) -> None:
        p.send(1 - p.rank, p.output())
        p.recv_reduce(1 - p.rank, p.output())
        p.finish(p.output())

    refuse(
        hasty,
        r"rank 1, block 0, step 1 .*overwrites output element 0 of rank 1 before its receipt; "
        r".*rank 1, block 0, step 0",
        size=2,
    )


def test_source_overwritten_without_order() -> None:
    """The receipt may come first, and does in one order of play; nothing says that it must."""

    def relay(p: Builder) -> None:
        slot = p.scratch(0, like=p.output())
        if p.rank == 1:
            p.recv(0, p.output())
        elif p.rank == 0:
            p.move(dst=slot, src=p.output())
            p.send(1, slot)
            p.recv(2, slot)
        else:
            p.send(0, p.output())

    programs = [_write(relay, "broadcast", r, 3, LINKS) for r in range(3)]
    with pytest.raises(
        VerificationError, match=r"rank 0, block 0, step 2 .*which rank 1 reads without order"
    ):
        verify_programs(programs, vector("broadcast", 3, 4))


def test_deadlock() -> None:
    def both_wait(p: Builder) -> None:
        p.recv(1 - p.rank, p.output())
        p.send(1 - p.rank, p.output())

    refuse(
        both_wait,
        r"deadlock: rank 0, block 0, step 0 \(recv output from rank 1\) waits for a message that rank 1.*; rank 1",
        operation="broadcast",
        size=2,
    )


def test_lengths_that_differ() -> None:
    def short(p: Builder) -> None:
        if p.rank:
            p.recv(0, p.output())
        else:
            p.send(1, p.chunk(0))

    refuse(
        short,
        r"rank 1, block 0, step 0 .*expects 12 elements and gets 6 from rank 0",
        operation="broadcast",
        size=2,
    )


def test_message_nobody_receives() -> None:
    def chatty(p: Builder) -> None:
        if p.rank == 0:
            p.send(1, p.output())
            p.send(1, p.output())
        else:
            p.recv(0, p.output())

    refuse(
        chatty,
        r"rank 1 never receives what is sent by rank 0, block 0, step 1",
        operation="broadcast",
        size=2,
    )


def test_post_nobody_awaits() -> None:
    refuse(
        lambda p: p.post([1 - p.rank]), "never awaits 1 of the posts", operation="barrier", size=2, count=1
    )


def oneshot(p: Builder, meet: bool = True, again: bool = False, post: bool = False) -> None:
    whole = p.output()
    p.move(dst=p.window(0, like=whole), src=whole)
    if meet:
        p.meet()
    elif post:
        p.await_([r for r in p.ranks if r != p.rank])
    p.move(dst=whole, src=[p.window(0, like=whole, of=r) for r in p.ranks])
    if again:
        p.move(dst=p.window(0, like=whole), src=whole)


def test_missing_meet() -> None:
    refuse(
        lambda p: oneshot(p, meet=False),
        r"rank 0, block 0, step 1 .*touches window\[0\] of rank 1 before it has met",
        size=2,
    )


def test_await_without_post() -> None:
    refuse(
        lambda p: oneshot(p, meet=False, post=True),
        r"deadlock: .*waits for a post that rank 1 does not make",
        size=2,
    )


def test_window_reused_without_order() -> None:
    refuse(lambda p: oneshot(p, again=True), r"window\[0\] element 0 of rank \d.* without order", size=2)


def staged(p: Builder, buffers: int = 2, every: bool = True) -> None:
    mine = p.chunk(p.rank)
    with p.tiles(64, buffers=buffers, stages=3):
        for r in p.ranks:
            if r != p.rank:
                p.move(dst=p.chunk(r), src=p.window(r, like=mine, of=r), stage=2)
        sources = [mine if r == p.rank else p.window(p.rank, like=mine, of=r) for r in p.ranks]
        p.move(dst=[mine, p.window(p.rank, like=mine)], src=sources, stage=1)
        for r in p.ranks:
            if r != p.rank:
                p.move(dst=p.window(r, like=p.chunk(r)), src=p.chunk(r), stage=0)
        if every:
            p.meet()
        else:
            p.meet(stage=0)


def test_staged_needs_two_buffers() -> None:
    refuse(
        lambda p: staged(p, buffers=1), r"tile \d.*window\[\d\] element 0 of rank \d.*without order", size=2
    )


def test_staged_needs_a_meet_in_every_iteration() -> None:
    refuse(lambda p: staged(p, every=False), "without order", size=2)


def test_window_laid_out_anew() -> None:
    """Two blocks cut one window into other tiles: without a meet between them they overlap."""

    def twice(p: Builder) -> None:
        shown = p.window(0, like=p.output(), of=0)
        for tile_bytes in (64, 128):
            with p.tiles(tile_bytes, buffers=2, stages=2):
                if p.rank == 0:
                    p.move(dst=shown, src=p.output(), stage=0)
                else:
                    p.move(dst=p.output(), src=shown, stage=1)
                p.meet()

    refuse(twice, r"reuses a window that rank \d used in another block", operation="broadcast", size=2)


def direct(p: Builder, opening: bool = True, closing: bool = True) -> None:
    everywhere = [p.at(r, p.chunk(p.rank)) for r in p.ranks]
    if opening:
        p.meet()
    p.move(dst=everywhere, src=everywhere)
    if closing:
        p.meet()


def test_direct_needs_both_meets() -> None:
    refuse(lambda p: direct(p, opening=False), "before it has met or awaited rank", requires=ACCESS)
    refuse(lambda p: direct(p, closing=False), "closing meet is missing", requires=ACCESS)


def test_direct_on_the_same_chunk() -> None:
    def clash(p: Builder) -> None:
        everywhere = [p.at(r, p.chunk(0)) for r in p.ranks]
        p.meet()
        p.move(dst=everywhere, src=everywhere)
        p.meet()

    refuse(clash, r"output element 0 of rank \d, which rank \d (reads|writes) without order", requires=ACCESS)


def test_reduce_that_touches_other_buffers() -> None:
    def careless(p: Builder) -> None:
        if p.rank == 0:
            p.move(dst=p.output(), src=p.input())
            p.recv_reduce(1, p.output())
            p.finish(p.output())
        else:
            p.send(0, p.input())
            p.move(dst=p.input(p.chunk(0)), src=p.input(p.chunk(1)))

    refuse(
        careless,
        "overwrites input element 0 of rank 1|rank 1, input element 0 is changed",
        operation="reduce",
        size=2,
    )


def test_output_never_written_and_of_the_wrong_block() -> None:
    sizes = blocks("all_gather", [2, 2])
    refuse(
        lambda p: None,
        "rank 0, output element 0 is never written; expected element 0 of ranks 0",
        operation="all_gather",
        size=2,
        sizes=sizes,
    )
    refuse(
        lambda p: [p.move(dst=p.out_block(r), src=p.input()) for r in p.ranks],
        "rank 0, output element 2 holds element 0 of ranks 0; expected element 0 of ranks 1",
        operation="all_gather",
        size=2,
        sizes=sizes,
    )


def test_scratch_nobody_wrote() -> None:
    refuse(lambda p: p.move(dst=p.output(), src=p.scratch(0, like=p.output())), "which nobody has written")


def test_region_outside_its_memory() -> None:
    refuse(
        lambda p: p.move(dst=p.output(p.in_block(1 - p.rank)), src=p.in_block(1 - p.rank)),
        r"ends at element 8, but rank 0 has 3",
        operation="all_to_all",
        size=2,
        sizes=exchange([[1, 7], [2, 0]]),
    )


def test_barrier_that_does_not_wait() -> None:
    refuse(
        lambda p: None, "rank 0 leaves the barrier without hearing of rank 1", operation="barrier", count=1
    )


def test_ranks_that_disagree_about_windows() -> None:
    refuse(
        lambda p: p.rank or p.move(dst=p.window(1, like=p.output()), src=p.output()),
        "disagree about window_slots",
    )


def test_move_that_overlaps_itself() -> None:
    refuse(
        lambda p: p.move(dst=p.chunks(0, 2), src=p.chunks(1, 3)),
        "a destination overlaps a source",
        operation="broadcast",
    )
