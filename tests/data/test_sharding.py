"""ShardedSampler and ShardedDataset: whose samples, in which order, and where to go on."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.inside import attempt
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

import hcomm
from hcomm.torch import ShardedDataset, ShardedSampler

if TYPE_CHECKING:
    from collections.abc import Callable


def samplers(count: int, size: int, **options: Any) -> list[ShardedSampler]:
    options.setdefault("seed", 7)
    return [ShardedSampler(count, rank=rank, world_size=size, **options) for rank in range(size)]


class Squares(Dataset[int]):
    """Sample i is i²."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index * index


@pytest.mark.parametrize(("count", "size"), [(10, 1), (10, 2), (10, 3), (10, 4), (2, 5), (1, 3), (12, 3)])
@pytest.mark.parametrize("mode", ["padded", "exact", "drop"])
def test_shards_are_disjoint_and_complete(count: int, size: int, mode: str) -> None:
    shards = [list(sampler) for sampler in samplers(count, size, mode=mode)]
    lengths = [len(sampler) for sampler in samplers(count, size, mode=mode)]
    assert [len(shard) for shard in shards] == lengths
    everything = sorted(itertools.chain(*shards))
    if mode == "exact":
        assert everything == list(range(count))
        assert max(lengths) - min(lengths) <= 1
        return
    assert len(set(lengths)) == 1
    if mode == "drop":
        assert lengths[0] == count // size
        assert len(set(everything)) == len(everything)
    else:
        assert lengths[0] == (count + size - 1) // size
        assert set(everything) == set(range(count))


def test_without_a_shuffle_the_ranks_take_turns() -> None:
    assert [list(s) for s in samplers(7, 3, shuffle=False, mode="exact")] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [list(s) for s in samplers(7, 3, shuffle=False, mode="padded")] == [
        [0, 3, 6],
        [1, 4, 0],
        [2, 5, 1],
    ]
    assert [list(s) for s in samplers(7, 3, shuffle=False, mode="drop")] == [[0, 3], [1, 4], [2, 5]]


def test_many_processes_see_the_batches_of_one() -> None:
    alone = list(BatchSampler(samplers(100, 1)[0], 24, drop_last=True))
    shares = [list(BatchSampler(s, 8, drop_last=True)) for s in samplers(100, 3, mode="drop")]
    assert len(alone) == 4
    for number, batch in enumerate(alone):
        assert sorted(batch) == sorted(itertools.chain(*(share[number] for share in shares)))


def test_every_pass_is_another_epoch_and_can_be_named() -> None:
    sampler = samplers(50, 2)[0]
    first, second = list(sampler), list(sampler)
    assert sampler.epoch == 2
    assert first != second
    again = samplers(50, 2)[0]
    again.set_epoch(1)
    assert list(again) == second
    again.set_epoch(0)
    assert list(again) == first
    assert list(samplers(50, 2, seed=8)[0]) != first
    assert sorted(first) != list(range(50))[::2], "it is shuffled"


@pytest.mark.parametrize("mode", ["padded", "exact", "drop"])
def test_training_goes_on_where_it_was(mode: str) -> None:
    whole = [list(sampler) + list(sampler) for sampler in samplers(23, 3, mode=mode)]
    for rank in range(3):
        stopped = samplers(23, 3, mode=mode)[rank]
        stream = iter(stopped)
        taken = [next(stream) for _ in range(5)]
        state = stopped.state_dict()
        assert state == samplers(23, 3, mode=mode)[0]._shards.state(0, 5), "alike on all ranks"
        resumed = samplers(23, 3, mode=mode, seed=99)[rank]
        resumed.load_state_dict(state)
        resumed.set_epoch(0)  # naming the epoch keeps the place
        rest = [*itertools.islice(iter(resumed), 1)]
        state = resumed.state_dict()  # stopped once more, in a resumed epoch
        third = samplers(23, 3, mode=mode)[rank]
        third.load_state_dict(state)
        assert [*taken, *rest, *third, *third] == whole[rank]


def test_another_number_of_ranks_takes_what_is_left() -> None:
    before = samplers(24, 4, mode="exact")
    taken = [index for sampler in before for index in itertools.islice(iter(sampler), 3)]
    state = samplers(24, 4, mode="exact")[0].state_dict(taken=3)
    assert state["consumed"] == 12
    after = samplers(24, 2, mode="exact")
    left = []
    for sampler in after:
        sampler.load_state_dict(state)
        assert len(sampler) == 6
        left += list(sampler)
    assert sorted(taken + left) == list(range(24))


