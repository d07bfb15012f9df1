"""Flat buckets: where gradients lie, as views into a few long vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from hcomm.communicator import Communicator
from hcomm.compression.auto import Choice
from hcomm.compression.exchange import Exchange
from hcomm.errors import UnsupportedBuffer
from hcomm.torch import allocate
from hcomm.torch.alike import Named

#: Gradients begin at multiples of this many bytes: a cache line.
_ALIGNMENT = 64


@dataclass(eq=False)
class Slot:
    """The place of one gradient.

    Attributes:
        name: of the parameter.
        parameter: whose gradient it is.
        place: where it lies in the bucket, shaped and strided like the parameter. Nobody else gets this tensor.
        view: the same memory, for the parameter; `model.to(…)` or `grad.data = …` may put it elsewhere.
        flat: the bucket it lies in.
        ready: it has arrived in this cycle.
    """

    name: str
    parameter: torch.nn.Parameter
    place: torch.Tensor
    flat: Flat
    ready: bool = False
    view: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.view = self.place.detach()
        self._address = self.place.data_ptr()

    def _is_home(self) -> bool:
        return self.view.data_ptr() == self._address and self.view.dtype == self.place.dtype

    def adopt(self) -> None:
        """Bring a gradient that lies elsewhere into the bucket, and let the parameter's gradient be the view.

        Raises:
            UnsupportedBuffer: it is sparse, or the parameter has got another type or shape.
        """
        gradient = self.parameter.grad
        if gradient is None or (gradient is self.view and self._is_home()):
            return
        if gradient.layout is not torch.strided:
            raise UnsupportedBuffer(
                f"the gradient of '{self.name}' is sparse ({gradient.layout}); make it dense (sparse=False)"
            )
        self._check_alike()
        with torch.no_grad():
            self.place.copy_(gradient)
        self.attach()

    def attach(self) -> None:
        """Let the parameter's gradient be the view.

        Raises:
            UnsupportedBuffer: the parameter has got another type or shape.
        """
        if not self._is_home():
            self.view = self.place.detach()
        if self.parameter.grad is not self.view:
            self._check_alike()
            self.parameter.grad = self.view

    def _check_alike(self) -> None:
        parameter, place = self.parameter, self.place
        if parameter.dtype != place.dtype or parameter.shape != place.shape:
            raise UnsupportedBuffer(
                f"parameter '{self.name}' was {place.dtype} of shape {tuple(place.shape)} when its bucket was made, "
                f"and is {parameter.dtype} of shape {tuple(parameter.shape)} now; close() the bucket and make a new one"
            )


@dataclass(eq=False)
class Flat:
    """One bucket.

    Attributes:
        index: its place in the order in which buckets are reduced.
        vector: its memory; also holds the few elements between aligned gradients, which are zero.
        slots: its gradients.
        waiting: how many have not arrived in this cycle.
        started: its exchange is on the way.
        scheme: the compression that `exchange` was made for.
        choice: what `auto` made of it.
    """

    index: int
    vector: torch.Tensor
    slots: list[Slot] = field(default_factory=list)
    waiting: int = 0
    started: bool = False
    scheme: str | None = None
    exchange: Exchange | None = None
    choice: Choice | None = None

    def reset(self) -> None:
        """Begin a new cycle."""
        self.waiting = len(self.slots)
        self.started = False
        for slot in self.slots:
            slot.ready = False


def build(parameters: Sequence[Named], size_bytes: int, group: Communicator) -> list[Flat]:
    """Buckets of at most `size_bytes` (or one gradient), each of one type, the last parameters first.

    Backward reaches the parameters that were used last first, and models list theirs in the order of use.
    """
    open_lists: dict[torch.dtype, tuple[list[Named], int]] = {}
    closed: list[list[Named]] = []
    for name, parameter in reversed(parameters):
        members, used = open_lists.get(parameter.dtype, ([], 0))
        nbytes = _padded(parameter) * parameter.element_size()
        if members and used + nbytes > size_bytes:
            closed.append(members)
            members, used = [], 0
        members.append((name, parameter))
        open_lists[parameter.dtype] = (members, used + nbytes)
    closed += [members for members, _ in open_lists.values()]
    return [_flat(index, members, group) for index, members in enumerate(closed)]


def _padded(parameter: torch.Tensor) -> int:
    grain = _ALIGNMENT // parameter.element_size()
    return -(-parameter.numel() // grain) * grain


def _flat(index: int, members: Sequence[Named], group: Communicator) -> Flat:
    count = sum(_padded(parameter) for _, parameter in members)
    flat = Flat(index, allocate.zeros(count, members[0][1].dtype, group))
    begin = 0
    for name, parameter in members:
        part = flat.vector[begin : begin + parameter.numel()]
        begin += _padded(parameter)
        # Optimizers are fastest, and channels_last stays what it is, when gradients have their parameter's strides.
        view = (
            part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())
            if is_dense(parameter)
            else part.view(parameter.shape)
        )
        flat.slots.append(Slot(name, parameter, view, flat))
    flat.reset()
    return flat


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie side by side in some order of its dimensions."""
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if step != expected:
                return False
            expected *= size
    return True
