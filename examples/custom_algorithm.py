"""An algorithm of one's own: Swing, written from its paper, proved, and run for real.

    torchrun --nproc-per-node 4 examples/custom_algorithm.py

Swing (De Sensi, Bonato, Saam, Hoefler: "Swing: Short-cutting Rings for Higher Bandwidth Allreduce", NSDI 2024) is made
for tori. As recursive halving and doubling do, it ends after 2 lg p steps in which each rank sends 2(p-1)/p of the
vector. But the peer of step s is ρ(s) = 1 - 2 + 4 - … ± 2^s places away, even ranks swing to the right and odd ones to
the left, so that messages stay nearer than 2^s and do not share the links of a torus as much.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np

import hcomm


def peer(rank: int, step: int, size: int) -> int:
    """With whom `rank` exchanges in `step`: equation 2 of the paper."""
    distance = (1 - (-2) ** (step + 1)) // 3
    return (rank + distance if rank % 2 == 0 else rank - distance) % size


def below(rank: int, step: int, size: int) -> set[int]:
    """The ranks whose chunks `rank` is in charge of when `step` begins: its own, and those of its later peers."""
    last = size.bit_length() - 1
    return {rank}.union(*(below(peer(rank, s, size), s + 1, size) for s in range(step, last)))


def runs(chunks: set[int]) -> Iterator[tuple[int, int]]:
    """The chunks as few intervals, because neighbours travel in one message."""
    begins = sorted(c for c in chunks if c - 1 not in chunks)
    ends = sorted(c + 1 for c in chunks if c + 1 not in chunks)
    return zip(begins, ends, strict=True)


@hcomm.algorithm("all_reduce", name="swing", sizes=[1, 2, 4, 8, 16])
def swing(p: hcomm.Builder) -> None:
    """Reduce-scatter, then all-gather, between ranks ρ(s) apart: 2 lg p·α + 2(p-1)/p·nβ for powers of two."""
    if p.size & (p.size - 1):
        p.fail(f"this version of Swing is for 2, 4, 8, … ranks, not {p.size}")
    steps = range(p.size.bit_length() - 1)
    for s in steps:
        other = peer(p.rank, s, p.size)
        for begin, end in runs(below(other, s + 1, p.size)):
            p.send(other, p.chunks(begin, end))
        for begin, end in runs(below(p.rank, s + 1, p.size)):
            p.recv_reduce(other, p.chunks(begin, end))
    p.finish(p.chunk(p.rank))
    for s in reversed(steps):
        other = peer(p.rank, s, p.size)
        for begin, end in runs(below(p.rank, s + 1, p.size)):
            p.send(other, p.chunks(begin, end))
        for begin, end in runs(below(other, s + 1, p.size)):
            p.recv(other, p.chunks(begin, end))


def milliseconds(algorithm: str, vector: np.ndarray, repeats: int = 10) -> float:
    """The best time of one all_reduce of `vector`."""
    best = float("inf")
    for _ in range(repeats):
        hcomm.barrier()
        start = time.perf_counter()
        hcomm.all_reduce(vector, "max", algorithm=algorithm)
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def main() -> int:
    """Compare with the sum known beforehand, and with a ring."""
    hcomm.init()
    rank, size = hcomm.rank(), hcomm.world_size()
    count = 1_000_003
    vector = np.arange(count, dtype=np.float64) * (rank + 1)
    try:
        hcomm.all_reduce(vector, algorithm="swing")
    except hcomm.UnknownAlgorithm as error:
        if rank == 0:
            print(error)
        return 1
    right = np.array_equal(vector, np.arange(count) * (size * (size + 1) / 2))
    times = {name: milliseconds(name, vector) for name in ("swing", "ring")}
    if rank == 0:
        print(f"swing on {size} ranks over {hcomm.get_backend_name()}: {'right' if right else 'WRONG'}")
        print(
            f"{vector.nbytes / 1e6:.0f} MB: " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in times.items())
        )
    hcomm.finalize()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
