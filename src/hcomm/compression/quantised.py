"""all_reduce in 8 bits: at most two roundings, whatever the number of ranks.

Every rank owns one part of the vector. It quantises the others' parts and deals them out (all_to_all), adds what it
gets to its own, exact part in float32, quantises the sum once, and shows it to all (all_gather). With two ranks an
all_gather of the quantised vectors is as many bytes and only one rounding.
"""

from __future__ import annotations

from typing import Any

from hcomm import _native, buffers
from hcomm.buffers import Buffer
from hcomm.codes import DTYPES
from hcomm.collectives import Collectives
from hcomm.compression.exchange import address_of, new_array
from hcomm.errors import UnsupportedBuffer
from hcomm.exchanges import Exchanges
from hcomm.work import Work

#: Parts are whole numbers of this many values, so that vector kernels have no ragged ends inside the vector.
_GRAIN = 16


def check_quantisable(dtype: str, scheme: str) -> None:
    """Raise UnsupportedBuffer unless elements of this type can be compressed."""
    if dtype not in ("float16", "bfloat16", "float32", "float64"):
        raise UnsupportedBuffer(
            f"a tensor of {dtype} cannot be compressed to {scheme}: only float16, bfloat16, float32 and float64 can; "
            "use all_reduce"
        )


def wire_bytes(size: int, count: int) -> int:
    """Bytes of all ranks' parts in 8 bits: what an all_to_all or all_gather of them moves in all."""
    pieces, length = _cut(size, count)
    return (size if pieces == 1 else pieces) * _native.quantised_bytes(length)


def _cut(size: int, count: int) -> tuple[int, int]:
    """Into how many pieces a rank cuts its vector, and how long they are."""
    if size <= 2:
        return 1, count
    return size, -(-count // (size * _GRAIN)) * _GRAIN


class Quantised:
    """An `Exchange` in 8 bits.

    Args:
        communicator: whose ranks take part.
        op: sum or avg.
    """

    def __init__(self, communicator: Exchanges, op: str) -> None:
        self._communicator: Collectives = communicator
        self._exchanges = communicator
        self._rank, self._size = communicator._rank, communicator._size
        self._weight = 1.0 / self._size if op == "avg" else 1.0
        self._vector: Buffer | None = None
        self._work: Work | None = None
        self._count = -1
        self._first: Any = None
        self._second: Any = None

    def _prepare(self, vector: Buffer) -> None:
        if self._count == vector.count:
            return
        self._count = vector.count
        self._pieces, self._length = _cut(self._size, vector.count)
        self._stride = _native.quantised_bytes(self._length)
        self._first = new_array(vector, self._size * self._stride, "uint8")
        self._second = None if self._pieces == 1 else new_array(vector, self._size * self._stride, "uint8")

    def _own(self, blocks: Any) -> Any:
        return blocks[self._rank * self._stride : (self._rank + 1) * self._stride]

    def start(self, vector: Any) -> None:
        """Likewise; see `Exchange`."""
        self._vector = packed = buffers.pack(vector, writable=True)
        check_quantisable(packed.dtype, "uint8")
        self._prepare(packed)
        if not packed.count:
            return
        target = self._own(self._first) if self._pieces == 1 else self._first
        _native.quantise(
            packed.address, DTYPES[packed.dtype][0], packed.count, self._pieces, self._length, address_of(target)
        )  # fmt: skip
        if self._pieces == 1:
            self._work = self._communicator.all_gather_async(target, self._first)
        else:
            self._work = self._exchanges.all_to_all_async(self._first, self._second)

    def turn(self) -> None:
        """Likewise; see `Exchange`."""
        vector = self._vector
        if vector is None or not vector.count or self._pieces == 1:
            return
        assert self._work is not None
        self._work.wait()
        begin = min(self._rank * self._length, vector.count)
        mine = min(self._length, vector.count - begin)
        own = self._own(self._first)
        _native.requantise_sum(
            address_of(self._second), self._stride, self._size, self._rank, self._weight, mine,
            DTYPES[vector.dtype][0], vector.address + begin * vector.itemsize, self._stride, address_of(own),
        )  # fmt: skip
        self._work = self._communicator.all_gather_async(own, self._first)

    def finish(self) -> None:
        """Likewise; see `Exchange`."""
        work, self._work = self._work, None
        vector, self._vector = self._vector, None
        if work is None or vector is None:
            return
        work.wait()
        code, source = DTYPES[vector.dtype][0], address_of(self._first)
        if self._pieces == 1:
            _native.dequantise_sum(
                source, self._stride, self._size, self._weight, vector.count, code, vector.address
            )
        else:
            _native.dequantise(source, self._pieces, self._length, vector.count, code, vector.address)
