"""Tensors and arrays of every layout, with guards around and between their elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.arithmetic import Array, storage

_GUARD = 3  # elements: also makes the first element badly aligned


class Buffer:
    """A vector handed to hcomm, inside a larger block of memory that hcomm must leave alone.

    Args:
        values: the contents (float32 values when `dtype` is bfloat16).
        library: numpy or torch.
        layout: packed, strided (every other element) or reversed (negative stride, NumPy only).
    """

    def __init__(self, values: Array, dtype: str, library: str = "numpy", layout: str = "packed") -> None:
        step = 1 if layout == "packed" else 2
        count = len(values)
        base: Any = np.full(_GUARD + count * step + _GUARD, 1, dtype=storage(dtype))
        if library == "torch":
            import torch

            base = torch.from_numpy(base).to(getattr(torch, dtype))
        self.base = base
        self.library = library
        self.window = slice(_GUARD, _GUARD + count * step, step)
        if layout == "reversed":
            self.window = slice(_GUARD + (count - 1) * step, _GUARD - 1, -step) if count else slice(0, 0)
        #: What the user hands over: a view.
        self.tensor = base[self.window]
        self.write(values)

    def write(self, values: Array) -> None:
        """Set the elements."""
        if self.library == "torch":
            import torch

            self.tensor.copy_(torch.from_numpy(np.ascontiguousarray(values)))
        else:
            self.tensor[...] = values

    def read(self) -> Array:
        """A copy of the elements."""
        return read(self.tensor)

    def damaged(self) -> bool:
        """Whether anything beside the elements was written."""
        outside = read(self.base)
        mask = np.ones(len(outside), dtype=bool)
        mask[self.window] = False
        return bool((outside[mask] != 1).any())


def read(tensor: Any) -> Array:
    """A tensor's or an array's elements as a new NumPy array (bfloat16 as float32)."""
    if isinstance(tensor, np.ndarray):
        return tensor.copy()
    import torch

    x = tensor.detach()
    out: Array = (x.float() if x.dtype == torch.bfloat16 else x).numpy().copy()
    return out
