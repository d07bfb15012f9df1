"""Compression for torch's DistributedDataParallel, as communication hooks.

::

    model = DistributedDataParallel(model)
    model.register_comm_hook(hcomm.torch.QuantizeState("uint8"), hcomm.torch.quantize_hook)

They work with every backend of torch.distributed: gradients travel over an hcomm communicator of the same ranks.
A hook is called once for each bucket, in the same order on all ranks, in the thread of backward. It starts that
bucket's exchange; at the last bucket the rest is waited for and all futures are resolved.
"""

# No `from __future__ import annotations` here: DDP compares the hooks' annotations with its classes.
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import hcomm
from hcomm.communicator import Communicator
from hcomm.compression import schemes
from hcomm.compression.exchange import Exchange
from hcomm.compression.topk import TopK
from hcomm.errors import InitError
from hcomm.torch.groups import communicator_of, under_torch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket
else:
    GradBucket = dist.GradBucket

#: As in `GradientBucket`.
_DEPTH = 2

Tensors = torch.futures.Future[torch.Tensor]


class _HookState:
    """What the hooks have in common: a communicator, and the exchanges of one backward."""

    def __init__(self, group: Any) -> None:
        self._group = None if group is None else communicator_of(group)
        self._kept: dict[tuple[int, int, torch.dtype], Exchange] = {}
        self._running: list[tuple[Exchange, torch.Tensor, Tensors]] = []

    @property
    def group(self) -> Communicator:
        """The communicator that was given, or the one under torch's default process group, or hcomm's default one,
        which is made from torch's ranks if it does not exist.

        Raises:
            InitError: hcomm and torch.distributed do not number their ranks alike.
        """
        if self._group is None:
            self._group = under_torch(dist.group.WORLD) or _beside_torch()
        return self._group

    def _exchange(self, bucket: GradBucket) -> Exchange:
        """The exchange of a bucket; DDP builds its buckets anew after the first backward."""
        vector = bucket.buffer()
        key = (bucket.index(), vector.numel(), vector.dtype)
        if key not in self._kept:
            if any(index == key[0] for index, *_ in self._kept):
                self._kept.clear()
            self._kept[key] = self._make(vector)
        return self._kept[key]

    def _make(self, vector: torch.Tensor) -> Exchange:
        raise NotImplementedError

    def _run(self, exchange: Exchange, vector: torch.Tensor, last: bool) -> Tensors:
        """Start one exchange; with the last of a backward, end all."""
        future: Tensors = torch.futures.Future()
        running = self._running
        running.append((exchange, vector, future))
        try:
            exchange.start(vector)
            if len(running) > _DEPTH:
                running[-1 - _DEPTH][0].turn()
            if last:
                for other, *_ in running[-_DEPTH:]:
                    other.turn()
                for other, *_ in running:
                    other.finish()
        except BaseException:
            running.clear()
            raise
        if last:
            done, self._running = running, []
            for _, tensor, promise in done:
                promise.set_result(tensor)
        return future


def _beside_torch() -> Communicator:
    """hcomm's default communicator, if its ranks are those of torch.distributed."""
    if not hcomm.is_initialized():
        hcomm.init()
    here = (hcomm.rank(), hcomm.world_size())
    there = (dist.get_rank(), dist.get_world_size())
    if here != there:
        raise InitError(
            f"this process is rank {here[0]} of {here[1]} in hcomm, but rank {there[0]} of {there[1]} in "
            "torch.distributed; pass the hcomm communicator with these ranks as group="
        )
    return hcomm.default_communicator()


class QuantizeState(_HookState):
    """What `quantize_hook` needs.

    Args:
        scheme: `uint8`, `fp16`, `bf16`, `auto` or None; the same on all ranks.
        group: an hcomm communicator of the ranks of the DDP model, in their order, or a process group of torch whose
            backend is hcomm; None: that of torch's default group if its backend is hcomm, else hcomm's default one,
            which is initialised from the launcher's environment if need be.

    Raises:
        ValueError: there is no such scheme.
    """

    def __init__(self, scheme: str | None = "uint8", group: Any = None) -> None:
        super().__init__(group)
        if scheme is not None and scheme.startswith("topk"):
            raise ValueError("error feedback needs topk_hook with a TopKState")
        self.scheme = schemes.check_scheme(scheme)

    def _make(self, vector: torch.Tensor) -> Exchange:
        dtype = str(vector.dtype).removeprefix("torch.")
        return schemes.make_exchange(self.group, self.scheme, vector.numel(), dtype)


class TopKState(_HookState):
    """What `topk_hook` needs: residuals, one for each parameter, whatever bucket it is in.

    Args:
        ratio: share of the entries of a bucket that is sent.
        group: as for `QuantizeState`.

    Raises:
        ValueError: a ratio that is not above 0 and at most 1.
    """

    def __init__(self, ratio: float = 0.01, group: Any = None) -> None:
        super().__init__(group)
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio must be above 0 and at most 1, not {ratio!r}")
        self.ratio = ratio
        self._residuals: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def residual(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """What has not been sent yet of a parameter's gradient: flat float32; None before its first exchange."""
        owner, kept = self._residuals.get(id(parameter), (None, None))
        return kept if owner is not None and owner() is parameter else None

    def _make(self, vector: torch.Tensor) -> Exchange:
        return TopK(self.group, self.ratio, "avg")

    def load(self, exchange: Exchange, bucket: GradBucket) -> None:
        """Put the residuals of a bucket's parameters where the exchange looks for them."""
        assert isinstance(exchange, TopK)
        vector = torch.zeros(bucket.buffer().numel())
        for place, gradient in self._places(bucket):
            kept = self.residual(place)
            if kept is not None:
                begin = gradient.storage_offset() - bucket.buffer().storage_offset()
                vector[begin : begin + kept.numel()] = kept
        exchange.residual = vector.numpy()

    def store(self, exchange: Exchange, bucket: GradBucket) -> None:
        """Keep what the exchange has not sent, for each parameter."""
        assert isinstance(exchange, TopK)
        vector = torch.from_numpy(exchange.residual)
        for parameter, gradient in self._places(bucket):
            begin = gradient.storage_offset() - bucket.buffer().storage_offset()
            kept = vector[begin : begin + gradient.numel()].clone()
            self._residuals[id(parameter)] = (weakref.ref(parameter), kept)

    @staticmethod
    def _places(bucket: GradBucket) -> Any:
        return zip(bucket.parameters(), bucket.gradients(), strict=True)


def quantize_hook(state: QuantizeState, bucket: GradBucket) -> Tensors:
    """Average a bucket's gradients, compressed as the state says. For `DistributedDataParallel.register_comm_hook`.

    Args:
        state: one for each model.
        bucket: from DDP; its buffer is reduced in place.

    Returns:
        A future of the averaged buffer.
    """
    return state._run(state._exchange(bucket), bucket.buffer(), bucket.is_last())


def topk_hook(state: TopKState, bucket: GradBucket) -> Tensors:
    """Average the largest entries of a bucket's gradients; what is not sent is added the next time.

    Args:
        state: one for each model; holds the residuals.
        bucket: from DDP; its buffer is reduced in place.

    Returns:
        A future of the averaged buffer.
    """
    exchange = state._exchange(bucket)
    state.load(exchange, bucket)
    future = state._run(exchange, bucket.buffer(), bucket.is_last())
    state.store(exchange, bucket)
    return future
