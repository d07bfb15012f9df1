"""Tensors and arrays → (address, count, element type), and outputs of the same family.

Nothing here imports torch or NumPy on its own account: an object of theirs proves that they are loaded
already.

- torch CPU tensors, any strides; NumPy arrays, any strides; other CPU objects that speak DLPack (seen through
  torch if it is loaded, else through NumPy).
- A strided object is sent from, and received into, a packed copy; after a receive the copy is written back in
  logical order, so the strides (also channels_last) stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hcomm import _native
from hcomm.codes import DTYPES
from hcomm.errors import UnsupportedBuffer

_READABLE = "hcomm takes CPU tensors of torch, NumPy arrays and CPU objects that speak DLPack"


class Family(Protocol):
    """What hcomm needs to know about a library of arrays."""

    name: str

    def pack(self, array: Any, *, writable: bool) -> Buffer:
        """The memory of `array`, packed if it is strided."""

    def empty(self, shape: tuple[int, ...], like: Buffer) -> Any:
        """A new contiguous array with the element type of `like`."""

    def copy(self, target: Any, source: Any) -> None:
        """Write `source` into `target`, element by element in logical order."""

    def extent(self, array: Any) -> tuple[int, int]:
        """Addresses of the first byte and one past the last byte that the (non-empty) array may touch."""


@dataclass(slots=True)
class Buffer:
    """Where the elements of a tensor or array are.

    Attributes:
        array: the tensor or array as torch or NumPy sees it.
        packed: what owns the memory at `address`: `array` itself, or a contiguous copy of a strided one.
        address: of the first element.
        count: number of elements.
        dtype: name in `codes.DTYPES`.
        shape: of the array.
        family: torch or NumPy.
        owner: what the user passed, and gets back.
    """

    array: Any
    packed: Any
    address: int
    count: int
    dtype: str
    shape: tuple[int, ...]
    family: Family
    owner: Any

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return DTYPES[self.dtype][1]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.count * DTYPES[self.dtype][1]

    @property
    def is_copy(self) -> bool:
        """Whether the memory is a packed copy of a strided array."""
        return self.packed is not self.array

    def write_back(self) -> None:
        """After a receive: put the packed copy of a strided array where the array is."""
        if self.packed is not self.array:
            self.family.copy(self.array, self.packed)


def _refuse_shared_elements(shape: Sequence[int], strides: Sequence[int], cure: str) -> None:
    """Raise for an expanded array, which has several elements in one place and so cannot be written."""
    if any(step == 0 and size > 1 for step, size in zip(strides, shape, strict=True)):
        raise UnsupportedBuffer(
            f"an expanded array (shape {tuple(shape)}, strides {tuple(strides)}) has several elements in one place "
            f"and cannot be written; pass {cure}"
        )


class _Torch:
    """Tensors of torch. Made when the first tensor is seen."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.names = {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)}
        self.types = {name: dtype for dtype, name in self.names.items()}
        self.strided = torch.strided
        self.plain = (torch.Tensor, torch.nn.Parameter)

    def pack(self, tensor: Any, *, writable: bool) -> Buffer:
        dtype = self.names.get(tensor.dtype)
        self._refuse(tensor, dtype)
        packed = tensor
        lazy = tensor.is_conj() or tensor.is_neg()
        if lazy or not tensor.is_contiguous():
            if writable:
                _refuse_shared_elements(tensor.shape, tensor.stride(), "tensor.contiguous()")
            plain = tensor.detach()
            packed = (plain.resolve_conj().resolve_neg() if lazy else plain).contiguous()
        assert dtype is not None
        address = packed.data_ptr()
        if address == 0 and packed.numel():
            raise UnsupportedBuffer(
                f"a {type(tensor).__name__} without memory of its own; pass a plain CPU tensor"
            )
        return Buffer(tensor, packed, address, packed.numel(), dtype, tuple(tensor.shape), self, tensor)

    def _refuse(self, tensor: Any, dtype: str | None) -> None:
        """Raise for what has no plain CPU memory of a known element type."""
        if (
            dtype is not None
            and tensor.is_cpu
            and type(tensor) in self.plain
            and tensor.layout is self.strided
            and not tensor.is_nested
        ):
            return
        if tensor.is_nested:
            raise UnsupportedBuffer(
                "a nested tensor, whose parts are of different shapes; pass its parts (tensor.unbind()) one by one"
            )
        if tensor.layout is not self.strided:
            raise UnsupportedBuffer(
                f"a tensor with layout {tensor.layout}; pass a dense one (tensor.to_dense())"
            )
        if tensor.device.type != "cpu":
            cure = (
                "it has no data"
                if tensor.device.type == "meta"
                else "pass tensor.cpu(); hcomm moves CPU memory"
            )
            raise UnsupportedBuffer(f"a tensor on device {tensor.device}: {cure}")
        if dtype is None:
            raise UnsupportedBuffer(f"a tensor of {tensor.dtype}; hcomm knows {', '.join(DTYPES)}")
        if type(tensor) not in self.plain and hasattr(tensor, "__tensor_flatten__"):
            raise UnsupportedBuffer(
                f"a {type(tensor).__name__}, which wraps other tensors; pass the plain tensor inside it"
            )

    def empty(self, shape: tuple[int, ...], like: Buffer) -> Any:
        return self.torch.empty(shape, dtype=self.types[like.dtype])

    def copy(self, target: Any, source: Any) -> None:
        target.detach().copy_(source.detach())

    def extent(self, tensor: Any) -> tuple[int, int]:
        span = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        return (start, start + (span + 1) * tensor.element_size())


