"""all_reduce of many tensors in few operations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hcomm import buffers, operators
from hcomm.buffers import Buffer
from hcomm.communicator import Communicator
from hcomm.diagnose.report import describe
from hcomm.plans import Signature, agreement
from hcomm.world import state

#: A larger tensor goes by itself: copying it twice would cost more than the start of an operation.
_ALONE_BYTES = 8 << 20


def all_reduce_multi(
    tensors: Sequence[Any],
    op: str = "sum",
    group: Communicator | None = None,
    *,
    timeout: float | None = None,
) -> list[Any]:
    """Reduce many tensors over all ranks, in place, in as few operations as possible.

    Tensors of one type are packed into one vector; those above 8 MB, contiguous, are reduced where they are.

    Args:
        tensors: torch tensors and NumPy arrays in any mixture, of any types and shapes; the same list on all ranks.
        op: reduction operator, as for `all_reduce`; must mean something for every type.
        group: the communicator.
        timeout: seconds for each operation.

    Returns:
        The tensors, as a list.

    Raises:
        UnsupportedBuffer, UnsupportedOperator: as for `all_reduce`, before anything is sent.
        CollectiveMismatch: the lists differ between ranks, in shapes too.
        CommunicatorError: an operation failed.
    """
    communicator = state.of(group)
    communicator._check()
    packed = [buffers.pack(tensor, writable=True) for tensor in tensors]
    by_type: dict[str, list[Buffer]] = {}
    for buffer in packed:
        operators.check(op, buffer.dtype)
        by_type.setdefault(buffer.dtype, []).append(buffer)
    for dtype, members in sorted(by_type.items()):
        small = [b for b in members if b.is_copy or b.nbytes < _ALONE_BYTES]
        for buffer in members:
            if not any(buffer is b for b in small):
                communicator.all_reduce(buffer.packed, op, timeout=timeout)
        if len(small) == 1:
            communicator.all_reduce(small[0].array, op, timeout=timeout)
        elif small:
            _reduce_fused(communicator, small, dtype, op, timeout)
    return list(tensors)


def _reduce_fused(
    communicator: Communicator, members: list[Buffer], dtype: str, op: str, timeout: float | None
) -> None:
    """One operation on a copy of all; the header says how they are cut, so that ranks with other shapes are found."""
    count = sum(buffer.count for buffer in members)
    flat = members[0].family.empty((count,), members[0])
    _move(members, flat, gather=True)
    target = buffers.pack(flat, writable=True)
    shapes = tuple(buffer.shape for buffer in members)
    signature = Signature(
        "all_reduce", dtype, op, -1, count, count, count, target.nbytes, agreed=agreement("fused", shapes)
    )  # fmt: skip

    def say() -> str:
        return describe("all_reduce_multi", dtype, (count,), f"{op}, {len(members)} tensors")

    communicator._execute(signature, target, target, lambda: flat, say, timeout, False)
    _move(members, flat, gather=False)
    for buffer in members:
        buffer.write_back()


def _move(members: list[Buffer], flat: Any, *, gather: bool) -> None:
    """Copy the members' elements into the vector, or back."""
    begin = 0
    for buffer in members:
        part = flat[begin : begin + buffer.count].reshape(buffer.shape)
        begin += buffer.count
        own = _seen_by(flat, buffer)
        if gather:
            buffer.family.copy(part, own) if own is buffer.packed else _assign(part, own)
        elif own is buffer.packed:
            buffer.family.copy(own, part)
        else:
            _assign(own, part)


def _seen_by(flat: Any, buffer: Buffer) -> Any:
    """A member's elements as the library of the vector sees them."""
    mixed = type(flat).__module__.partition(".")[0] != buffer.family.name
    if not mixed:
        return buffer.packed
    library = sys.modules[type(flat).__module__.partition(".")[0]]
    return library.from_dlpack(buffer.packed.detach() if buffer.family.name == "torch" else buffer.packed)


def _assign(target: Any, source: Any) -> None:
    target[...] = source
