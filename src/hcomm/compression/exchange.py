"""Exchange: an all_reduce in up to three parts, so that several can be on their way while gradients are computed.

`start`, `turn` and `finish` are called once each, in this order; each may communicate, so every rank must call those
of all its exchanges in the same order. Nothing else decides when anything is sent: no thread, no clock.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

from hcomm import buffers
from hcomm.buffers import Buffer
from hcomm.collectives import Collectives
from hcomm.errors import UnsupportedBuffer
from hcomm.work import Work


class Exchange(Protocol):
    """An all_reduce of vectors of one length and type. It keeps its buffers from one to the next."""

    def start(self, vector: Any) -> None:
        """Begin to reduce a contiguous vector, in place; it must not be touched until `finish`."""

    def turn(self) -> None:
        """Do what lies between two rounds of communication; waits for the first."""

    def finish(self) -> None:
        """Wait for the rest; the vector holds the result."""


class Plain:
    """All elements as they are."""

    def __init__(self, communicator: Collectives, op: str) -> None:
        self._communicator = communicator
        self._op = op
        self._work: Work | None = None

    def start(self, vector: Any) -> None:
        """Likewise; see `Exchange`."""
        self._work = self._communicator.all_reduce_async(vector, self._op)

    def turn(self) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Likewise; see `Exchange`."""
        work, self._work = self._work, None
        if work is not None:
            work.wait()


class Cast:
    """All elements in another float type, which is also the type they are reduced in.

    Args:
        communicator: whose ranks take part.
        dtype: the type on the wire.
        op: sum or avg.
    """

    def __init__(self, communicator: Collectives, dtype: str, op: str) -> None:
        self._plain = Plain(communicator, op)
        self._dtype = dtype
        self._vector: Buffer | None = None
        self._sent: Any = None

    def start(self, vector: Any) -> None:
        """Likewise; see `Exchange`."""
        self._vector = buffers.pack(vector, writable=True)
        if self._sent is None or len(self._sent) != self._vector.count:
            self._sent = new_array(self._vector, self._vector.count, self._dtype)
        copy(self._sent, self._vector.packed)
        self._plain.start(self._sent)

    def turn(self) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Likewise; see `Exchange`."""
        self._plain.finish()
        vector, self._vector = self._vector, None
        if vector is not None:
            copy(vector.packed, self._sent)


def new_array(like: Buffer, count: int, dtype: str) -> Any:
    """A vector of the library of another, its contents undefined.

    Raises:
        UnsupportedBuffer: the library lacks the type.
    """
    library = sys.modules[like.family.name]
    kind = getattr(library, dtype, None)
    if kind is None:
        raise UnsupportedBuffer(f"{like.family.name} has no {dtype}; pass torch tensors, or compress to fp16")
    return library.empty(count, dtype=kind)


def copy(target: Any, source: Any) -> None:
    """Round the elements of one vector into another of the same library."""
    if hasattr(target, "copy_"):
        target.detach().copy_(source.detach().reshape(target.shape))
    else:
        target[...] = source.reshape(target.shape)


def address_of(array: Any) -> int:
    """Where the elements of a tensor or array of this module are."""
    return int(array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data)
