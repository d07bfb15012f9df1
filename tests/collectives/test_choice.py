"""What a running job chooses by: groups of fast links that the user describes, and costs that it measures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LARGE = 100_000
#: A measurement takes at most this long; a machine that is busy with other tests gets five times as much (s).
SECONDS, SLACK = 0.1, 5


def right(count: int) -> bool:
    """Whether an all_reduce, an all_gather and a reduce_scatter of so many elements are."""
    import hcomm

    me, size = hcomm.rank(), hcomm.world_size()
    whole = np.arange(count * size, dtype=np.float32) % 17
    total = hcomm.all_reduce(whole + me)
    gathered = hcomm.all_gather(whole[:count] + me)
    mine = hcomm.reduce_scatter(whole + me)
    summed = whole * size + sum(range(size))
    blocks = np.concatenate([whole[:count] + r for r in range(size)])
    same = np.array_equal
    return (
        same(total, summed) and same(gathered, blocks) and same(mine, summed[me * count : (me + 1) * count])
    )


def in_groups() -> dict[str, Any]:
    import hcomm

    world = hcomm.default_communicator()
    found = {o: world.explain(o, 1 << 20).choice for o in ("all_reduce", "all_gather", "reduce_scatter")}
    small = world.explain("all_reduce", 8).choice
    some = world.new_group([3, 2, 1]) if world.rank else None
    sums = float(some.all_reduce(np.ones(LARGE))[0]) if some else 3.0
    why = world.explain("all_reduce", 1 << 20).why
    return {"right": right(3) and right(LARGE), "found": found, "small": small, "why": why, "sums": sums}


@pytest.mark.parametrize(
    ("transport", "hints"),
    [
        ("shm", {"HCCL_GROUP_0": "0,1", "HCCL_GROUP_1": "2,3"}),
        ("tcp", {"HCOMM_GROUP_0": "0,2,3", "HCOMM_GROUP_1": "1"}),
        ("tcp", {"HCCL_NVLINK_MAP": "0:3,1:2"}),
    ],
    ids=["two and two", "three and one", "links"],
)
def test_groups_of_fast_links_are_used(job: Any, transport: str, hints: dict[str, str]) -> None:
    for answer in job(4, in_groups, transport=transport, env=hints):
        assert answer["right"]
        assert answer["found"] == {
            "all_reduce": "grouped",
            "all_gather": "hierarchical",
            "reduce_scatter": "hierarchical",
        }
        assert answer["small"] != "grouped"
        assert "fast links inside the groups" in answer["why"]
        assert answer["sums"] == 3.0


def nothing() -> None:
    return


def test_descriptions_that_differ_or_are_wrong(outcomes: Any, tmp_path: Path) -> None:
    other = {0: {"HCCL_GROUP_0": "0,1", "HCCL_GROUP_1": "2"}, 1: {}, 2: {}}
    texts = [outcome.error.text for outcome in outcomes(3, nothing, rank_env=other)]
    assert any("groups of fast links" in text for text in texts), texts
    for outcome in outcomes(2, nothing, env={"HCCL_GROUP_0": "0,zero"}):
        assert outcome.error.kind == "TopologyError"
        assert "HCCL_GROUP_0='0,zero': expected ranks" in outcome.error.text
    broken = tmp_path / "broken.json"
    broken.write_text('{"hcomm_topology": 1, "hosts": [{"name": "a", "devices": [{"id": 0}]}]}')
    for outcome in outcomes(2, nothing, env={"HCOMM_TOPOLOGY": str(broken)}):
        assert outcome.error.kind == "TopologyError"
        assert "broken.json: 1 devices, but the job has 2 ranks" in outcome.error.text


def measuring() -> dict[str, Any]:
    """How long a measurement takes, and what is chosen by it."""
    import hcomm
    import hcomm.costs

    world = hcomm.default_communicator()
    budget, hcomm.costs.BUDGET = hcomm.costs.BUDGET, 60.0
    kept = world.measure_costs()  # what a busy machine had no time for
    hcomm.costs.BUDGET = budget
    group = world.new_group([1, 0])
    mixed = np.ones(LARGE, np.float32)  # blocking on one rank, asynchronous on the other
    hcomm.all_reduce(mixed) if hcomm.rank() else hcomm.all_reduce_async(mixed).wait()
    good = right(LARGE) and bool(np.all(mixed == 2))
    seconds = []
    for _ in range(3):
        hcomm.barrier()
        start = time.perf_counter()
        world.measure_costs(fresh=True)
        seconds.append(time.perf_counter() - start)
    hcomm.costs.BUDGET = 60.0
    world.measure_costs(fresh=True)
    chosen = [world.explain("all_reduce", n) for n in (8, 100_000, 10_000_000)]
    return {
        "measured": kept.measured,
        "group": group.costs.as_dict() == kept.as_dict(),
        "kept": kept.as_dict(),
        "costs": world.costs.as_dict(),
        "seconds": min(seconds),
        "chosen": [(e.choice, "measured costs" in e.why) for e in chosen],
        "right": good and right(3) and right(LARGE),
    }


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_costs_are_measured_when_the_job_is_made(job: Any, transport: str, tmp_path: Path) -> None:
    env = {"HCOMM_MEASURE_COSTS": "on", "XDG_CACHE_HOME": str(tmp_path)}
    answers = job(2, measuring, transport=transport, env=env)
    link = "loopback" if transport == "tcp" else "shm"
    for answer in answers:
        assert answer["group"]
        assert answer["measured"] == (link, "memory")
        assert answer["right"]
        assert all(by_costs for _, by_costs in answer["chosen"])
        assert answer["seconds"] <= SECONDS * SLACK
    # Bit for bit the same on all ranks, and so are the choices.
    assert answers[0]["costs"] == answers[1]["costs"]
    assert answers[0]["chosen"] == answers[1]["chosen"]
    files = {path.name: path.read_text() for path in (tmp_path / "hcomm").iterdir()}
    assert len(files) == 2  # the link, and the memory of the host
    again = job(2, kept_costs, transport=transport, env=env)
    assert [a["costs"] for a in again] == [answers[0]["costs"]] * 2
    assert {path.name: path.read_text() for path in (tmp_path / "hcomm").iterdir()} == files


def kept_costs() -> dict[str, Any]:
    import hcomm

    good = right(LARGE)
    return {"costs": hcomm.default_communicator().costs.as_dict(), "right": good}


def on_one_host() -> Any:
    import hcomm

    good = right(LARGE)
    return good, hcomm.default_communicator().costs.measured


def test_nothing_is_measured_inside_one_host_or_when_it_is_off(job: Any, tmp_path: Path) -> None:
    for mode in ("auto", "off"):
        env = {"HCOMM_MEASURE_COSTS": mode, "XDG_CACHE_HOME": str(tmp_path)}
        assert job(2, on_one_host, transport="tcp", env=env) == [(True, ())] * 2
    assert not list(tmp_path.iterdir())
