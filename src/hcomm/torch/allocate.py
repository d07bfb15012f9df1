"""Where the memory of gradient buckets, and of torch's own buffers for collectives, comes from."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from hcomm.communicator import Communicator


def zeros(count: int, dtype: torch.dtype, group: Communicator) -> torch.Tensor:
    """A vector of zeros, in memory that other ranks of this host can reach."""
    vector: torch.Tensor = group.zeros((count,), dtype)
    return vector


@dataclass(eq=False, slots=True)
class _Piece:
    """Shared memory that is lent out as tensors, one after the other.

    Attributes:
        data: all of it, as bytes.
        storage: of `data`.
        idle: holders of the storage while nobody has borrowed it.
    """

    data: torch.Tensor
    storage: torch.UntypedStorage
    idle: int

    def lent(self) -> bool:
        return _holders(self.storage) > self.idle


def _holders(storage: torch.UntypedStorage) -> int:
    return int(torch._C._storage_Use_Count(storage._cdata))


class Pool:
    """Tensors in shared memory that are used again as soon as nobody holds them: FSDP2 takes new buffers for every
    collective, and memory that was never used before costs more than the collective does.
    """

    #: At most this many bytes lie idle.
    MOST_IDLE = 1 << 30
    #: A piece serves requests down to one in this many of its bytes.
    WASTE = 2

    def __init__(self, group: Communicator) -> None:
        self._group = group
        self._pieces: list[_Piece] = []
        self._lock = threading.Lock()

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A vector of `count` elements, with any content.

        Raises:
            UnsupportedBuffer: hcomm does not know the element type.
            OSError: the system gives no such memory.
        """
        nbytes = count * dtype.itemsize
        with self._lock:
            free = [piece for piece in self._pieces if not piece.lent()]
            fitting = [p for p in free if nbytes <= p.data.numel() <= self.WASTE * nbytes]
            if fitting:
                best: torch.Tensor = min(fitting, key=lambda piece: piece.data.numel()).data
                return best[:nbytes].view(dtype)
            self._trim(free)
            made: torch.Tensor = self._group.empty((max(1, nbytes),), torch.uint8)
            storage = made.untyped_storage()
            self._pieces.append(_Piece(made, storage, _holders(storage)))
            return made[:nbytes].view(dtype)

    def _trim(self, free: list[_Piece]) -> None:
        """Give back idle pieces, the oldest first, until few enough bytes lie idle."""
        idle = sum(piece.data.numel() for piece in free)
        for piece in free:
            if idle <= self.MOST_IDLE:
                return
            idle -= piece.data.numel()
            self._pieces.remove(piece)

    def clear(self) -> None:
        """Lend nothing more; what is lent lives on with its borrowers."""
        with self._lock:
            self._pieces.clear()
