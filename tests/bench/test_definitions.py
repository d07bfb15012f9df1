"""What `hcomm bench` counts, writes and expects, against hand-made numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hcomm.bench import values
from hcomm.bench.definitions import DEFINITIONS, elements
from hcomm.bench.meeting import Meeting
from hcomm.bench.order import Order, steps
from hcomm.bench.results import Report, Row, Timing
from hcomm.errors import CollectiveTimeout, HcommError


def test_bus_factors_are_those_of_nccl_tests() -> None:
    at_four = {name: definition.factor(4) for name, definition in DEFINITIONS.items()}
    assert at_four["all_reduce"] == 1.5
    assert {
        at_four[name] for name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    } == {0.75}
    assert {at_four[name] for name in ("broadcast", "reduce", "send_recv", "ping_pong")} == {1.0}


def test_sizes_are_whole_elements_of_all_ranks() -> None:
    assert elements(DEFINITIONS["all_reduce"], 1001, 4, 3) == (250, 1000)
    # a total: 3 blocks of 83 float32 are 996 bytes, and count is that of one rank
    assert elements(DEFINITIONS["all_gather"], 1001, 4, 3) == (83, 996)
    assert elements(DEFINITIONS["reduce_scatter"], 8, 4, 3) == (0, 0)
    assert elements(DEFINITIONS["barrier"], 1001, 4, 3) == (0, 0)


def test_steps() -> None:
    assert steps(8, 100, 2) == (8, 16, 32, 64)
    assert steps(8, 30, 2, increment=10) == (8, 18, 28)
    assert steps(8, 8, 1) == (8,)
    with pytest.raises(ValueError, match="smallest size, 9 bytes, is above the largest, 8 bytes"):
        steps(9, 8, 2)
    with pytest.raises(ValueError, match="factor must be above 1, not 1"):
        steps(8, 16, 1)


def test_an_order_travels() -> None:
    order = Order(("all_reduce", "barrier"), ("float32", "bool"), ("sum", "avg"), (8, 16), 1, ("",), ("gloo",), "tcp",
                  "numpy", False, True, True, 0, 0.5, 3)  # fmt: skip
    assert Order.decode(order.encode()) == order
    # bool has no average, and a barrier neither type nor size
    points = [(p.operation, p.dtype, p.operator, p.nbytes) for p in order.points(2)]
    assert points[:4] == [
        ("all_reduce", "float32", "sum", 8), ("all_reduce", "float32", "sum", 16),
        ("all_reduce", "float32", "avg", 8), ("all_reduce", "float32", "avg", 16),
    ]  # fmt: skip
    assert points[4:] == [
        ("all_reduce", "bool", "sum", 8),
        ("all_reduce", "bool", "sum", 16),
        ("barrier", "none", "none", 0),
    ]
    assert [str(line) for line in order.lines("all_reduce")] == ["hcomm", "gloo"]


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float32", "float16", "complex64"])
def test_expected_sums_and_products_are_those_of_plain_python(dtype: str) -> None:
    inputs = [values.tile(dtype, "sum", rank, 3, 2).tolist() for rank in range(3)]
    assert len({tuple(row) for row in inputs}) == 3, "every rank has its own values"
    assert values.reduced(dtype, "sum", 3, 2).tolist() == [
        sum(column) for column in zip(*inputs, strict=True)
    ]
    factors = [values.tile(dtype, "prod", rank, 3, 2).tolist() for rank in range(3)]
    expected = [a * b * c for a, b, c in zip(*factors, strict=True)]
    assert values.reduced(dtype, "prod", 3, 2).tolist() == expected
    assert len(set(expected)) > 2


def test_expected_averages_truncate_integers_and_round_floats_once() -> None:
    inputs = [values.tile("int32", "avg", rank, 3, 0).tolist() for rank in range(3)]
    expected = [sum(column) // 3 for column in zip(*inputs, strict=True)]
    assert values.reduced("int32", "avg", 3, 0).tolist() == expected
    sums = [sum(column) for column in zip(*inputs, strict=True)]
    halves = values.reduced("float16", "avg", 3, 0)
    assert halves.tolist() == [float(np.float16(total / 3)) for total in sums]


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    # 1 + 2^-8 lies in the middle between 1.0 (0x3f80) and the next (0x3f81); 1 + 3·2^-8 between 0x3f81 and 0x3f82
    bits = values.encode(np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -2.0]), "bfloat16")
    assert bits.tolist() == [0x3F80, 0x3F80, 0x3F82, 0xC000]


def test_bool_operators() -> None:
    a, b = (values.tile("bool", "sum", rank, 2, 1) for rank in range(2))
    for operator, rule in (("sum", a | b), ("max", a | b), ("prod", a & b), ("min", a & b), ("bxor", a ^ b)):
        assert values.reduced("bool", operator, 2, 1).tolist() == rule.tolist(), operator
    assert a.any()
    assert not a.all()


def test_wrong_elements_are_counted_wherever_they_are() -> None:
    pattern = values.tile("int32", "sum", 1, 2, 3)
    view = np.zeros(2500, "int32")
    values.write(view, pattern, 700)
    assert values.wrong(view, pattern, 700) == 0
    assert view[0] == pattern[700]
    assert view[321] == pattern[0], "the tile has 1021 values"
    view[[0, 1021, 2499]] += 1
    assert values.wrong(view, pattern, 700) == 3
    assert values.wrong(view, values.tile("int32", "sum", 1, 2, 4), 700) > 1000, (
        "another turn has other values"
    )


def test_a_rank_that_does_not_come_to_the_barrier_is_named(tmp_path: Path) -> None:
    with pytest.raises(CollectiveTimeout, match=r"rank 1: rank 0 did not come .* within 0.05 s"):
        Meeting(tmp_path / "meeting", 1, 2, seconds=0.05).barrier()


def row(nbytes: int, library: str, seconds: float, wrong: int = 0) -> Row:
    timing = Timing(seconds, seconds, seconds, 5, wrong)
    return Row("all_gather", "float32", "none", -1, nbytes // 16, nbytes, library, "", timing, None)


def test_bandwidths_and_exit_codes() -> None:
    report = Report({"ranks": 4}, [row(1_000_000, "hcomm", 1e-3), row(3_000_000, "hcomm", 1e-3)])
    plain = report.as_dict()
    # S = 1e6 bytes in 1 ms: 1 GB/s, of which 3/4 go over each link
    assert plain["rows"][0]["out_of_place"]["algbw_GBps"] == pytest.approx(1.0)
    assert plain["rows"][0]["out_of_place"]["busbw_GBps"] == pytest.approx(0.75)
    assert plain["rows"][0]["in_place"] is None
    assert plain["avg_busbw_GBps"] == {"hcomm": pytest.approx(0.75 * 2)}
    assert report.exit_code == 0
    report.rows.append(row(8, "gloo", 1e-6, wrong=2))
    assert (report.exit_code, report.wrong) == (1, 2)
    assert Report({"ranks": 4}).exit_code == 2


class Axes:
    """Takes down what is drawn."""

    def __init__(self) -> None:
        self.lines: dict[str, tuple[Any, Any]] = {}
        self.settings: dict[str, Any] = {}

    def plot(self, x: Any, y: Any, style: str, *, label: str, **how: Any) -> None:
        self.lines[label] = (list(x), list(y))

    def set(self, **settings: Any) -> None:
        self.settings = settings

    def grid(self, *arguments: Any, **options: Any) -> None:
        pass

    legend = grid


def test_a_plot_has_a_line_for_each_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn = [Axes(), Axes()]

    class Figure:
        def __init__(self, **options: Any) -> None:
            pass

        def suptitle(self, text: str, **options: Any) -> None:
            assert "rewritten before every call" in text

        def subplots(self, *shape: int, squeeze: bool) -> list[list[Axes]]:
            assert shape == (1, 2)
            return [drawn]

        def savefig(self, path: Path, dpi: int) -> None:
            path.write_text("drawn")

    figures = ModuleType("matplotlib.figure")
    figures.Figure = Figure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib", ModuleType("matplotlib"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", figures)
    from hcomm.bench.plot import draw

    about = {"ranks": 4, "backend": "shm", "refilled": True, "machine": {"cpu": "x", "date": "today"}}
    rows = [row(1000, "hcomm", 1e-6), row(2000, "hcomm", 2e-6), row(1000, "gloo", 1e-5)]
    draw(tmp_path / "out.png", Report(about, rows))
    time, bandwidth = drawn
    assert time.lines == {"hcomm": ([1000, 2000], [1.0, 2.0]), "gloo": ([1000], [10.0])}
    assert bandwidth.lines["hcomm"] == ([1000, 2000], [pytest.approx(0.75), pytest.approx(0.75)])
    assert time.settings["xscale"] == time.settings["yscale"] == "log"
    with pytest.raises(HcommError, match="nothing to draw"):
        draw(tmp_path / "out.png", Report(about))
