"""A slice of torch's own suite on hcomm, quick enough for every run; `make torch-suite` runs all of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.job import clean_env

HERE = Path(__file__).parent

SLICE = (
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_object_subgroup",
    "test_all_reduce_sum_async",
    "test_all_to_all_single_unequal_split",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_destroy_full_group",
    "test_get_future",
    "test_grads_same_across_ranks_with_no_sync",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("torch-suite")
    file = folder / "results.json"
    command = [sys.executable, str(HERE / "driver.py"), "hcomm", str(file), *SLICE]
    done = subprocess.run(command, env=clean_env(), cwd=folder, capture_output=True, text=True, timeout=110)
    assert file.exists(), done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize("name", SLICE)
def test_slice(results: dict[str, dict[str, Any]], name: str) -> None:
    assert results[name]["outcome"] == "passed", results[name]["text"]


def _comparison() -> Callable[..., Any]:
    sys.path.insert(0, str(HERE))
    try:
        import compare
    finally:
        sys.path.remove(str(HERE))
    return compare


def test_the_comparison_finds_what_is_missing() -> None:
    compare: Any = _comparison()
    good, bad = {"outcome": "passed", "seconds": 1.0}, {"outcome": "failed", "seconds": 1.0}
    exception = next(iter(compare.EXCEPTIONS))
    gloo = {"test_a": good, "test_b": good, "test_c": bad, exception: good}
    found = {"gloo": gloo, "hcomm": {"test_a": good, "test_b": bad, "test_c": bad, exception: bad}}
    assert compare.shortfall(found) == ["test_b"]
    found["hcomm"] = dict.fromkeys(gloo, good)
    assert compare.shortfall(found) == [f"{exception} (listed, but passes)"]
    page = compare.table(found)
    assert "| gloo | 3 | 1 | 0 | 4 |" in page
    assert "| test_b | passed | passed |  |" in page
