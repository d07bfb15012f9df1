"""Latency and bandwidth of every pair of ranks, and of all_reduce: runs on all ranks, the result is rank 0's."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hcomm
from hcomm import _native
from hcomm.cli.results import Measurement, Pair, RankInfo, Reduction
from hcomm.communicator import Communicator
from hcomm.errors import HcommError
from hcomm.topology.probe import probe

Advance = Callable[[int, int], None]

#: Seconds that any single operation of the measurement may take.
OPERATION_SECONDS = 30.0
_LATENCY_ROUNDS = 200
#: Bytes of the messages that measure a pair's bandwidth, and of those that find out how many are affordable.
_MESSAGE = 4_000_000
_TRIAL = 100_000
_PAIR_SECONDS = 0.2
#: Sizes of the all_reduces; the first shows the latency.
_REDUCTIONS = (8, 1_000_000, 25_000_000)
_REDUCTION_SECONDS = 0.4
_TOKEN_BYTES = 16


@dataclass
class _Memory:
    """Bytes and the array that NumPy or torch, whichever is there, sees in them."""

    data: bytearray
    array: Any


def _memory(nbytes: int, dtype: str = "uint8") -> _Memory:
    data = bytearray(nbytes)
    if importlib.util.find_spec("numpy") is not None:
        import numpy as np

        return _Memory(data, np.frombuffer(data, dtype=dtype))
    if importlib.util.find_spec("torch") is not None:
        import torch

        return _Memory(data, torch.frombuffer(data, dtype=getattr(torch, dtype)))
    raise HcommError("the measurement needs NumPy or torch, and neither is installed: pip install numpy")


def measure(advance: Advance) -> Measurement | None:
    """Join the job that the environment describes, measure, leave it.

    Args:
        advance: told (parts done, parts in all) as it goes.

    Returns:
        The measurement on rank 0, None elsewhere.

    Raises:
        HcommError: the job could not be brought up, or an operation failed.
    """
    world = hcomm.init()
    try:
        return _Meter(world, advance).run()
    finally:
        hcomm.finalize()


class _Meter:
    """The measurement of one job, on one rank."""

    def __init__(self, world: Communicator, advance: Advance) -> None:
        self.world = world
        self.rank = world.rank
        self.size = world.size
        self.advance = advance
        self.small = _memory(8, "int64")
        self.message = _memory(_MESSAGE)

    def run(self) -> Measurement | None:
        """All measurements, in the same order on every rank."""
        names = [(a, b) for a in range(self.size) for b in range(a + 1, self.size)]
        parts = len(names) + len(_REDUCTIONS)
        places = self._exchange(self._place())
        access = self._exchange(self._access())
        mine = []
        for done, (a, b) in enumerate(names):
            self.advance(done, parts)
            self._barrier()
            mine.append(self._pair(a, b))
        reductions = []
        for done, nbytes in enumerate(_REDUCTIONS, start=len(names)):
            self.advance(done, parts)
            reductions.append(self._reduction(nbytes))
        self.advance(parts, parts)
        figures = self._exchange(mine)
        if self.rank != 0:
            return None
        pairs = []
        for index, (a, b) in enumerate(names):
            transport, reason = places[a]["links"][b]
            latency, bandwidth = figures[a][index]
            pairs.append(Pair(a, b, transport, reason, latency, bandwidth, _both(access[a][b], access[b][a])))
        return Measurement(
            backend=self.world.backend_name,
            ranks=tuple(RankInfo(**place["rank"]) for place in places),
            pairs=tuple(pairs),
            reductions=tuple(reductions),
            hosts=tuple(place["machine"] for place in places if place["machine"]),
        )

    def _place(self) -> dict[str, Any]:
        """Where this rank is, how it is joined to the others and, from the first rank of a host, what the host is."""
        first = hcomm.local_rank() == 0
        links = self.world.links
        return {
            "rank": {
                "rank": self.rank,
                "host": socket.gethostname(),
                "local_rank": hcomm.local_rank(),
                "pid": os.getpid(),
            },
            "links": [tuple(links[rank]) for rank in range(self.size)],
            "machine": probe(os.environ.get("HCOMM_VISIBLE_DEVICES", "")).as_dict() if first else None,
        }

    def _access(self) -> list[str]:
        """What reading each rank's memory (process_vm_readv) said: `ok`, an error, '' where memory is not shared."""
        token = bytearray(secrets.token_bytes(_TOKEN_BYTES))
        mine = {"pid": os.getpid(), "address": _native.address_of(token, False)[0], "token": token.hex()}
        links = self.world.links
        answers = []
        for rank, theirs in enumerate(self._exchange(mine)):
            if links[rank].transport != "shm":
                answers.append("")
                continue
            try:
                found = _native.cma_read(theirs["pid"], theirs["address"], _TOKEN_BYTES)
            except OSError as error:
                answers.append(error.strerror or str(error))
            else:
                answers.append(
                    "ok" if found.hex() == theirs["token"] else "another process has that pid here"
                )
        self._barrier()  # nobody lets go of its token before all have read
        return answers

    def _pair(self, a: int, b: int) -> tuple[float, float] | None:
        """Latency in s and bandwidth in B/s between two ranks; on rank `a` only."""
        if self.rank not in (a, b):
            return None
        peer, first = (b, True) if self.rank == a else (a, False)
        self._round_trips(peer, first, self.small.array, 20)
        latency = self._round_trips(peer, first, self.small.array, _LATENCY_ROUNDS) / 2

        trial = self.message.array[:_TRIAL]
        self._round_trips(peer, first, trial, 1)
        seconds = self._round_trips(peer, first, trial, 1) * _MESSAGE / _TRIAL
        rounds = max(1, min(20, int(_PAIR_SECONDS / seconds)))
        whole = self.message.array if seconds < 2 * _PAIR_SECONDS else trial
        # `a` says how many, both must agree
        self.small.data[:] = (rounds | (len(whole) << 16)).to_bytes(8, "little")
        self._one_way(peer, first)
        agreed = int.from_bytes(self.small.data, "little")
        rounds, whole = agreed & 0xFFFF, self.message.array[: agreed >> 16]
        bandwidth = len(whole) * 2 / self._round_trips(peer, first, whole, rounds)
        return (latency, bandwidth) if first else None

    def _round_trips(self, peer: int, first: bool, array: Any, count: int) -> float:
        """Median seconds of `count` round trips; every other rank waits at the next barrier."""
        world = self.world
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            if first:
                world.send(array, peer, timeout=OPERATION_SECONDS).wait()
                world.recv(array, peer, timeout=OPERATION_SECONDS)
            else:
                world.recv(array, peer, timeout=OPERATION_SECONDS)
                world.send(array, peer, timeout=OPERATION_SECONDS).wait()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)

    def _one_way(self, peer: int, first: bool) -> None:
        if first:
            self.world.send(self.small.array, peer, timeout=OPERATION_SECONDS).wait()
        else:
            self.world.recv(self.small.array, peer, timeout=OPERATION_SECONDS)

    def _reduction(self, nbytes: int) -> Reduction:
        """Median time of an all_reduce; rank 0 decides how many are affordable."""
        array = _memory(nbytes, "float32").array
        for _ in range(2):
            start = time.perf_counter()
            self.world.all_reduce(array, timeout=OPERATION_SECONDS)
            trial = time.perf_counter() - start
        rounds = max(3, min(500, int(_REDUCTION_SECONDS / max(trial, 1e-7))))
        self.small.data[:] = rounds.to_bytes(8, "little")
        self.world.broadcast(self.small.array, 0, timeout=OPERATION_SECONDS)
        seconds = []
        for _ in range(int.from_bytes(self.small.data, "little")):
            start = time.perf_counter()
            self.world.all_reduce(array, timeout=OPERATION_SECONDS)
            seconds.append(time.perf_counter() - start)
        median = statistics.median(seconds)
        algbw = nbytes / median
        return Reduction(nbytes, median, algbw, algbw * 2 * (self.size - 1) / self.size)

    def _barrier(self) -> None:
        self.world.barrier(timeout=OPERATION_SECONDS)

    def _exchange(self, value: Any) -> list[Any]:
        """Every rank's value (plain data) on every rank."""
        text = json.dumps(value).encode()
        sizes = _memory(8 * self.size, "int64").array
        self.small.data[:] = len(text).to_bytes(8, "little")
        self.world.all_gather(self.small.array, out=sizes, timeout=OPERATION_SECONDS)
        lengths = [int(size) for size in sizes]
        mine = _memory(len(text))
        mine.data[:] = text
        everything = _memory(sum(lengths))
        self.world.all_gather(mine.array, out=everything.array, sizes=lengths, timeout=OPERATION_SECONDS)
        values, offset = [], 0
        for length in lengths:
            values.append(json.loads(everything.data[offset : offset + length]))
            offset += length
        return values


def _both(forward: str, backward: str) -> str:
    """One answer for two directions of access: the first error, if any."""
    return backward if forward == "ok" else forward
