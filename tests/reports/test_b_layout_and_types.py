"""Field reports B: layouts, types, shapes. Sources are named in each test."""

from __future__ import annotations

import functools
import operator
from typing import Any

import pytest
from support.inside import attempt

TRANSPORTS = ("shm", "tcp")


# B1: pytorch/pytorch#192920, pytorch/pytorch#24836, pytorch/pytorch#20421, pytorch/pytorch#79043


def strided() -> dict[str, Any]:
    import torch

    import hcomm

    r = hcomm.rank()

    def matrix() -> Any:
        return torch.arange(4).view(2, 2) + 10 * r

    found: dict[str, Any] = {}
    a = matrix()
    hcomm.broadcast(a[:, 0], src=0)
    found["broadcast"] = a.tolist()
    b = matrix()
    hcomm.reduce(b[:, 0], dst=0, op="sum")
    found["reduce"] = b.tolist()
    share = torch.full((6,), -1.0)
    whole = torch.linspace(0, 5, 6).repeat(2)[::2]  # 0 2 4 0 2 4
    hcomm.scatter(whole if r == 0 else None, out=share[::2], src=0)
    found["scatter"] = share.tolist()
    image = (torch.arange(120).view(2, 3, 4, 5) + 1000 * r).to(memory_format=torch.channels_last)
    strides = image.stride()
    hcomm.broadcast(image, src=0)
    found["channels_last"] = image.contiguous().flatten().tolist()
    found["strides kept"] = image.stride() == strides
    chunk = (torch.arange(24).view(4, 6) + 100 * r).t().chunk(2, dim=0)[r]  # not contiguous
    gathered = hcomm.all_gather(chunk)
    found["all_gather"] = gathered.tolist()
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_b1_strided_tensors(job: Any, transport: str) -> None:
    first, second = job(2, strided, transport=transport)
    assert second["broadcast"] == [[0, 11], [2, 13]]  # column 1 stays
    assert first["broadcast"] == [[0, 1], [2, 3]]
    assert first["reduce"] == [[10, 1], [14, 3]]
    assert second["reduce"] == [[10, 11], [12, 13]]  # not the root: untouched
    columns = [[6 * row + k for row in range(4)] for k in range(6)]
    halves = columns[:3] + [[v + 100 for v in column] for column in columns[3:]]
    for found in (first, second):
        assert found["scatter"] == [0, -1, 2, -1, 4, -1]
        assert found["channels_last"] == list(range(120))
        assert found["strides kept"]
        assert found["all_gather"] == halves


# B3: pytorch/pytorch#89197, pytorch/pytorch#90245, huggingface/transformers#22482


def booleans(library: str) -> dict[str, Any]:
    import numpy as np

    import hcomm

    r = hcomm.rank()

    def mine() -> Any:
        values = np.array([r == 0, r == 1, False, True])
        if library == "numpy":
            return values
        import torch

        return torch.from_numpy(values)

    found: dict[str, Any] = {}
    for op in ("sum", "max", "prod", "min"):
        x = hcomm.all_reduce(mine(), op=op)
        raw = np.asarray(x).view(np.uint8)
        found[op] = (x.tolist(), str(x.dtype).removeprefix("torch."), sorted(set(raw.tolist())))
    found["broadcast"] = hcomm.broadcast(mine(), src=1).tolist()
    found["all_gather"] = hcomm.all_gather(mine()).tolist()
    gathered = hcomm.gather(mine(), dst=2)
    found["gather"] = None if gathered is None else gathered.tolist()
    found["avg"] = attempt(hcomm.all_reduce, mine(), op="avg")
    found["after"] = hcomm.all_reduce(mine()).tolist()
    return found


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_b3_bool(job: Any, library: str) -> None:
    t, f = True, False
    rows = [[t, f, f, t], [f, t, f, t], [f, f, f, t]]
    for r, found in enumerate(job(3, booleans, args=(library,))):
        for op in ("sum", "max"):
            assert found[op] == ([t, t, f, t], "bool", [0, 1])
        for op in ("prod", "min"):
            assert found[op] == ([f, f, f, t], "bool", [0, 1])
        assert found["broadcast"] == rows[1]
        assert found["all_gather"] == functools.reduce(operator.iadd, rows, [])
        assert found["gather"] == (functools.reduce(operator.iadd, rows, []) if r == 2 else None)
        assert found["avg"] is not None
        assert "ValueError" in found["avg"].kinds
        assert "bool" in found["avg"].text
        assert found["after"] == [t, t, f, t]


# B4: pytorch/pytorch#111131, Lightning-AI/torchmetrics#1809, NVIDIA/nccl#1026

COUNTS = (1, 7, 1000, 100_000, 600_000)


