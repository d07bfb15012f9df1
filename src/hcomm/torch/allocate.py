"""Where the memory of gradient buckets comes from."""

from __future__ import annotations

from typing import Any

import torch

import hcomm
from hcomm.communicator import Communicator


def zeros(count: int, dtype: torch.dtype, group: Communicator) -> torch.Tensor:
    """A vector of zeros, in memory that other ranks of this host can reach where hcomm offers it."""
    shared: Any = getattr(hcomm, "empty", None)
    vector: torch.Tensor = (
        torch.empty(count, dtype=dtype) if shared is None else shared((count,), dtype, group=group)
    )
    return vector.zero_()
