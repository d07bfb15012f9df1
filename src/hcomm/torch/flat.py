"""Flat buckets: where gradients lie, as views into a few long vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from hcomm import _native
from hcomm.communicator import Communicator
from hcomm.compression.auto import Choice
from hcomm.compression.exchange import Exchange
from hcomm.errors import UnsupportedBuffer
from hcomm.torch import allocate
from hcomm.torch.alike import Named

#: Gradients begin at multiples of this many bytes: a cache line.
_ALIGNMENT = 64
#: Gradients of this many bytes are copied past the cache.
_STREAM_BYTES = 8 << 20
#: The bucket that fills last has at most this many bytes, or one gradient.
_LEAST_BYTES = 1 << 20
#: A vector with at most one in this many of the bytes of the parameter before belongs to it, as a bias does.
_SMALL = 16


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
        self._copy(gradient)
        self.attach()

    def _copy(self, gradient: torch.Tensor) -> None:
        place = self.place
        alike = gradient.dtype == place.dtype and gradient.stride() == place.stride() and gradient.is_cpu
        plain = type(gradient) in (torch.Tensor, torch.nn.Parameter) and not gradient.is_neg()
        if alike and plain and place.nbytes >= _STREAM_BYTES:
            # Torch's copy reads each line that it is about to overwrite.
            _native.copy(place.data_ptr(), gradient.data_ptr(), place.nbytes)
        else:
            with torch.no_grad():
                place.copy_(gradient)

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
        if parameter.device != place.device:
            raise UnsupportedBuffer(
                f"parameter '{self.name}' was on {place.device} when its bucket was made, and is on "
                f"{parameter.device} now; close() the bucket, move the model, and make a new one"
            )
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
    """Buckets of at most `size_bytes` (or one piece), each of one type, the last parameters first.

    Backward reaches the parameters that were used last first, and models list theirs in the order of use. The bucket
    that fills last has nothing to hide behind, so it is small, and those before it are up to twice as large each: while
    one is on its way, the next, smaller one fills.
    """
    open_lists: dict[torch.dtype, tuple[list[Named], int, int]] = {}
    closed: list[list[Named]] = []
    for piece in _pieces(parameters):
        dtype = piece[0][1].dtype
        members, used, most = open_lists.get(dtype, ([], 0, min(_LEAST_BYTES, size_bytes)))
        nbytes = sum(map(_padded_bytes, piece))
        if members and used + nbytes > most:
            closed.append(members)
            members, used, most = [], 0, min(2 * most, size_bytes)
        open_lists[dtype] = ([*members, *piece], used + nbytes, most)
    closed += [members for members, *_ in open_lists.values()]
    return [_flat(index, members[::-1], group) for index, members in enumerate(reversed(closed))]


def _pieces(parameters: Sequence[Named]) -> list[list[Named]]:
    """Parameters in order, a large one together with the small vectors that follow it.

    The gradients of a layer's weight and bias arrive together: a cut between them would make the bias's bucket wait.
    """
    pieces: list[list[Named]] = []
    for item in parameters:
        first, vector = pieces[-1][0][1] if pieces else item[1], item[1]
        belongs = vector.dim() < 2 and vector.dtype == first.dtype
        if pieces and belongs and _SMALL * _padded_bytes(item) <= first.nbytes:
            pieces[-1].append(item)
        else:
            pieces.append([item])
    return pieces


def _padded_bytes(item: Named) -> int:
    return _padded(item[1]) * item[1].element_size()


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
