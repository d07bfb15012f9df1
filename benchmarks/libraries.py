"""The libraries that are measured, behind one small interface: join, all_reduce in place, leave."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import torch

LIBRARIES = ("hcomm", "gloo")


class Library(Protocol):
    """What the measurement needs of a library."""

    #: How it moves bytes, in its own words.
    backend: str

    def all_reduce(self, tensor: torch.Tensor) -> object:
        """Sum over all ranks, in place; returns when the result is there."""

    def leave(self) -> None:
        """Leave the group."""


class Hcomm:
    """hcomm's own interface, on ordinary tensors."""

    def __init__(self) -> None:
        import hcomm

        hcomm.init()
        self.backend = hcomm.get_backend_name()
        self.all_reduce = hcomm.all_reduce
        self.leave = hcomm.finalize


class Gloo:
    """torch.distributed's gloo, which meets at a file."""

    def __init__(self, meeting_point: Path, rank: int, size: int) -> None:
        import torch.distributed as dist

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host's name need not resolve
        dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=size)
        self.backend = "gloo"
        self.all_reduce = dist.all_reduce
        self.leave = dist.destroy_process_group


def join(name: str, folder: Path, rank: int, size: int) -> Library:
    """Bring the library up on this rank; `folder` is this launch's own."""
    torch.set_num_threads(1)  # one core to a rank, for every library
    return Hcomm() if name == "hcomm" else Gloo(folder / "gloo", rank, size)
