"""Data-parallel training in one line: `DataParallel(model)`, or `sync_gradients(model)` after backward."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from hcomm.torch.bucket import GradientBucket
from hcomm.torch.groups import communicator_of
from hcomm.work import Work


def broadcast_state(model: torch.nn.Module, group: Any = None, src: int = 0) -> None:
    """Give every rank the parameters and buffers of rank `src`. Collective.

    Raises:
        CommunicatorError: the models differ, or a rank failed.
    """
    communicator = communicator_of(group)
    works: list[Work] = []
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            works.append(communicator.broadcast_async(tensor.detach(), src))
        for work in works:
            work.wait()


class DataParallel(torch.nn.Module):
    """A model whose gradients are averages over all ranks when `backward()` returns.

    ::

        model = hcomm.torch.DataParallel(model)
        loss(model(batch)).backward()
        optimizer.step()

    At the start every rank gets the weights and buffers of rank 0. Attributes that it does not have are the model's; so
    are `state_dict`, `named_parameters` and their kin, without a prefix: checkpoints fit the plain model.
    A backward on one rank needs a backward on every rank; `no_sync()` is for accumulation.

    Args:
        model: the model.
        **options: of `GradientBucket`: size_mb, overlap, group, compression, comm_dtype.

    Attributes:
        module: the model.
        bucket: its `GradientBucket`.
    """

    def __init__(self, model: torch.nn.Module, **options: Any) -> None:
        super().__init__()
        self.module = model
        # The check of the bucket comes first: a broadcast between different models would say less.
        self.bucket = GradientBucket(model.named_parameters(), automatic=True, **options)
        broadcast_state(model, options.get("group"))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's."""
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside only add to this rank's gradients. See `GradientBucket.no_sync`."""
        with self.bucket.no_sync():
            yield

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The bucket's; see `GradientBucket.zero_grad`."""
        self.bucket.zero_grad(set_to_none)

    def close(self) -> None:
        """Give hooks and buckets back; the model goes on as an ordinary one."""
        self.bucket.close()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's: names have no prefix."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's."""
        return self.module.load_state_dict(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The model's."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The model's."""
        return self.module.named_buffers(*args, **kwargs)


_buckets: weakref.WeakKeyDictionary[torch.nn.Module, GradientBucket] = weakref.WeakKeyDictionary()


def sync_gradients(model: torch.nn.Module, **options: Any) -> None:
    """Average the gradients of a model over all ranks, in place. Collective; call it after `backward()`.

    The first call moves the gradients into buckets, which later calls use again.

    Args:
        model: the same on all ranks.
        **options: of `GradientBucket`, for the first call: size_mb, group, compression, comm_dtype.

    Raises:
        CollectiveMismatch: the models differ; names the first parameter that does.
        CommunicatorError: a rank failed.
    """
    bucket = _buckets.get(model)
    if bucket is None or bucket.group is not communicator_of(options.get("group")):
        if bucket is not None:
            bucket.close()
        without = [parameter for parameter in model.parameters() if parameter.grad is None]
        bucket = _buckets[model] = GradientBucket(model.named_parameters(), overlap=False, **options)
        for parameter in without:
            parameter.grad = None  # backward has been here: a zero would be news
    bucket.reduce()
