"""Data for data-parallel training: every rank its share of one global shuffle."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Iterator, Mapping, Sized
from typing import Any, TypeVar

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from hcomm.communicator import Communicator
from hcomm.torch import ranks

T = TypeVar("T")

#: What happens to the samples that are left when the ranks do not divide the data.
MODES = ("padded", "exact", "drop")
_FIELDS = ("samples", "mode", "shuffle", "seed")
#: Stands for "no seed was given".
_NO_SEED = -1
_MIX = 0x9E3779B97F4A7C15
_SEED_BITS = (1 << 63) - 1


class _Shards:
    """How `length` samples are dealt out to the ranks of a group, epoch by epoch."""

    def __init__(
        self,
        length: int,
        *,
        shuffle: bool,
        seed: int | None,
        mode: str,
        group: Communicator | None,
        rank: int | None,
        world_size: int | None,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        if seed is not None and not 0 <= operator.index(seed) <= _SEED_BITS:
            raise ValueError(f"seed must be from 0 to 2**63 - 1, not {seed}")
        if (rank is None) != (world_size is None):
            raise ValueError("rank and world_size go together: give both, or neither")
        self.length, self.mode, self.shuffle = length, mode, shuffle
        if rank is not None and world_size is not None:
            if group is not None:
                raise ValueError("give either group, or rank and world_size")
            if not 0 <= rank < world_size:
                raise ValueError(f"rank must be in 0..{world_size - 1}, not {rank}")
            if seed is None and shuffle and world_size > 1:
                raise ValueError("seed is needed with rank and world_size: the ranks cannot agree on one")
            self.rank, self.size = rank, world_size
            self.seed = secrets.randbits(63) if seed is None else seed
            return
        self.rank, self.size = ranks.place(group)
        self.seed = self._agree(group, seed)

    def _agree(self, group: Communicator | None, given: int | None) -> int:
        """Compare what the ranks were told; rank 0's seed. Raises ValueError on every rank."""
        told = [self.length, MODES.index(self.mode), int(self.shuffle), _NO_SEED if given is None else given]
        drawn = secrets.randbits(63) if given is None else given
        everyone = ranks.gathered(group, [*told, drawn])
        for place, name in enumerate(_FIELDS):
            found = [row[place] for row in everyone]
            if len(set(found)) > 1:
                words = {"mode": dict(enumerate(MODES)), "seed": {_NO_SEED: "none"}}.get(name, {})
                raise ValueError(
                    f"rank {self.rank}: the ranks must be given the same {name}, found "
                    + ", ".join(f"rank {rank}: {_word(words, value)}" for rank, value in enumerate(found))
                )
        return everyone[0][-1]

    def count(self, consumed: int) -> int:
        """Samples of this rank in an epoch of which all ranks together have taken `consumed`."""
        left = self.length - consumed
        if self.mode == "exact":
            return max(0, -(-(left - self.rank) // self.size))
        return left // self.size if self.mode == "drop" else -(-left // self.size)

    def indices(self, epoch: int, consumed: int) -> torch.Tensor:
        """Those samples, int64: the ranks take turns in the order that all have in common."""
        if self.shuffle:
            generator = torch.Generator().manual_seed((self.seed + epoch * _MIX) & _SEED_BITS)
            order = torch.randperm(self.length, generator=generator)
        else:
            order = torch.arange(self.length)
        rest = order[consumed:]
        if self.mode == "padded" and rest.numel() % self.size:
            missing = self.size - rest.numel() % self.size
            # An epoch may be shorter than a round of the ranks: its samples then come several times.
            rest = torch.cat([rest, order.repeat(-(-missing // self.length))[:missing]])
        return rest[self.rank :: self.size][: self.count(consumed)]

    def state(self, epoch: int, taken: int) -> dict[str, Any]:
        """What `restore` needs; `taken`: samples of the epoch that each rank has had."""
        return {
            "epoch": epoch,
            "consumed": min(self.length, taken * self.size),
            "samples": self.length,
            "mode": self.mode,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }

    def restore(self, state: dict[str, Any]) -> tuple[int, int]:
        """(epoch, consumed) of a state; takes its seed. Raises ValueError."""
        for name, mine in (("samples", self.length), ("mode", self.mode), ("shuffle", self.shuffle)):
            if state.get(name) != mine:
                raise ValueError(
                    f"rank {self.rank}: the saved state does not fit: {name} is {mine!r} here, "
                    f"and {state.get(name)!r} there"
                )
        self.seed = int(state["seed"])
        return int(state["epoch"]), int(state["consumed"])


def _word(words: Mapping[int, str], value: int) -> str:
    """How a user writes a value."""
    return words.get(value, str(value))


class ShardedSampler(Sampler[int]):
    """Indices of this rank's samples: disjoint shards of one shuffle per epoch, which all ranks have in common.

    The shuffle depends on seed and epoch only, and the ranks take its samples in turn: batches of n samples on each of
    N ranks hold together what one process would see in a batch of N·n. After a complete pass the next one is another
    epoch by itself; `set_epoch` names one.

    Attributes:
        epoch: of the pass that runs or comes next, from 0.

    Args:
        data: the data set, or its number of samples; the same on all ranks.
        shuffle: False: in their order.
        seed: 0 to 2**63 - 1, the same on all ranks. None: rank 0 draws one, and the others get it by broadcast.
        mode: `padded`: every rank has equally many samples, and up to world_size - 1 samples come twice; `drop`:
            equally many, and up to world_size - 1 samples are left out, others in each epoch; `exact`: every sample
            once, so some ranks have one sample less (for evaluation: in training, ranks would make different
            numbers of calls).
        group: whose ranks share the data (default: those of `hcomm.init`, else of torch.distributed, else this
            process alone).
        rank, world_size: in place of a group: nothing is communicated, and `seed` is needed.

    Raises:
        ValueError: an argument is not one of these, or the ranks were given different ones (on every rank).
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        shuffle: bool = True,
        seed: int | None = None,
        mode: str = "padded",
        group: Communicator | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._shards = _Shards(
            _length(data),
            shuffle=shuffle,
            seed=seed,
            mode=mode,
            group=group,
            rank=rank,
            world_size=world_size,
        )
        self.epoch = 0
        self._consumed = 0  # by all ranks before the pass that runs or comes next
        self._taken = 0  # by this rank in the pass that runs

    @property
    def seed(self) -> int:
        """The seed that all ranks use."""
        return self._shards.seed

    @property
    def world_size(self) -> int:
        """Ranks that share the data."""
        return self._shards.size

    def __len__(self) -> int:
        """Samples of this rank in the next pass: those left of an epoch that was resumed, else of a whole one."""
        return self._shards.count(self._consumed)

    def __iter__(self) -> Iterator[int]:
        self._taken = 0
        for index in self._shards.indices(self.epoch, self._consumed).tolist():
            self._taken += 1
            yield index
        self.epoch += 1
        self._consumed = self._taken = 0

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` (from 0) the next pass. Naming the epoch that was resumed keeps its place."""
        if operator.index(epoch) < 0:
            raise ValueError(f"epoch must not be negative, not {epoch}")
        if epoch != self.epoch:
            self.epoch, self._consumed, self._taken = epoch, 0, 0

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Where this sampler is, as plain values, alike on all ranks that have made equally many steps.

        Args:
            taken: samples of this pass that have really been used on each rank; needed where a DataLoader with
                workers has fetched ahead. None: as many as this sampler has given out.
        """
        before = self._consumed // self._shards.size
        # a state taken in a resumed pass counts from the start of the epoch
        state = self._shards.state(self.epoch, self._taken if taken is None else taken)
        state["consumed"] = min(self._shards.length, state["consumed"] + before * self._shards.size)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another sampler was, whatever its number of ranks. Every rank loads the same state.

        Raises:
            ValueError: it is of other data, another mode or another kind of order.
        """
        self.epoch, self._consumed = self._shards.restore(state)
        self._taken = 0


class ShardedDataset(Dataset[T]):
    """This rank's shard of a data set, as a data set: sample i of it is sample i of this rank in the epoch.

    For loops and loaders without a sampler (`DataLoader(shard, batch_size=32)`, without `shuffle`); shards, modes and
    arguments are those of ShardedSampler. An epoch begins with `set_epoch`, which worker processes see as well.

    Args:
        data: a data set with `len` and indices.

    Raises:
        TypeError: `data` has no length or no indices.
        ValueError: see ShardedSampler.
    """

    def __init__(
        self,
        data: Dataset[T],
        *,
        shuffle: bool = True,
        seed: int | None = None,
        mode: str = "padded",
        group: Communicator | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
            raise TypeError(
                f"ShardedDataset needs a data set with len() and indices, not {type(data).__name__}; of a stream, "
                "let each rank read every world_size-th sample"
            )
        self._data = data
        self._shards = _Shards(
            _length(data),
            shuffle=shuffle,
            seed=seed,
            mode=mode,
            group=group,
            rank=rank,
            world_size=world_size,
        )
        # Epoch and place: in shared memory, so that workers that live on see the next epoch.
        self._place = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._known = (-1, -1)
        self._indices = torch.empty(0, dtype=torch.int64)

    @property
    def epoch(self) -> int:
        """The epoch whose samples it holds, from 0."""
        return int(self._place[0])

    def __len__(self) -> int:
        """Samples of this rank in the epoch."""
        return self._shards.count(int(self._place[1]))

    def __getitem__(self, index: int) -> T:
        epoch, consumed = self._place.tolist()
        if self._known != (epoch, consumed):
            self._indices = self._shards.indices(epoch, consumed)
            self._known = epoch, consumed
        return self._data[int(self._indices[index])]

    def set_epoch(self, epoch: int) -> None:
        """Hold the samples of `epoch` (from 0). Naming the epoch that was resumed keeps its place."""
        if operator.index(epoch) < 0:
            raise ValueError(f"epoch must not be negative, not {epoch}")
        if epoch != self.epoch:
            self._place.copy_(torch.tensor([epoch, 0]))

    def state_dict(self, taken: int) -> dict[str, Any]:
        """Where training is, as plain values.

        Args:
            taken: samples that each rank has used since the epoch began, or was resumed.
        """
        epoch, consumed = self._place.tolist()
        state = self._shards.state(epoch, taken)
        state["consumed"] = min(self._shards.length, state["consumed"] + consumed)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hold what is left of the epoch of a saved state, whatever its number of ranks.

        Raises:
            ValueError: it is of other data, another mode or another kind of order.
        """
        self._place.copy_(torch.tensor(self._shards.restore(state)))


def _length(data: Sized | Dataset[Any] | int) -> int:
    """Number of samples. Raises TypeError and ValueError."""
    if not isinstance(data, int):
        if not isinstance(data, Sized):
            raise TypeError(f"data needs a length, or must be a number of samples, not {type(data).__name__}")
        data = len(data)
    if data < 1:
        raise ValueError(f"there must be at least one sample, not {data}")
    return data
