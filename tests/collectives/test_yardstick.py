"""The arithmetic that the table measures with, against numbers worked out by hand and against torch."""

from __future__ import annotations

import numpy as np
import pytest
from support.arithmetic import DTYPES, difference, operand, operators, reduced, to_bfloat16
from support.buffers import Buffer


def test_bfloat16_rounds_to_nearest_even() -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32) * 1000
    assert np.array_equal(to_bfloat16(x), torch.from_numpy(x).to(torch.bfloat16).float().numpy())
    assert to_bfloat16(np.array([257.0, 258.0, 259.0], dtype=np.float32)).tolist() == [256.0, 258.0, 260.0]


def test_reductions_by_hand() -> None:
    def three(*values: float, dtype: str) -> list[np.ndarray]:
        return [np.array([v], dtype=dtype) for v in values]

    assert reduced(three(100, 100, 100, dtype="int8"), "int8", "sum").tolist() == [300 - 256]
    assert reduced(three(-7, -1, 0, dtype="int8"), "int8", "avg").tolist() == [-2]
    assert reduced(three(7, 5, 12, dtype="int32"), "int32", "bxor").tolist() == [14]
    assert reduced(three(200, 2, 1, dtype="uint8"), "uint8", "prod").tolist() == [400 - 256]
    assert reduced(three(256, 1, 2, dtype="float32"), "bfloat16", "sum").tolist() == [260.0]
    assert reduced(three(1 + 2j, 3 - 1j, 1, dtype="complex64"), "complex64", "prod").tolist() == [5 + 5j]
    assert reduced(three(1, 0, 1, dtype="bool"), "bool", "bxor").tolist() == [False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_differ_between_ranks_and_operators_give_different_results(dtype: str) -> None:
    """A swapped rank or operator cannot pass unnoticed."""
    parts = [operand(r, dtype, "sum", 1000) for r in range(5)]
    assert all(not np.array_equal(parts[0], p) for p in parts[1:])
    results = [
        reduced([operand(r, dtype, op, 1000) for r in range(5)], dtype, op)
        for op in operators(dtype)
        if op != "avg"
    ]
    distinct = {r.tobytes() for r in results}
    assert len(distinct) == {"bool": 3}.get(dtype, len(results))
    assert difference(results[0], results[0], dtype, None) == ""
    assert "wrong" in difference(parts[0], parts[1], dtype, None)


@pytest.mark.parametrize("layout", ["packed", "strided", "reversed"])
def test_guards_notice_a_write_beside_the_elements(layout: str) -> None:
    buffer = Buffer(np.arange(5.0), "float64", "numpy", layout)
    assert buffer.read().tolist() == [0, 1, 2, 3, 4]
    buffer.write(np.full(5, 9.0))
    assert not buffer.damaged()
    buffer.base[2] = 0
    assert buffer.damaged()
