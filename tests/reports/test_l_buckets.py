"""Field reports L: buckets and compression. Sources are named in each test."""

from __future__ import annotations

from typing import Any

import pytest
from support.inside import attempt

#: Several chunks of 512 in every rank's part, and a ragged end.
COUNT = 10_007
#: Half a step of [-1, 1] in 255 steps: what one rounding may be off.
HALF_STEP = 2 / 510


# L1: bytedance/byteps#395, sands-lab/grace#14, NVIDIA/nccl#2199, NVIDIA/nccl#422


def quantised() -> dict[str, Any]:
    import numpy as np

    import hcomm

    r, size = hcomm.rank(), hcomm.world_size()

    def average(values: Any) -> Any:
        return hcomm.compression.all_reduce(np.array(values), "uint8")

    def error(parts: list[Any]) -> Any:
        return np.abs(average(parts[r]) - np.mean(np.stack(parts).astype(np.float64), axis=0))

    found: dict[str, Any] = {}
    found["zeros"] = sorted(set(average(np.zeros(COUNT, np.float32)).tolist()))
    found["constant"] = sorted(set(average(np.full(COUNT, 0.37, np.float32)).tolist()))
    found["one element"] = float(average(np.array([0.25 * (r + 1)], np.float32))[0])
    found["maximum"] = sorted(set(average(np.full(COUNT, np.finfo(np.float32).max, np.float32)).tolist()))
    found["empty"] = average(np.empty((0, 3), np.float32)).shape
    same = np.linspace(-1, 1, COUNT, dtype=np.float32)
    found["same"] = float(error([same] * size).max())
    parts = [np.random.default_rng(k).uniform(-1, 1, COUNT).astype(np.float32) for k in range(size)]
    errors = error(parts)
    found["different"] = [float(errors.max()), float(np.sqrt((errors**2).mean()))]
    parts[-1] *= np.float32(1e6)
    found["one is larger"] = float(error(parts).max() / 1e6)
    poisoned = same.copy()
    if r == 1:
        poisoned[[5, 6, 9000]] = [np.nan, np.inf, -np.inf]
    result = average(poisoned)
    found["not finite"] = [str(v) for v in result[[5, 6, 9000]]]
    finite = np.isfinite(result)
    found["beside"] = [int(finite.sum()), float(np.abs(result - same)[finite].max())]
    found["half"] = float(np.abs(average(same.astype(np.float16)).astype(np.float32) - same).max())
    found["refused"] = attempt(average, np.arange(10))
    found["bits"] = average(np.random.default_rng(r).normal(size=COUNT)).tobytes()
    return found


@pytest.mark.parametrize(("world", "transport"), [(4, "shm"), (4, "tcp"), (2, "shm"), (3, "shm")])
def test_l1_edge_cases_of_quantisation(job: Any, world: int, transport: str) -> None:
    """With two ranks there is one rounding, of each contribution; with more, the sum is rounded once more, to steps of
    its own range. Where contributions are alike so are their roundings, and the second falls on the first.
    """
    results = job(world, quantised, transport=transport)
    for found in results:
        assert found["zeros"] == [0.0]
        assert found["constant"] == pytest.approx([0.37], rel=2e-7)
        assert found["one element"] == pytest.approx({2: 0.375, 3: 0.5, 4: 0.625}[world], rel=2e-7)
        assert found["maximum"] == pytest.approx([3.4028235e38], rel=2e-7)
        assert found["empty"] == (0, 3)
        assert found["same"] <= HALF_STEP + 1e-6 < 0.0040
        greatest, typical = found["different"]
        assert greatest <= (1 if world == 2 else 2) * HALF_STEP + 1e-6
        assert typical <= HALF_STEP * 2 / 3
        assert found["one is larger"] <= HALF_STEP + 1e-6
        assert found["not finite"] == ["nan", "inf", "-inf"]
        assert found["beside"][0] == COUNT - 3
        assert found["beside"][1] <= 2 * 2 / 504
        assert (
            found["half"] <= HALF_STEP + 2**-11 + 2**-12
        )  # float16: rounded on the way in and on the way out
        assert "UnsupportedBuffer" in found["refused"].kinds
        assert found["bits"] == results[0]["bits"], "ranks have different results"


def bytes_sent() -> Any:
    """Bytes that this rank sent for a vector as it is, and in 8 bits."""
    import numpy as np

    import hcomm

    group = hcomm.default_communicator()
    sent = []
    for scheme in (None, "uint8"):
        x = np.random.default_rng(hcomm.rank()).normal(size=1 << 20).astype(np.float32)
        before = group.statistics().total
        hcomm.compression.all_reduce(x, scheme)
        hcomm.barrier()
        sent.append(group.statistics().total - before)
    return sent


@pytest.mark.parametrize("world", [2, 4])
def test_l1_bytes_on_the_wire_are_a_quarter(job: Any, world: int) -> None:
    """Of 2 (N-1)/N times 4 MB; the scales are 8 bytes for 512 values."""
    for plain, compressed in job(world, bytes_sent, transport="tcp"):
        assert plain == pytest.approx(2 * (world - 1) / world * (4 << 20), rel=0.01)
        assert 0.24 < compressed / plain < 0.26


# L2: pytorch/pytorch#48670, pytorch/pytorch#49418


def error_feedback() -> list[Any]:
    import numpy as np

    import hcomm

    sent, states = np.zeros(4), []
    for _ in range(4):
        gradient = np.array([4.0, 3.0, 2.0, 1.0], dtype=np.float32)
        sent += hcomm.topk_sparsify(gradient, ratio=0.25, name="weight")
        states.append((sent.tolist(), hcomm.compression.residual("weight").tolist()))
    other = hcomm.topk_sparsify(np.array([1.0, 2.0, 3.0, 9.0], dtype=np.float32), ratio=0.25, name="other")
    states.append(other.tolist())
    states.append(attempt(hcomm.topk_sparsify, np.ones(5, np.float32), name="weight"))
    hcomm.compression.forget_residual("weight")
    states.append(hcomm.topk_sparsify(np.array([4.0, 3, 2, 1, 0]), 0.2, name="weight").tolist())
    return states


def test_l2_what_is_not_sent_is_never_lost(job: Any) -> None:
    """At step t, all that was sent plus the residual is t times the gradient."""
    for *steps, other, refused, again in job(2, error_feedback):
        for t, (sent, residual) in enumerate(steps, 1):
            assert [a + b for a, b in zip(sent, residual, strict=True)] == [4 * t, 3 * t, 2 * t, t]
        assert steps[-1] == ([12, 6, 8, 0], [4, 6, 0, 4])
        assert other == [0, 0, 0, 9]
        assert "ValueError" in refused.kinds
        assert again == [4, 0, 0, 0, 0]
