"""Field reports D: nothing at all, and more than 2^31. Sources are named in each test."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import pytest
from support.inside import attempt

TRANSPORTS = ("shm", "tcp")


# D1: pytorch/pytorch#85234, pytorch/pytorch#101380


def empty() -> dict[str, Any]:

    import hcomm

    r, size = hcomm.rank(), hcomm.world_size()
    found: dict[str, Any] = {}
    for shape in ((0,), (1, 0, 2)):
        x = np.empty(shape)
        found[f"all_reduce {shape}"] = tuple(hcomm.all_reduce(x, op="avg").shape) == shape
        found[f"broadcast {shape}"] = tuple(hcomm.broadcast(x, src=3).shape) == shape
        found[f"reduce {shape}"] = tuple(hcomm.reduce(x, dst=1).shape) == shape
        longer = (shape[0] * size, *shape[1:])
        found[f"all_gather {shape}"] = tuple(hcomm.all_gather(x).shape) == longer
        gathered = hcomm.gather(x, dst=2)
        found[f"gather {shape}"] = tuple(gathered.shape) == longer if r == 2 else gathered is None
        wide = np.empty((4, 0)) if len(shape) > 1 else x
        expected = (1, 0) if len(shape) > 1 else (0,)
        found[f"reduce_scatter {shape}"] = tuple(hcomm.reduce_scatter(wide).shape) == expected
        found[f"all_to_all {shape}"] = hcomm.all_to_all(wide).shape == wide.shape
        out = np.empty(expected)
        found[f"scatter {shape}"] = hcomm.scatter(wide if r == 0 else None, out=out, src=0) is out
        work = hcomm.send(x, dst=(r + 1) % size)
        found[f"recv {shape}"] = tuple(hcomm.recv(np.empty(shape), src=(r - 1) % size).shape) == shape
        work.wait()
    found["after"] = float(hcomm.all_reduce(np.array([r + 1.0]))[0]) == 10.0
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_d1_tensors_without_elements(job: Any, transport: str) -> None:
    for found in job(4, empty, transport=transport):
        assert all(found.values()), found


SPLITS = [[0, 2, 0], [1, 0, 3], [0, 0, 0]]


def splits() -> Any:
    import hcomm

    r = hcomm.rank()
    data = np.array([[1, 2], [10, 11, 12, 13], []][r], dtype=np.int64)
    return hcomm.all_to_all(data, input_sizes=SPLITS[r], output_sizes=[row[r] for row in SPLITS]).tolist()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_d1_all_to_all_with_empty_splits(job: Any, transport: str) -> None:
    assert job(3, splits, transport=transport) == [[10], [1, 2], [11, 12, 13]]


# Spare: pytorch/pytorch#117486


def tables_disagree() -> Any:
    """Rank 0 sends one element to rank 1, which expects three."""
    import hcomm

    r = hcomm.rank()
    sends, receives = ([[1, 1], [1, 1]][r], [[1, 1], [3, 1]][r])
    hcomm.barrier()
    # Rank 0 gets what it expects and may be through before rank 1 finds the difference: its next call fails.
    return attempt(hcomm.all_to_all, np.arange(2.0), input_sizes=sends, output_sizes=receives) or attempt(
        hcomm.barrier
    )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_to_all_tables_that_disagree(job: Any, transport: str) -> None:
    for failure in job(2, tables_disagree, transport=transport):
        assert failure is not None
        assert failure.kind == "CollectiveMismatch", failure
        assert failure.seconds < 3.0


# D2: mpi4py/mpi4py#575, pytorch/pytorch#91030, bytedance/byteps#302


def available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def sparse(nbytes: int) -> np.ndarray[Any, Any]:
    """Zeros that take no memory until they are written."""
    block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        block.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, dtype=np.uint8)


def marked(nbytes: int, marks: dict[int, int]) -> np.ndarray[Any, Any]:
    x = sparse(nbytes)
    for index, value in marks.items():
        x[index] = value
    return x


def huge(nbytes: int, marks: dict[int, int]) -> list[int]:
    """Broadcast, then a message, of more bytes than 32 bits count. One rank at a time holds real memory."""
    import hcomm

    r, found = hcomm.rank(), []
    x = marked(nbytes, marks) if r == 0 else sparse(nbytes)
    hcomm.broadcast(x, src=0)
    found += [int(x[i]) for i in marks] + [int(x[:: 1 << 20].max())]
    hcomm.barrier()
    del x
    x = marked(nbytes, marks) if r == 1 else sparse(nbytes)
    if r == 1:
        hcomm.send(x, dst=0).wait()
    else:
        hcomm.recv(x, src=1)
    return [*found, *(int(x[i]) for i in marks), int(x[:: 1 << 20].max())]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_d2_more_than_two_to_the_31(job: Any, transport: str) -> None:
    if available_bytes() < 4 << 30:
        pytest.skip("needs 3 GB of free memory")
    nbytes = 2**31 + 3
    marks = {2**31 - 1: 5, nbytes - 1: 7}
    assert job(2, huge, args=(nbytes, marks), transport=transport, timeout=110) == [[5, 7, 0] * 2] * 2


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_d2_more_than_two_to_the_32(job: Any, transport: str) -> None:
    if available_bytes() < 6 << 30:
        pytest.skip("needs 5 GB of free memory")
    nbytes = 2**32 + 5
    marks = {2**31 - 1: 5, 2**32 + 1: 6, nbytes - 1: 7}
    assert job(2, huge, args=(nbytes, marks), transport=transport, timeout=280) == [[5, 6, 7, 0] * 2] * 2


def huge_reduction(nbytes: int, marks: dict[int, int]) -> list[int]:
    import hcomm

    x = marked(nbytes, marks if hcomm.rank() == 1 else {})
    hcomm.all_reduce(x, op="max")
    return [int(x[i]) for i in marks]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_d2_a_reduction_of_more_than_two_to_the_31(job: Any, transport: str) -> None:
    if available_bytes() < 7 << 30:
        pytest.skip("needs 6 GB of free memory")
    nbytes = 2**31 + 3
    marks = {0: 3, 2**31 - 1: 5, nbytes - 1: 7}
    assert job(2, huge_reduction, args=(nbytes, marks), transport=transport, timeout=280) == [[3, 5, 7]] * 2
