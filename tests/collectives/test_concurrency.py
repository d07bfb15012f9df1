"""Several communicators at once: by priority, in any order, with and without overlap of copies."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest


def _opposite_orders(count: int) -> list[bool]:
    """Every rank starts an operation on each of `count` groups, the odd ranks in reverse; all complete."""
    import hcomm

    rank, size = hcomm.rank(), hcomm.world_size()
    ranks = list(range(size))
    groups = [hcomm.new_group(ranks, name=f"g{i}", priority=i % 3) for i in range(count)]
    vectors = [np.full(50_000, rank + i, np.float32) for i in range(count)]
    order = range(count) if rank % 2 == 0 else reversed(range(count))
    works = {i: groups[i].all_reduce_async(vectors[i]) for i in order}
    # Waiting for the last one first: nothing but the engine drives the others meanwhile.
    for i in order if rank % 2 == 0 else range(count):
        works[i].wait()
    return [bool((vectors[i] == size * i + size * (size - 1) // 2).all()) for i in range(count)]


@pytest.mark.parametrize("most", ["1", "4"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_groups_in_opposite_order_do_not_block(job: Any, transport: str, most: str) -> None:
    answers = job(3, _opposite_orders, args=(8,), transport=transport, env={"HCOMM_MAX_CONCURRENT": most})
    assert answers == [[True] * 8] * 3


def _urgent_first(nbytes: int) -> list[str]:
    """The order in which a bulky and an urgent operation complete, the bulky one started first."""
    import hcomm

    ranks = list(range(hcomm.world_size()))
    bulky = hcomm.new_group(ranks, name="bulky")
    urgent = hcomm.new_group(ranks, name="urgent", priority=10)
    large, small = np.ones(nbytes // 4, np.float32), np.ones(1000, np.float32)
    hcomm.barrier()
    works = {"bulky": bulky.all_reduce_async(large), "urgent": urgent.all_reduce_async(small)}
    done: list[str] = []
    while works:
        for name, work in list(works.items()):
            if work.is_completed():
                done.append(name)
                del works[name]
        time.sleep(0.0002)
    return done


def test_an_urgent_operation_overtakes_a_bulky_one(job: Any) -> None:
    assert job(2, _urgent_first, args=(400 << 20,)) == [["urgent", "bulky"]] * 2


def _sums() -> list[bool]:
    import hcomm

    rank, size = hcomm.rank(), hcomm.world_size()
    right = []
    for count in (1, 70_001, 3_000_001):
        vector = np.full(count, rank, np.float32)
        hcomm.all_reduce(vector, algorithm="staged")
        right.append(bool((vector == size * (size - 1) // 2).all()))
        gathered = hcomm.all_gather(np.full(count, rank, np.int32))
        right.append(bool((gathered.reshape(size, count) == np.arange(size)[:, None]).all()))
        shown = np.full(count, rank, np.int16)
        hcomm.broadcast(shown, src=1)
        right.append(bool((shown == 1).all()))
    return right


@pytest.mark.parametrize("setting", ["HCOMM_OVERLAP_MEMCPY", "HCCL_OVERLAP_MEMCPY"])
def test_without_overlap_of_copies(job: Any, setting: str) -> None:
    assert job(3, _sums, env={setting: "0"}) == [[True] * 9] * 3


def test_ranks_that_overlap_differently_are_told(outcomes: Any) -> None:
    found = outcomes(2, _sums, rank_env={0: {"HCOMM_OVERLAP_MEMCPY": "off"}})
    assert all("HCOMM_OVERLAP_MEMCPY" in outcome.err for outcome in found)
