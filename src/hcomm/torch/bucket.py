"""GradientBucket: gradients of all ranks become their average while backward still computes."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterable, Iterator
from numbers import Real
from types import TracebackType
from typing import Any

import torch

from hcomm.communicator import Communicator
from hcomm.compression import auto, schemes
from hcomm.compression.exchange import Exchange
from hcomm.errors import HcommError, UnsupportedBuffer
from hcomm.torch import flat as flats
from hcomm.torch.alike import check_alike, floating, name_of, named
from hcomm.torch.flat import Flat, Slot
from hcomm.torch.groups import communicator_of

#: Exchanges that are in their first round at most: the next to start turns the one this far back.
_DEPTH = 2

#: The bucket whose hook each parameter has, by its id: a bucket keeps its parameters alive.
_owners: weakref.WeakValueDictionary[int, GradientBucket] = weakref.WeakValueDictionary()


class GradientBucket:
    """The gradients of some parameters, in a few flat buckets that are averaged over all ranks.

    ::

        bucket = hcomm.GradientBucket(model.parameters())
        for batch in batches:
            bucket.zero_grad()
            loss(model(batch)).backward()   # full buckets are on their way meanwhile
            bucket.reduce()                 # waits for the rest: gradients are averages now
            optimizer.step()

    Every `parameter.grad` is a view into a bucket, and memory is allocated once. A gradient that lies elsewhere is
    copied into its place when it arrives, and the view put back: backward makes such a one wherever there was none, as
    after `zero_grad()`. All ranks must use the buckets alike: the same parameters, the same number of
    `reduce`; but each backward may leave out other parameters on each rank. Where it does, call no other collective of
    the same communicator between backward and `reduce`.

    Args:
        parameters: `model.parameters()` or `model.named_parameters()`. Those that need no gradient are left out,
            shared ones count once.
        size_mb: size of the largest buckets in units of 2^20 bytes; a larger parameter has one of its own. Those that
            fill last are smaller.
        overlap: start each bucket when its last gradient has arrived. False: everything happens in `reduce`, and no
            hooks are set.
        group: the communicator, or a process group of torch whose backend is hcomm; None: the default one.
        compression: `default` (what `set_gradient_compression` says), None, `fp16`, `bf16`, `uint8`, `topk`,
            `topk:<ratio>` or `auto`.
        comm_dtype: floating type to send and add in where nothing is compressed, such as torch.float32 for bfloat16
            parameters; None: the parameters'.
        automatic: call `reduce` at the end of every backward, without being asked.

    Raises:
        CollectiveMismatch: parameters or arguments differ between ranks; on every rank, names the first difference.
        ValueError: no parameter needs a gradient, or one is in another bucket already; `size_mb` is not positive;
            an unknown compression; `comm_dtype` is no floating type.
        UnsupportedBuffer: a parameter is not on the CPU, or its type is not a float.
        NotInitialized: no group, and `hcomm.init()` was not called.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        size_mb: float = 25.0,
        overlap: bool = True,
        group: Any = None,
        compression: str | None = "default",
        *,
        comm_dtype: torch.dtype | None = None,
        automatic: bool = False,
    ) -> None:
        given: Any = size_mb
        if not isinstance(given, Real) or not 0 < float(given) < math.inf:
            raise ValueError(f"size_mb must be a positive number (units of 2^20 bytes), not {size_mb!r}")
        self._group = communicator_of(group)
        self._group._check()
        self._compression = compression
        if compression != "default":
            schemes.check_scheme(compression)
        self._comm_dtype = floating(comm_dtype)
        members = [(name, p) for name, p in named(parameters) if p.requires_grad]
        settings = {"size_mb": size_mb, "compression": compression, "comm_dtype": self._comm_dtype}
        check_alike(self._group, members, settings)
        _refuse(members, hooked=overlap or automatic)
        self._flats = flats.build(members, int(size_mb * 2**20), self._group)
        self._by_id = {id(slot.parameter): slot for flat in self._flats for slot in flat.slots}
        self._slots = [self._by_id[id(parameter)] for _, parameter in members]
        self._marks = bytearray(len(members))  # one for each parameter that has a gradient
        self._used = torch.frombuffer(self._marks, dtype=torch.uint8)
        self._next = 0
        self._filled: list[int] | None = []  # the order in which buckets filled; None once it was agreed on
        self._syncing = True
        self._automatic = automatic
        self._queued = False
        self._closed = False
        self._hooks: list[Any] = []
        self._overlap = overlap
        for slot in self._slots:
            slot.adopt()
            slot.attach()
        if overlap or automatic:
            self._set_hooks()

    def _set_hooks(self) -> None:
        # A bucket that nobody holds any more must not live on in the hooks of its parameters.
        me = weakref.ref(self)

        def make(slot: weakref.ref[Slot]) -> Any:
            def arrived(parameter: torch.Tensor) -> None:
                bucket, place = me(), slot()
                if bucket is not None and place is not None:
                    bucket._arrived(place)

            return arrived

        for slot in self._slots:
            register: Any = slot.parameter.register_post_accumulate_grad_hook
            self._hooks.append(register(make(weakref.ref(slot))))
            _owners[id(slot.parameter)] = self

    # The cycle: gradients arrive, buckets start in their order, `reduce` ends it.

    def _arrived(self, slot: Slot) -> None:
        """A gradient has been accumulated."""
        if slot.flat.started:
            raise RuntimeError(
                f"a second gradient of '{slot.name}' arrived while its bucket is being averaged: to accumulate over "
                "several backwards, run all but the last inside `with bucket.no_sync():`, and reduce() after each cycle"
            )
        slot.adopt()
        if not self._syncing:
            return
        if self._automatic and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._at_end_of_backward)
        if not slot.ready:
            slot.ready = True
            slot.flat.waiting -= 1
            if slot.flat.waiting == 0 and self._filled is not None:
                self._filled.append(slot.flat.index)
        if self._overlap and slot.flat.waiting == 0:
            # Always in one order, so that ranks whose gradients arrive in different orders agree.
            while self._next < len(self._flats) and self._flats[self._next].waiting == 0:
                self._start(self._flats[self._next])

    def _at_end_of_backward(self) -> None:
        if not self._closed:
            self.reduce()

    def _start(self, flat: Flat) -> None:
        scheme = self.compression
        if flat.exchange is None or flat.scheme != scheme:
            flat.exchange, flat.scheme = self._make_exchange(flat, scheme), scheme
        flat.started = True
        self._next += 1
        with torch.no_grad():
            flat.exchange.start(flat.vector)
            if flat.index >= _DEPTH:
                _exchange(self._flats[flat.index - _DEPTH]).turn()

    def _make_exchange(self, flat: Flat, scheme: str | None) -> Exchange:
        count, dtype = flat.vector.numel(), name_of(flat.vector.dtype)
        flat.choice = None
        if scheme == "auto" and self._group.size > 1:
            flat.choice = auto.choose(self._group, count, dtype)
            auto.tell(flat.choice, self._group)
            scheme = flat.choice.scheme
        return schemes.make_exchange(self._group, scheme, count, dtype, comm_dtype=self._comm_dtype)

    def reduce(self) -> None:
        """Wait until all gradients are averages over all ranks. Collective; call it once after each backward.

        A parameter that got no gradient on this rank counts as zero; one that got none on any rank keeps its
        gradient as it is (None, if it was None).

        Raises:
            RuntimeError: the bucket was closed.
            CommunicatorError: a rank failed.
        """
        self._check_open()
        self._queued = False
        try:
            self._reduce()
        finally:
            self._next = 0
            for flat in self._flats:
                flat.reset()

    def _reduce(self) -> None:
        with torch.no_grad():
            for place, slot in enumerate(self._slots):
                self._marks[place] = slot.flat.started or slot.parameter.grad is not None
                if not slot.flat.started:
                    slot.adopt()
                    if slot.parameter.grad is None:
                        slot.place.zero_()
            for flat in self._flats[self._next :]:
                self._start(flat)
            # After all starts: how many of them came before this call differs between ranks.
            used = self._group.all_reduce_async(self._used, "max")
            for flat in self._flats[max(0, len(self._flats) - _DEPTH) :]:
                _exchange(flat).turn()
            for flat in self._flats:
                _exchange(flat).finish()
            used.wait()
        for slot, anywhere in zip(self._slots, self._marks, strict=True):
            if anywhere:
                slot.attach()
        if self._filled is not None and self._overlap:
            self._agree_on_order(self._filled)

    def _agree_on_order(self, filled: list[int]) -> None:
        """From the second cycle on buckets start in the order in which rank 0's filled in the first.

        Those that did not fill come last, so that a parameter without gradient delays only its own.
        """
        rest = [index for index in range(len(self._flats)) if index not in filled]
        order = torch.tensor([*filled, *rest], dtype=torch.int32)
        self._group.broadcast(order)
        self._flats = [self._flats[index] for index in order.tolist()]
        for index, flat in enumerate(self._flats):
            flat.index = index
        self._filled = None

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside only add to this rank's gradients; the next one outside, and `reduce`, averages the sum.

        All ranks must do so alike.
        """
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin anew: gradients are None, as after the optimizer's; the next ones are copied to their places.

        With `set_to_none=False` they are zero in place, and stay views; what arrives is added to them, which reads and
        writes every bucket twice more.
        """
        self._check_open()
        for flat in self._flats:
            if not set_to_none:
                flat.vector.zero_()
            for slot in flat.slots:
                if set_to_none:
                    slot.parameter.grad = None
                else:
                    slot.attach()

    # What it is

    @property
    def group(self) -> Communicator:
        """The communicator."""
        return self._group

    @property
    def compression(self) -> str | None:
        """The scheme in force: its own, or what `set_gradient_compression` says."""
        if self._compression == "default":
            return schemes.gradient_compression(self._group)
        return self._compression

    def set_compression(self, scheme: str | None) -> None:
        """Another scheme from the next cycle on, on all ranks alike; `default` for the common one.

        Raises:
            ValueError: there is no such scheme.
        """
        if scheme != "default":
            schemes.check_scheme(scheme)
        self._compression = scheme

    @property
    def choices(self) -> list[auto.Choice]:
        """What `auto` chose for each bucket, and why (print it); empty before the first reduction."""
        return [flat.choice for flat in self._flats if flat.choice is not None]

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The flat buckets, in the order in which they are reduced."""
        return [flat.vector for flat in self._flats]

    @property
    def nbytes(self) -> int:
        """Bytes of all buckets."""
        return sum(flat.vector.nbytes for flat in self._flats)

    # The end

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this GradientBucket was closed")

    def close(self) -> None:
        """Give hooks and memory back; gradients become ordinary tensors with the same values. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._remove_hooks()
        for flat in self._flats:
            if flat.started and flat.exchange is not None:
                # A started exchange writes into the bucket until it ends, well or badly.
                with contextlib.suppress(HcommError):
                    flat.exchange.turn()
                    flat.exchange.finish()
        for slot in self._slots:
            if slot.parameter.grad is slot.view:
                slot.parameter.grad = slot.view.clone()
        self._flats, self._slots = [], []
        self._by_id.clear()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def __getstate__(self) -> Any:
        raise TypeError(
            "a GradientBucket cannot be copied or pickled: it holds hooks and memory that ranks share. Copy or save "
            "the model itself (the `module` of a DataParallel, or its state_dict()), and make a bucket for the copy"
        )

    def __enter__(self) -> GradientBucket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_hooks"):
            self._remove_hooks()

    def __repr__(self) -> str:
        if self._closed:
            return "<hcomm.GradientBucket: closed>"
        return (
            f"<hcomm.GradientBucket: {len(self._slots)} parameters in {len(self._flats)} buckets of "
            f"{self.nbytes / 2**20:.1f} MB in all, compression {self.compression}>"
        )


def _exchange(flat: Flat) -> Exchange:
    assert flat.exchange is not None
    return flat.exchange


def _refuse(members: list[tuple[str, torch.nn.Parameter]], *, hooked: bool) -> None:
    """Raise for what has no gradient that can be averaged here."""
    if not members:
        raise ValueError("no parameter needs a gradient: there is nothing to average")
    for name, parameter in members:
        if parameter.device.type != "cpu":
            raise UnsupportedBuffer(
                f"parameter '{name}' is on {parameter.device}; hcomm averages CPU gradients"
            )
        if not parameter.dtype.is_floating_point or parameter.element_size() < 2:
            raise UnsupportedBuffer(
                f"parameter '{name}' is {parameter.dtype}; buckets hold 16 to 64-bit floats"
            )
        if hooked and _is_taken(parameter):
            raise ValueError(
                f"parameter '{name}' is in another GradientBucket already: close() that one before"
            )


def _is_taken(parameter: torch.nn.Parameter) -> bool:
    """Whether a bucket that still works has a hook on it: two would move the gradient while the other averages it."""
    owner = _owners.get(id(parameter))
    if owner is None or owner._closed:
        return False
    try:
        owner._group._check()
    except HcommError:
        return False
    return True
