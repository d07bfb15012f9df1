"""Buffers to measure with, of torch or NumPy, ordinary or hcomm's own."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

import hcomm
from hcomm.bench.values import Array, storage
from hcomm.errors import HcommError


def need(arrays: str, dtypes: tuple[str, ...], peers: tuple[str, ...], zero_copy: bool) -> None:
    """Raise HcommError where the libraries that are needed are missing; it says what to install."""
    torch = importlib.util.find_spec("torch") is not None
    if arrays == "torch" and not torch:
        raise HcommError("--arrays torch: torch is not installed: pip install torch, or --arrays numpy")
    if "gloo" in peers and not torch:
        raise HcommError("--peer gloo: gloo is part of torch, which is not installed: pip install torch")
    if "gloo" in peers and arrays != "torch":
        raise HcommError("--peer gloo takes torch tensors: use --arrays torch")
    if "mpi4py" in peers and importlib.util.find_spec("mpi4py") is None:
        raise HcommError("--peer mpi4py: mpi4py is not installed: pip install mpi4py, and an MPI")
    if "bfloat16" in dtypes and arrays != "torch":
        raise HcommError("bfloat16 is a type of torch, not of NumPy: use --arrays torch")
    if zero_copy and not hasattr(hcomm, "empty"):
        raise HcommError(f"--zero-copy: hcomm {hcomm.__version__} has no hcomm.empty; leave the option out")


class Memory:
    """Makes buffers of one kind.

    Args:
        arrays: `torch` or `numpy`.
        zero_copy: from hcomm.empty.
    """

    def __init__(self, arrays: str, zero_copy: bool) -> None:
        self._torch: Any = None
        self._zero_copy = zero_copy
        if arrays == "torch":
            import torch

            torch.set_num_threads(1)  # one core to a rank, for every library
            self._torch = torch

    def new(self, count: int, dtype: str) -> tuple[Any, Array]:
        """A buffer of `count` elements as libraries want it, and NumPy's view of the same memory."""
        kind: Any = getattr(self._torch, dtype) if self._torch else storage(dtype)
        if self._zero_copy:
            buffer = getattr(hcomm, "empty")((count,), kind)  # noqa: B009
        elif self._torch:
            buffer = self._torch.empty(count, dtype=kind)
        else:
            buffer = np.empty(count, kind)
        if not self._torch:
            return buffer, buffer
        plain = buffer.view(self._torch.uint16) if dtype == "bfloat16" else buffer
        return buffer, plain.numpy()