def test_a_state_of_other_data_is_refused() -> None:
    state = samplers(24, 4)[0].state_dict()
    with pytest.raises(ValueError, match="samples is 25 here, and 24 there"):
        samplers(25, 4)[0].load_state_dict(state)
    with pytest.raises(ValueError, match="mode is 'exact' here, and 'padded' there"):
        samplers(24, 4, mode="exact")[0].load_state_dict(state)


def test_a_sharded_dataset_is_the_shard_of_the_sampler() -> None:
    for rank, sampler in enumerate(samplers(10, 3)):
        shard = ShardedDataset(Squares(10), seed=7, rank=rank, world_size=3)
        for _ in range(2):
            assert [shard[i] for i in range(len(shard))] == [i * i for i in sampler]
            shard.set_epoch(shard.epoch + 1)
        sampler.set_epoch(5)
        shard.load_state_dict(sampler.state_dict(taken=2))
        assert len(shard) == 2
        assert [shard[0], shard[1]] == [i * i for i in list(sampler)[2:]]
        assert shard.state_dict(taken=1)["consumed"] == 9


def test_workers_see_the_epoch() -> None:
    shard = ShardedDataset(Squares(6), shuffle=True, seed=3, rank=1, world_size=2)
    loader = DataLoader(shard, batch_size=None, num_workers=1, persistent_workers=True)
    sampler = ShardedSampler(6, seed=3, rank=1, world_size=2)
    for epoch in range(2):
        shard.set_epoch(epoch)
        assert [int(value) for value in loader] == [i * i for i in sampler]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "even"}, "mode must be one of padded, exact, drop, not 'even'"),
        ({"seed": -1}, "seed must be from 0"),
        ({"rank": 1}, "give both, or neither"),
        ({"rank": 2, "world_size": 2, "seed": 1}, r"rank must be in 0..1, not 2"),
        ({"rank": 1, "world_size": 2}, "seed is needed"),
    ],
)
def test_arguments_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ShardedSampler(10, **options)


def test_what_cannot_be_sharded() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(TypeError, match="not Stream; of a stream, let each rank read every world_size-th"):
        ShardedDataset(Stream())
    with pytest.raises(TypeError, match="data needs a length"):
        ShardedSampler(Stream())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one sample, not 0"):
        ShardedSampler([])


def agreeing() -> dict[str, Any]:
    """On every rank: no seed was given, and differences are told."""
    rank = hcomm.rank()
    sampler = ShardedSampler(31, mode="exact")
    told = [attempt(ShardedSampler, 31, seed=rank), attempt(ShardedSampler, 30 + rank), attempt(
        ShardedSampler, 31, mode="drop" if rank == 1 else "exact")]  # fmt: skip
    half = hcomm.new_group([0, 2]) if rank != 1 else None
    return {
        "seed": sampler.seed,
        "mine": list(sampler),
        "told": [failure.text if failure else "" for failure in told],
        "group": list(ShardedSampler(4, shuffle=False, group=half)) if half else None,
    }


def test_ranks_agree_on_a_seed_and_on_everything_else(job: Callable[..., list[Any]]) -> None:
    found = job(3, agreeing)
    assert len({rank["seed"] for rank in found}) == 1
    assert sorted(itertools.chain(*(rank["mine"] for rank in found))) == list(range(31))
    for number, rank in enumerate(found):
        seed, length, mode = rank["told"]
        assert seed == (
            f"rank {number}: the ranks must be given the same seed, found rank 0: 0, rank 1: 1, rank 2: 2"
        )
        assert "the same samples, found rank 0: 30, rank 1: 31, rank 2: 32" in length
        assert "the same mode, found rank 0: exact, rank 1: drop, rank 2: exact" in mode
    assert [rank["group"] for rank in found] == [[0, 2], None, [1, 3]]


def test_the_order_is_the_same_on_every_machine() -> None:
    # a promise to whoever saved a state: the shuffle of seed 1 in epoch 0 never changes
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1)).tolist()
    assert list(ShardedSampler(8, seed=1)) == order