class _Numpy:
    """Arrays of NumPy. Made when the first array is seen."""

    name = "numpy"

    def __init__(self) -> None:
        import numpy

        self.numpy = numpy
        self.names: dict[Any, str | None] = {}

    def _name(self, dtype: Any) -> str | None:
        return dtype.name if dtype.kind in "biufcV" and dtype.name in DTYPES else None

    def pack(self, array: Any, *, writable: bool) -> Buffer:
        try:
            name = self.names[array.dtype]
        except KeyError:
            # NumPy puts the name together on every look, which costs more than everything else here.
            name = self.names[array.dtype] = self._name(array.dtype)
        self._refuse(array, name, writable)
        assert name is not None
        packed = array
        if not array.flags.c_contiguous:
            if writable:
                _refuse_shared_elements(array.shape, array.strides, "array.copy()")
            packed = self.numpy.array(array, order="C", copy=True, subok=False)
        return Buffer(array, packed, self._address(packed, name), packed.size, name, array.shape, self, array)

    def _address(self, packed: Any, name: str) -> int:
        if packed.size == 0:
            return 0
        # ml_dtypes.bfloat16 has no letter in the buffer protocol; its bits do.
        exported = packed.view(self.numpy.uint16) if name == "bfloat16" else packed
        return _native.address_of(exported, False)[0]

    def _refuse(self, array: Any, name: str | None, writable: bool) -> None:
        """Raise for what is not plain memory of a known element type."""
        if name is None:
            raise UnsupportedBuffer(f"an array of dtype {array.dtype}; hcomm knows {', '.join(DTYPES)}")
        if not array.dtype.isnative:
            raise UnsupportedBuffer(
                f"an array in foreign byte order (dtype {array.dtype.str}); "
                "pass array.astype(array.dtype.newbyteorder('='))"
            )
        if hasattr(array, "mask"):
            raise UnsupportedBuffer("a masked array; pass array.data, or array.filled(value)")
        if writable and not array.flags.writeable:
            raise UnsupportedBuffer("a read-only array cannot receive; pass array.copy()")

    def empty(self, shape: tuple[int, ...], like: Buffer) -> Any:
        return self.numpy.empty(shape, dtype=like.array.dtype)

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source.reshape(target.shape)

    def extent(self, array: Any) -> tuple[int, int]:
        spans = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
        start = array.__array_interface__["data"][0]
        return (
            start + sum(span for span in spans if span < 0),
            start + sum(span for span in spans if span > 0) + array.itemsize,
        )


_families: dict[str, Family] = {}
_by_type: dict[type, Family] = {}


def _family(name: str) -> Family:
    found = _families.get(name)
    if found is None:
        found = _families[name] = _Torch() if name == "torch" else _Numpy()
    return found


def _remember(kind: type, name: str) -> Family:
    """The family of a type, found at once the next time."""
    family = _by_type[kind] = _family(name)
    return family


def pack(obj: Any, *, writable: bool) -> Buffer:
    """The memory of a tensor or array.

    Args:
        obj: a torch CPU tensor, a NumPy array, or a CPU object with `__dlpack__`.
        writable: hcomm will write into it.

    Raises:
        UnsupportedBuffer: says what was found and what to do.
    """
    family = _by_type.get(type(obj))
    if family is not None:
        return family.pack(obj, writable=writable)
    torch = sys.modules.get("torch")
    # A half-imported torch has no Tensor yet; then the object is not a tensor either.
    if torch is not None and isinstance(obj, getattr(torch, "Tensor", ())):
        return _remember(type(obj), "torch").pack(obj, writable=writable)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(obj, getattr(numpy, "ndarray", ())):
            return _remember(type(obj), "numpy").pack(obj, writable=writable)
        if isinstance(obj, getattr(numpy, "generic", ())):
            raise UnsupportedBuffer(
                f"a NumPy scalar ({type(obj).__name__}) cannot be written; pass numpy.array(value)"
            )
    if hasattr(obj, "__dlpack__"):
        return _pack_dlpack(obj, writable)
    raise UnsupportedBuffer(f"a {type(obj).__module__}.{type(obj).__qualname__}; {_READABLE}")


def _pack_dlpack(obj: Any, writable: bool) -> Buffer:
    """See a DLPack object through torch if it is loaded, else through NumPy."""
    device = (
        tuple(int(part) for part in obj.__dlpack_device__()) if hasattr(obj, "__dlpack_device__") else (1, 0)
    )
    if device[0] != 1:
        raise UnsupportedBuffer(
            f"a {type(obj).__qualname__} on DLPack device {device}; hcomm moves CPU memory (type 1)"
        )
    name = "torch" if "torch" in sys.modules else "numpy"
    try:
        family = _family(name)
        view = sys.modules[name].from_dlpack(obj)
    except Exception as error:
        raise UnsupportedBuffer(
            f"{type(obj).__qualname__}.__dlpack__() was not usable through {name}: {error}"
        ) from error
    buffer = family.pack(view, writable=writable)
    buffer.owner = obj
    return buffer


def empty(shape: Sequence[int], like: Buffer) -> Any:
    """A new contiguous array of the same family and element type."""
    return like.family.empty(tuple(shape), like)


def overlap(first: Buffer, second: Buffer) -> bool:
    """Whether the memory of two buffers may overlap (judged by first and last byte)."""
    if not first.count or not second.count:
        return False
    low, high = first.family.extent(first.array)
    other_low, other_high = second.family.extent(second.array)
    return low < other_high and other_low < high


def same_memory(first: Buffer, second: Buffer) -> bool:
    """Whether two buffers are the same packed memory."""
    return (
        first.address == second.address
        and first.count == second.count
        and not (first.is_copy or second.is_copy)
    )
