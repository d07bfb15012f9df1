"""Schemes, the choice of `auto`, and what top-k selects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.inside import attempt

from hcomm.compression import schemes
from hcomm.compression.quantised import wire_bytes
from hcomm.compression.topk import is_sparse_cheaper, largest


def test_the_largest_entries() -> None:
    rng = np.random.default_rng(1)
    for count, k in ((1, 1), (4, 1), (1000, 10), (300_000, 1), (300_000, 3000), (300_000, 299_999)):
        values = rng.normal(size=count).astype(np.float32)
        chosen = largest(values, k)
        assert len(set(chosen.tolist())) == k
        assert np.sort(np.abs(values[chosen])).tolist() == np.sort(np.abs(values))[count - k :].tolist()


def test_the_largest_entries_where_a_sample_misleads() -> None:
    values = np.zeros(200_000, dtype=np.float32)
    values[::97] = 1e6  # exactly what is sampled
    values[1] = -2e6
    assert 1 in largest(values, 5000)
    alike = np.ones(200_000, dtype=np.float32)
    assert len(set(largest(alike, 2000).tolist())) == 2000
    values = np.arange(200_000, dtype=np.float32)
    values[[7, 100]] = [np.nan, -np.inf]
    assert set(largest(values, 3).tolist()) == {7, 100, 199_999}


def test_indices_pay_below_one_part_for_each_rank() -> None:
    """k entries of 8 bytes to N-1 ranks, or 2 (N-1)/N * 4 bytes of each element: equal at k = n/N."""
    assert is_sparse_cheaper(4, 1000, 249)
    assert not is_sparse_cheaper(4, 1000, 250)
    assert not is_sparse_cheaper(2, (1 << 32) + 2, 10)  # indices are 32 bits


def test_bytes_on_the_wire() -> None:
    """Two ranks exchange whole vectors, more ranks parts of multiples of 16: 2 floats for 512 values, in sixteens."""
    assert wire_bytes(2, 1024) == 2 * (16 + 1024)
    assert wire_bytes(4, 4096) == 4 * (16 + 1024)
    assert wire_bytes(3, 1) == 3 * 32  # parts of 16: 8 + 16 bytes, in sixteens


@pytest.mark.parametrize("scheme", ["zip", "topk:0", "topk:1.5", "topk:x", "UINT8", ""])
def test_unknown_schemes(scheme: str) -> None:
    with pytest.raises(ValueError, match="compression"):
        schemes.check_scheme(scheme)


def choices() -> dict[str, Any]:
    import hcomm
    from hcomm import costs
    from hcomm.planning.cost import Costs, LinkCost

    group = hcomm.default_communicator()
    found: dict[str, Any] = {}
    for name, beta in (("slow", 80e-9), ("fast", 0.01e-9)):
        links = {"loopback": LinkCost(50e-6, beta, 0.0)}
        group._costs = Costs().with_links(links, measured=("loopback",))
        choice = hcomm.compression.choose(group, 2_000_000)
        found[name] = [choice.scheme, str(choice), {str(k): v for k, v in choice.seconds.items()}]
    group._costs = Costs()
    costs.BUDGET = 60.0  # however busy this machine is
    measured = hcomm.compression.choose(group, 1000)
    found["measured"] = str(measured)
    x = np.ones(1000, dtype=np.float32)
    found["run"] = float(hcomm.compression.all_reduce(x, "auto", "sum")[0])
    found["operator"] = attempt(hcomm.compression.all_reduce, x, "uint8", "max")
    found["integers"] = attempt(hcomm.compression.all_reduce, np.ones(3, dtype=np.int32), "fp16")
    found["bf16"] = attempt(hcomm.compression.all_reduce, x, "bf16")
    strided = np.arange(20.0)[::2]
    found["strided"] = np.abs(hcomm.compression.all_reduce(strided, "uint8") - np.arange(20.0)[::2]).max()
    scheme = ["uint8", "fp16"][hcomm.rank()]
    found["mismatch"] = attempt(hcomm.compression.all_reduce, x, scheme)
    return found


def test_auto_follows_the_costs_and_says_so(job: Any) -> None:
    """8 MB at 80 ns/B: one rank sends 8 MB, 4 MB or 2 MB, so 0.64, 0.32 or 0.16 s; quantising takes milliseconds."""
    results = job(2, choices, transport="tcp")
    for found in results:
        assert found["slow"] == results[0]["slow"]
        scheme, text, seconds = found["slow"]
        assert scheme == "uint8"
        assert "chose uint8 for 8 MB" in text
        assert "measured: loopback" in text
        assert seconds["None"] == pytest.approx(0.64, rel=0.3)
        assert seconds["bf16"] == pytest.approx(0.32, rel=0.3)
        assert seconds["uint8"] == pytest.approx(0.16, rel=0.3)
        assert found["fast"][0] is None
        assert "chose none" in found["fast"][1]
        assert "memory" in found["measured"]
        assert found["run"] == 2.0
        assert "avg" in found["operator"].text
        assert "int32" in found["integers"].text
        assert "bfloat16" in found["bf16"].text
        assert found["strided"] <= 18 / 510 + 1e-6
        assert found["mismatch"].kind == "CollectiveMismatch"
