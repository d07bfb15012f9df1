"""Tensors and arrays: what is taken, how strides are kept, what is refused and with which advice."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from hcomm import UnsupportedBuffer, buffers
from hcomm.codes import DTYPES


@pytest.mark.parametrize("name", DTYPES)
def test_torch_types(name: str) -> None:
    tensor = torch.zeros(3, dtype=getattr(torch, name))
    buffer = buffers.pack(tensor, writable=True)
    assert (buffer.dtype, buffer.count, buffer.shape) == (name, 3, (3,))
    assert buffer.address == tensor.data_ptr()
    assert buffer.itemsize == tensor.element_size()


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "bfloat16"])
def test_numpy_types(name: str) -> None:
    array = np.zeros(3, dtype=name)
    buffer = buffers.pack(array, writable=True)
    assert (buffer.dtype, buffer.count, buffer.address) == (name, 3, array.ctypes.data)


def test_zero_dimensional() -> None:
    assert buffers.pack(torch.tensor(2.0), writable=True).shape == ()
    assert buffers.pack(np.array(2.0), writable=True).count == 1


def test_a_column_is_packed_and_written_back_in_place() -> None:
    whole = torch.arange(4).view(2, 2) + 10
    buffer = buffers.pack(whole[:, 0], writable=True)
    assert buffer.packed.tolist() == [10, 12]
    buffer.packed.fill_(5)
    buffer.write_back()
    assert whole.tolist() == [[5, 11], [5, 13]]


def test_a_numpy_column_is_packed_and_written_back_in_place() -> None:
    whole = np.arange(4).reshape(2, 2) + 10
    buffer = buffers.pack(whole[:, 0], writable=True)
    buffer.packed[...] = [7, 8]
    buffer.write_back()
    assert whole.tolist() == [[7, 11], [8, 13]]


def test_channels_last_keeps_strides_and_logical_order() -> None:
    tensor = torch.arange(120.0).view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    strides = tensor.stride()
    buffer = buffers.pack(tensor, writable=True)
    assert buffer.packed.flatten().tolist() == list(range(120))
    buffer.packed.add_(1)
    buffer.write_back()
    assert tensor.stride() == strides
    assert tensor.flatten().tolist() == list(range(1, 121))


def test_lazily_conjugated_and_negated_tensors_have_their_values() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    assert buffers.pack(tensor.conj(), writable=False).packed.tolist() == [1 - 2j, 3 + 1j]
    assert buffers.pack(tensor.conj().imag, writable=False).packed.tolist() == [-2, 1]
    one = torch.tensor([1 + 2j]).conj().imag
    buffer = buffers.pack(one, writable=True)
    buffer.packed.fill_(9)
    buffer.write_back()
    assert one.tolist() == [9]


def test_leaf_parameters_are_taken() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 2).t())
    buffer = buffers.pack(weight, writable=True)
    buffer.packed.mul_(3)
    buffer.write_back()
    assert weight.detach().sum() == 24


class _Dlpack:
    """Another library's array."""

    def __init__(self, tensor: Any, device: tuple[int, int] = (1, 0)) -> None:
        self._tensor = tensor
        self._device = device

    def __dlpack__(self, **how: Any) -> Any:
        return self._tensor.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def test_dlpack_objects_share_their_memory() -> None:
    tensor = torch.arange(3.0)
    foreign = _Dlpack(tensor)
    buffer = buffers.pack(foreign, writable=True)
    assert buffer.address == tensor.data_ptr()
    assert buffer.owner is foreign


def _sparse() -> Any:
    return torch.eye(2).to_sparse()


def _read_only() -> Any:
    array = np.zeros(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_sparse, "layout torch.sparse_coo; pass a dense one"),
        (lambda: torch.zeros(2, device="meta"), "device meta: it has no data"),
        (
            lambda: torch.zeros(2, dtype=torch.float8_e5m2),
            "a tensor of torch.float8_e5m2; hcomm knows bool, int8",
        ),
        (lambda: torch.zeros(1).expand(4), "several elements in one place .*; pass tensor.contiguous"),
        (_read_only, r"a read-only array cannot receive; pass array.copy\(\)"),
        (lambda: np.array([object()]), "an array of dtype object; hcomm knows"),
        (lambda: np.zeros(2, dtype=">f4"), "foreign byte order .*>f4.*newbyteorder"),
        (lambda: np.zeros(2, dtype="M8[s]"), "an array of dtype datetime64"),
        (lambda: np.ma.masked_array([1.0], [True]), "a masked array; pass array.data"),
        (lambda: np.lib.stride_tricks.as_strided(np.zeros(1), (4,), (0,)), "several elements in one place"),
        (lambda: np.float32(1), "a NumPy scalar"),
        (lambda: [1.0, 2.0], "a builtins.list; hcomm takes CPU tensors of torch, NumPy arrays"),
        (lambda: _Dlpack(torch.zeros(1), (2, 0)), r"DLPack device \(2, 0\); hcomm moves CPU memory"),
        (lambda: None, "a builtins.NoneType; hcomm takes"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UnsupportedBuffer, match=message) as error:
        buffers.pack(make(), writable=True)
    assert isinstance(error.value, TypeError)


def test_read_only_arrays_may_be_sent() -> None:
    assert buffers.pack(_read_only(), writable=False).count == 3


def test_bfloat16_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.ones(3, dtype=ml_dtypes.bfloat16)
    buffer = buffers.pack(array, writable=True)
    assert (buffer.dtype, buffer.itemsize, buffer.address) == ("bfloat16", 2, array.ctypes.data)


def test_overlap() -> None:
    whole = torch.zeros(8)
    first, second = whole[:4], whole[4:]
    pack = lambda tensor: buffers.pack(tensor, writable=True)  # noqa: E731
    assert not buffers.overlap(pack(first), pack(second))
    assert buffers.overlap(pack(first), pack(whole))
    assert buffers.overlap(pack(whole.numpy()[::-1]), pack(second))
    assert not buffers.overlap(pack(whole[:0]), pack(whole))


def test_outputs_are_of_the_same_family() -> None:
    assert (
        buffers.empty((2, 3), buffers.pack(torch.zeros(1, dtype=torch.bfloat16), writable=False)).dtype
        == torch.bfloat16
    )
    made = buffers.empty((2, 3), buffers.pack(np.zeros(1, dtype=np.int16), writable=False))
    assert isinstance(made, np.ndarray)
    assert (made.dtype, made.shape) == (np.int16, (2, 3))


def test_import_needs_neither_torch_nor_numpy() -> None:
    code = "import sys, hcomm; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
