"""How much memory a rank gains over thousands of mixed calls of ever-changing size."""

from __future__ import annotations

import ctypes
import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import hcomm
from hcomm.bench.meeting import Meeting

#: Bytes of the largest block of a call.
_BLOCK = 256 << 10
_DTYPES = (torch.float32, torch.int64, torch.bfloat16, torch.uint8)


class Calls:
    """The operations, on views of two buffers; every rank makes the same ones in the same order."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.right, self.left = (rank + 1) % size, (rank - 1) % size
        # Zeros stay zeros under every operator, so no value ever becomes infinite or subnormal.
        self._small = torch.zeros(_BLOCK, dtype=torch.uint8)
        self._small_too = torch.zeros(_BLOCK, dtype=torch.uint8)
        self._large = torch.zeros(_BLOCK * size, dtype=torch.uint8)
        self._large_too = torch.zeros(_BLOCK * size, dtype=torch.uint8)
        self._random = random.Random(1)
        self._made = 0
        self.kinds: list[Callable[[int, torch.dtype], object]] = [
            lambda n, t: hcomm.all_reduce(self.small(n, t)),
            lambda n, t: hcomm.all_reduce(self.small(n, t), "max"),
            lambda n, t: hcomm.all_reduce_async(self.small(n, t)).wait(),
            lambda n, t: hcomm.broadcast(self.small(n, t), self.size - 1),
            lambda n, t: hcomm.reduce(self.small(n, t), 0),
            lambda n, t: hcomm.all_gather(self.small(n, t), self.large(n, t)),
            lambda n, t: hcomm.all_gather(self.small(n, t)),
            lambda n, t: hcomm.reduce_scatter(self.large(n, t), self.small(n, t)),
            lambda n, t: hcomm.all_to_all(self.large(n, t), self.large_too(n, t)),
            lambda n, t: hcomm.gather(self.small(n, t), 0),
            lambda n, t: hcomm.scatter(self.large(n, t) if self.rank == 0 else None, 0, out=self.small(n, t)),
            lambda n, t: hcomm.barrier(),
            self.exchange,
        ]

    def small(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A block of `count` elements."""
        return self._small.view(dtype)[:count]

    def large(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A block of `count` elements for each rank."""
        return self._large.view(dtype)[: count * self.size]

    def large_too(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Another one of these."""
        return self._large_too.view(dtype)[: count * self.size]

    def exchange(self, count: int, dtype: torch.dtype) -> None:
        """Send to the right, receive from the left."""
        sending = hcomm.send(self.small(count, dtype), self.right)
        hcomm.recv(self._small_too.view(dtype)[:count], self.left)
        sending.wait()

    def make(self, number: int, *, largest: bool = False) -> None:
        """Make `number` calls, of random sizes or of the largest."""
        for _ in range(number):
            kind = self.kinds[self._made % len(self.kinds)]
            self._made += 1
            dtype = self._random.choice(_DTYPES)
            most = _BLOCK // dtype.itemsize
            kind(most if largest else self._random.randint(1, most), dtype)


def memory() -> dict[str, int]:
    """Bytes of this process: resident, in all (`rss`) and of it shared with others (`rss_shared`), and mapped as
    shared, touched or not (`shared`)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    shared = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions = line.split()[:2]
        if permissions.endswith("s"):
            first, last = (int(word, 16) for word in span.split("-"))
            shared += last - first
    rss, touched = (int(status[name].split()[0]) * 1024 for name in ("VmRSS", "RssShmem"))
    return {"rss": rss, "rss_shared": touched, "shared": shared}


def run(calls: int, warm_up: int, meeting: Meeting) -> dict[str, Any]:
    """What one rank does: join, warm up, look, make the calls, look again, leave."""
    hcomm.init()
    meeting.barrier(patient=True)
    made = Calls(meeting.rank, meeting.size)
    made.make(warm_up // 2, largest=True)  # so that pages of windows and heap have been touched once
    made.make(warm_up - warm_up // 2)
    before = _settled()
    made.make(calls)
    after = _settled()
    hcomm.finalize()
    return {name: after[name] - before[name] for name in after}


def _settled() -> dict[str, int]:
    gc.collect()
    # Freed results of torch stay in the heap in ever different amounts (1-4 MB); what is kept is asked for here.
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    return memory()
