"""Field reports C: reduction arithmetic. Sources are named in each test."""

from __future__ import annotations

from typing import Any

import pytest
from support.inside import attempt

TRANSPORTS = ("shm", "tcp")


# C1: pytorch/pytorch#162338, meta-pytorch/torchcomms#287, pytorch/pytorch#152594


def averages() -> list[Any]:
    import numpy as np

    import hcomm

    r, size = hcomm.rank(), hcomm.world_size()
    wrong = []
    for dtype in (np.float32, np.float64, np.int32):
        for count in (1, 2, 3, 7, 1000):
            x = np.full(count, r + 1, dtype=dtype)
            results = {
                "all_reduce": hcomm.all_reduce(x.copy(), op="avg"),
                "reduce": hcomm.reduce(x.copy(), dst=1, op="avg"),
                "reduce_scatter": hcomm.reduce_scatter(np.tile(x, size), op="avg"),
            }
            if r != 1:
                del results["reduce"]
            wrong += [(what, count, str(dtype)) for what, y in results.items() if not (y == 2).all()]
    scalar = np.array(r + 1.0)
    if float(hcomm.all_reduce(scalar, op="avg")) != 2.0:
        wrong.append("0-dim")
    return wrong


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_c1_averages_of_one_two_three(job: Any, transport: str) -> None:
    assert job(3, averages, transport=transport) == [[]] * 3


def integer_average() -> Any:
    import numpy as np

    import hcomm

    r = hcomm.rank()
    x = np.array([[1, -1, 3], [2, -2, 4]][r], dtype=np.int32)
    share = hcomm.reduce_scatter(np.concatenate([x, x]), op="avg").tolist()
    return hcomm.all_reduce(x, op="avg").tolist(), share


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_c1_integer_averages_truncate_toward_zero(job: Any, transport: str) -> None:
    """3/2, -3/2, 7/2."""
    assert job(2, integer_average, transport=transport) == [([1, -1, 3], [1, -1, 3])] * 2


# C2: ml-explore/mlx#4072


def not_a_number() -> list[Any]:
    import torch

    import hcomm

    r, nan, wrong = hcomm.rank(), float("nan"), []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for count in (1, 7, 8, 1000):
            for holder in range(4):
                for op in ("min", "max"):
                    value = nan if r == holder else [1.0, 2.0, 3.0, 4.0][r]
                    x = hcomm.all_reduce(torch.full((count,), value, dtype=dtype), op=op)
                    if not bool(x.isnan().all()):
                        wrong.append((str(dtype), count, holder, op, x[:3].tolist()))
        for op, expected in (("min", -float("inf")), ("max", float("inf"))):
            values = [1.0, float("inf"), -float("inf"), 4.0]
            x = hcomm.all_reduce(torch.full((9,), values[r], dtype=dtype), op=op)
            if x.tolist() != [expected] * 9:
                wrong.append((str(dtype), op, x.tolist()))
            zero = hcomm.all_reduce(torch.full((9,), -0.0 if r % 2 else 0.0, dtype=dtype), op=op)
            if zero.tolist() != [0.0] * 9:
                wrong.append((str(dtype), "zeros", op, zero.tolist()))
    return wrong


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_c2_nan_wins_wherever_it_is(job: Any, transport: str) -> None:
    assert job(4, not_a_number, transport=transport) == [[]] * 4


# C4: pytorch/pytorch#41362, meta-pytorch/torchcomms#2082


def operators() -> dict[str, Any]:
    import numpy as np

    import hcomm

    r = hcomm.rank()

    def x(dtype: str = "int32") -> Any:
        return np.array([[7, 5, 12][r]], dtype=dtype)

    found: dict[str, Any] = {
        op: int(hcomm.all_reduce(x(), op=op)[0]) for op in ("band", "bor", "bxor", "sum")
    }
    for dtype in ("float32", "float64", "float16", "complex64"):
        for op in ("band", "bor", "bxor"):
            found[f"{op} {dtype}"] = attempt(hcomm.all_reduce, x(dtype), op=op)
    for op in ("min", "max"):
        found[f"{op} complex64"] = attempt(hcomm.all_reduce, x("complex64"), op=op)
    for op in ("premul_sum", "median", "", "SUMM"):
        found[f"unknown {op}"] = attempt(hcomm.all_reduce, x(), op=op)
    found["unknown 99"] = attempt(hcomm.all_reduce, x(), op=99)
    found["after"] = int(hcomm.all_reduce(x())[0])
    return found


def test_c4_no_operator_becomes_another(job: Any) -> None:
    for found in job(3, operators):
        assert [found.pop(op) for op in ("band", "bor", "bxor", "sum", "after")] == [4, 15, 14, 24, 24]
        for what, failure in found.items():
            assert failure is not None, what
            assert {"ValueError", "TypeError"} & set(failure.kinds), (what, failure)


# Spares: pytorch/pytorch#45879, pytorch/pytorch#179633


def complex_numbers() -> dict[str, Any]:
    import torch

    import hcomm

    found: dict[str, Any] = {}
    for dtype in (torch.complex64, torch.complex128):
        x = torch.full((5,), [1 + 2j, 3 - 1j][hcomm.rank()], dtype=dtype)
        for op in ("sum", "prod", "avg"):
            found[f"{op} {dtype}"] = hcomm.all_reduce(x.clone(), op=op).tolist()
        found[f"max {dtype}"] = attempt(hcomm.all_reduce, x.clone(), op="max")
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_complex_numbers(job: Any, transport: str) -> None:
    """(1+2j) + (3-1j) = 4+1j; their product is 3 - j + 6j + 2 = 5+5j."""
    for found in job(2, complex_numbers, transport=transport):
        for dtype in ("torch.complex64", "torch.complex128"):
            assert found[f"sum {dtype}"] == [4 + 1j] * 5
            assert found[f"prod {dtype}"] == [5 + 5j] * 5
            assert found[f"avg {dtype}"] == [2 + 0.5j] * 5
            assert "ValueError" in found[f"max {dtype}"].kinds
