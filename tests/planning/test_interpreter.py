"""Every algorithm on real numbers; expected values come from NumPy on the inputs, not from programs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hcomm.planning.registry import Algorithm, algorithms

sys.path.insert(0, str(Path(__file__).resolve().parent))

from interpreter import World, run

REDUCE = {"sum": np.sum, "avg": np.mean, "prod": np.prod, "min": np.min, "max": np.max}
SIZES = [1, 2, 3, 4, 5, 8]


def named(*operations: str) -> list:
    return [
        pytest.param(a, id=f"{a.operation}-{a.name}")
        for operation in operations
        for a in algorithms(operation)
    ]


def numbers(rank: int, count: int) -> np.ndarray:
    return np.random.default_rng(100 + rank).integers(1, 9, count).astype(float)


def programs(entry: Algorithm, size: int, root: int = 0) -> list[bytes]:
    return [entry.program(rank, size, root=root).encode() for rank in range(size)]


@pytest.mark.parametrize("entry", named("all_reduce"))
@pytest.mark.parametrize("size", SIZES)
def test_all_reduce(entry: Algorithm, size: int) -> None:
    for count in (0, 1, size - 1, 17, 1000):
        for op, reduced in REDUCE.items():
            inputs = [numbers(r, count) for r in range(size)]
            expected = reduced(np.stack(inputs), axis=0)
            run(programs(entry, size), World(inputs, inputs, count=count), op, seed=count)
            for rank in range(size):
                np.testing.assert_allclose(inputs[rank], expected, err_msg=f"rank {rank} {op} {count}")


@pytest.mark.parametrize("entry", named("broadcast"))
@pytest.mark.parametrize("size", SIZES)
def test_broadcast(entry: Algorithm, size: int) -> None:
    for root in range(size):
        for count in (0, 1, 100):
            vectors = [numbers(r, count) for r in range(size)]
            expected = vectors[root].copy()
            run(programs(entry, size, root), World(vectors, vectors, count=count), seed=root)
            for vector in vectors:
                np.testing.assert_array_equal(vector, expected)


@pytest.mark.parametrize("entry", named("reduce"))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("in_place", [False, True])
def test_reduce(entry: Algorithm, size: int, in_place: bool) -> None:
    for root in range(size):
        for count in (1, 500):
            inputs = [numbers(r, count) for r in range(size)]
            before = [a.copy() for a in inputs]
            outputs = [np.full(count if r == root else 0, np.nan) for r in range(size)]
            if in_place:
                outputs[root] = inputs[root]
            run(programs(entry, size, root), World(inputs, outputs, count=count), "avg", seed=root)
            np.testing.assert_allclose(outputs[root], np.mean(before, axis=0))
            for rank in range(size):
                if rank != root or not in_place:
                    np.testing.assert_array_equal(inputs[rank], before[rank])


@pytest.mark.parametrize("entry", named("all_gather", "gather"))
@pytest.mark.parametrize("size", SIZES)
def test_gather(entry: Algorithm, size: int) -> None:
    for lengths in ([20] * size, [(7 * r + 3) % 50 for r in range(size)]):
        table = np.concatenate([[0], np.cumsum(lengths)]).tolist()
        for root in range(size) if entry.operation == "gather" else (0,):
            inputs = [numbers(r, n) for r, n in enumerate(lengths)]
            gets = [r == root or entry.operation == "all_gather" for r in range(size)]
            outputs = [np.full(table[-1] * got, np.nan) for got in gets]
            run(programs(entry, size, root), World(inputs, outputs, bounds_out=[table] * size), seed=root)
            for rank in range(size):
                if gets[rank]:
                    np.testing.assert_array_equal(outputs[rank], np.concatenate(inputs))


@pytest.mark.parametrize("entry", named("reduce_scatter"))
@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter(entry: Algorithm, size: int) -> None:
    for lengths in ([40] * size, [(7 * r + 3) % 50 for r in range(size)], [0] * (size - 1) + [1]):
        table = np.concatenate([[0], np.cumsum(lengths)]).tolist()
        for op, reduced in REDUCE.items():
            inputs = [numbers(r, table[-1]) for r in range(size)]
            before = [a.copy() for a in inputs]
            outputs = [np.full(n, np.nan) for n in lengths]
            run(programs(entry, size), World(inputs, outputs, bounds_in=[table] * size), op, seed=size)
            expected = reduced(np.stack(before), axis=0)
            for rank in range(size):
                np.testing.assert_allclose(outputs[rank], expected[table[rank] : table[rank + 1]])
                np.testing.assert_array_equal(inputs[rank], before[rank])


@pytest.mark.parametrize("entry", named("scatter"))
@pytest.mark.parametrize("size", SIZES)
def test_scatter(entry: Algorithm, size: int) -> None:
    lengths = [(7 * r + 3) % 50 for r in range(size)]
    table = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    for root in range(size):
        inputs = [numbers(r, table[-1] if r == root else 0) for r in range(size)]
        outputs = [np.full(n, np.nan) for n in lengths]
        run(programs(entry, size, root), World(inputs, outputs, bounds_in=[table] * size), seed=root)
        np.testing.assert_array_equal(np.concatenate(outputs), inputs[root])


@pytest.mark.parametrize("entry", named("all_to_all"))
@pytest.mark.parametrize("size", SIZES)
def test_all_to_all(entry: Algorithm, size: int) -> None:
    lengths = [[7 if entry.even_only else (3 * q + 5 * r) % 11 for r in range(size)] for q in range(size)]
    ins = [np.concatenate([[0], np.cumsum(row)]).tolist() for row in lengths]
    outs = [np.concatenate([[0], np.cumsum([row[r] for row in lengths])]).tolist() for r in range(size)]
    inputs = [numbers(r, ins[r][-1]) for r in range(size)]
    outputs = [np.full(outs[r][-1], np.nan) for r in range(size)]
    run(programs(entry, size), World(inputs, outputs, bounds_in=ins, bounds_out=outs), seed=size)
    for rank in range(size):
        pieces = [inputs[q][ins[q][rank] : ins[q][rank + 1]] for q in range(size)]
        np.testing.assert_array_equal(outputs[rank], np.concatenate(pieces))


def test_three_ranks_by_hand() -> None:
    """The ring on three ranks of 48 elements, in numbers small enough to check by eye."""
    vectors = [
        np.repeat([1.0, 2.0, 3.0], 16),
        np.repeat([10.0, 20.0, 30.0], 16),
        np.repeat([100.0, 200.0, 300.0], 16),
    ]
    (ring,) = [a for a in algorithms("all_reduce") if a.name == "ring"]
    run(programs(ring, 3), World(vectors, vectors, count=48))
    for vector in vectors:
        assert vector.tolist() == [111.0] * 16 + [222.0] * 16 + [333.0] * 16