def half_precision(name: str, big: float) -> list[Any]:
    import torch

    import hcomm

    r, size = hcomm.rank(), hcomm.world_size()
    dtype = getattr(torch, name)
    wrong = []
    rounded = float(torch.tensor(big + 3.0, dtype=torch.float32).to(dtype))
    for count in COUNTS:
        x = torch.full((count,), big if r == 0 else 1.0, dtype=dtype)
        total = hcomm.all_reduce(x.clone())
        ones = hcomm.all_reduce(torch.ones(count, dtype=dtype))
        average = hcomm.all_reduce(torch.full((count,), r + 1.0, dtype=dtype), op="avg")  # 2.5
        at_root = hcomm.reduce(x.clone(), dst=3)
        share = hcomm.reduce_scatter(x.repeat(size))
        for what, tensor, expected in (
            ("sum", total, rounded),
            ("ones", ones, 4.0),
            ("avg", average, 2.5),
            ("reduce", at_root if r == 3 else total, rounded),
            ("reduce_scatter", share, rounded),
        ):
            if not bool((tensor.float() == expected).all()):
                wrong.append((what, count, tensor.float().unique().tolist(), expected))
    return wrong


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("dtype", "big"), [("bfloat16", 256.0), ("float16", 2048.0)])
def test_b4_sixteen_bits_are_summed_in_float32_and_rounded_once(
    job: Any, dtype: str, big: float, transport: str
) -> None:
    """256 + 1 + 1 + 1 = 259, which bfloat16 rounds to 260 (float16: 2051 to 2052).

    Rounding at each hop would lose every 1.
    """
    assert job(4, half_precision, args=(dtype, big), transport=transport) == [[]] * 4


# B5: pytorch/pytorch#174844, NVIDIA/nccl#1394


def sizes_differ(shapes: list[tuple[int, ...]], dtypes: list[str]) -> Any:
    import numpy as np

    import hcomm

    r = hcomm.rank()
    hcomm.barrier()
    hcomm.all_reduce(np.ones(3))
    failure = attempt(hcomm.all_reduce, np.ones(shapes[r], dtype=dtypes[r]))
    again = attempt(hcomm.barrier)
    hcomm.finalize()
    hcomm.init()
    return failure, again, float(hcomm.all_reduce(np.array([r + 1.0]))[0])


B5 = {
    "scalar": ([(3, 4), ()], ["float64"] * 2, ("(3, 4)", "()")),
    "rows": ([(100, 2560), (200, 2560)], ["float64"] * 2, ("(100, 2560)", "(200, 2560)")),
    "tiny and huge": ([(1,), (64 << 20,)], ["uint8"] * 2, ("1 element", "67108864 elements")),
    "dtype": ([(5,), (5,)], ["float32", "int32"], ("float32", "int32")),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("case", B5)
def test_b5_sizes_differ_between_ranks(job: Any, case: str, transport: str) -> None:
    """Both raise, naming both shapes and ranks; the communicator says it is broken; a new init works."""
    shapes, dtypes, words = B5[case]
    for failure, again, total in job(2, sizes_differ, args=(shapes, dtypes), transport=transport):
        assert failure is not None
        assert failure.kind == "CollectiveMismatch"
        for word in (*words, "rank 0", "rank 1", "all_reduce"):
            assert word in failure.text, failure.text
        assert again is not None
        assert again.kind == "BrokenCommunicator"
        assert total == 3.0


def list_of_wrong_length() -> Any:
    import numpy as np

    import hcomm

    failure = attempt(hcomm.all_gather, np.ones(3), out=[np.zeros(3)])
    return failure, float(hcomm.all_reduce(np.ones(1))[0])


def test_b5_an_output_list_of_the_wrong_length(job: Any) -> None:
    for failure, total in job(2, list_of_wrong_length):
        assert failure is not None
        assert "ValueError" in failure.kinds
        assert total == 2.0


# B7: pytorch/pytorch#156627, pytorch/pytorch#23299, pytorch/pytorch#178844


def uneven() -> dict[str, Any]:
    import numpy as np

    import hcomm

    r, size = hcomm.rank(), hcomm.world_size()
    mine = np.full(r + 1, float(r))
    lists = [np.zeros(k + 1) for k in range(size)]
    hcomm.all_gather(mine, out=lists)
    flat = np.zeros(12)
    hcomm.all_gather(np.full(4, float(r)), out=flat)
    stacked = np.zeros((3, 4))
    hcomm.all_gather(np.full(4, float(r)), out=stacked)
    shares = hcomm.reduce_scatter(np.arange(6.0), sizes=[1, 2, 3])
    return {
        "lists": [x.tolist() for x in lists],
        "sizes": hcomm.all_gather(mine, sizes=[1, 2, 3]).tolist(),
        "flat": flat.tolist(),
        "stacked": stacked.tolist(),
        "shares": shares.tolist(),
    }


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_b7_uneven_and_stacked_outputs(job: Any, transport: str) -> None:
    for r, found in enumerate(job(3, uneven, transport=transport)):
        assert found["lists"] == [[0.0], [1.0, 1.0], [2.0, 2.0, 2.0]]
        assert found["sizes"] == [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
        assert found["flat"] == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
        assert found["stacked"] == [[float(k)] * 4 for k in range(3)]
        assert found["shares"] == [[0.0], [3.0, 6.0], [9.0, 12.0, 15.0]][r]
