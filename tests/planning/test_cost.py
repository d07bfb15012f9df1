"""Prices against the formulas of the literature, worked out by hand."""

from __future__ import annotations

import json
from math import ceil, log2

import pytest

from hcomm.planning.cost import Costs, LinkCost, Price, Scene, cheapest, price
from hcomm.planning.explain import explain
from hcomm.planning.registry import lookup
from hcomm.planning.select import Request
from hcomm.planning.simulate import candidates, programs_of, setting_of

ALPHA, BETA = 10e-6, 1e-9
#: Nothing costs anything but links between hosts, and these do not disturb each other.
PURE = Costs(
    links={"tcp": LinkCost(ALPHA, BETA), "shm": LinkCost(0.0, 0.0), "loopback": LinkCost(ALPHA, BETA)},
    call=0.0,
    step=0.0,
    meet=0.0,
    copy=0.0,
    reduce=0.0,
    fetch=0.0,
    reach=0.0,
    access=0.0,
    memory=0.0,
    nic=0.0,
)


def _price(operation: str, name: str, scene: Scene, nbytes: int) -> Price:
    return price(name, programs_of(lookup(operation, name), scene), scene, operation, nbytes)


@pytest.mark.parametrize("p", [2, 3, 4, 8, 16])
def test_the_formulas(p: int) -> None:
    scene = Scene.regular(p, 1, PURE)
    n = 64 * p * 100
    hops = ceil(log2(p))
    expected = {
        ("all_reduce", "ring"): 2 * (p - 1) * (ALPHA + n / p * BETA),
        ("all_reduce", "star"): 2 * (ALPHA + n * BETA),
        ("all_gather", "ring"): (p - 1) * (ALPHA + n / p * BETA),
        ("barrier", "dissemination"): hops * ALPHA,
    }
    if p & (p - 1) == 0:
        # otherwise the root itself sends to the last, at the same time as to others
        expected["broadcast", "binomial"] = hops * (ALPHA + n * BETA)
        expected["all_reduce", "recursive_doubling"] = hops * (ALPHA + n * BETA)
        expected["all_reduce", "halving_doubling"] = 2 * hops * ALPHA + 2 * (p - 1) / p * n * BETA
    for (operation, name), seconds in expected.items():
        found = _price(operation, name, scene, 0 if operation == "barrier" else n)
        assert found.seconds == pytest.approx(seconds, rel=1e-6), (operation, name)


@pytest.mark.parametrize("p", [4, 8])
def test_a_root_shares_its_network(p: int) -> None:
    """star: p-1 vectors go in one after the other, and p-1 out."""
    scene = Scene.regular(p, 1, PURE.with_links({}, nic=BETA))
    n = 6400
    expected = 2 * ((p - 1) * n * BETA + ALPHA)
    assert _price("all_reduce", "star", scene, n).seconds == pytest.approx(expected, rel=1e-6)


def test_latency_and_counts() -> None:
    found = _price("all_reduce", "ring", Scene.regular(4, 1, PURE), 64 * 400)
    assert found.latency == pytest.approx(6 * ALPHA)
    assert (found.messages, found.outside) == (6, 6 * 6400)


def test_memory_prices_of_shared_memory() -> None:
    """oneshot of two ranks: copy in, meet, read both: n·copy + meet + n(copy + reduce + fetch)."""
    costs = PURE.with_links({}, copy=1e-9, reduce=2e-9, fetch=3e-9, meet=1e-6)
    found = _price("all_reduce", "oneshot", Scene.regular(1, 2, costs), 1000)
    assert found.seconds == pytest.approx(1000e-9 + 1e-6 + 1000 * 6e-9)


def test_cheapest_ranks_by_price() -> None:
    scene = Scene.regular(8, 1, PURE)

    def ranking(nbytes: int) -> list[str]:
        found = [(c.name, programs_of(c.entry, scene)) for c in candidates("all_reduce", scene, nbytes)]
        return [p.algorithm for p in cheapest(found, scene, "all_reduce", nbytes) if not p.obstacle]

    assert set(ranking(64)[:2]) == {"pairwise", "star"}  # two hops; nothing is shared here
    assert ranking(64).index("ring") > ranking(64).index("recursive_doubling")
    assert ranking(64 << 20).index("ring") < ranking(64 << 20).index("recursive_doubling")
    assert ranking(64) == ranking(64)


def test_what_cannot_run_is_last() -> None:
    def impossible(rank: int) -> None:
        raise ValueError("a grid of 0 rows")

    scene = Scene.regular(2, 1, PURE)
    ring = programs_of(lookup("all_reduce", "ring"), scene)
    found = cheapest([("odd", impossible), ("ring", ring)], scene, "all_reduce", 64)  # type: ignore[list-item]
    assert [p.algorithm for p in found] == ["ring", "odd"]
    assert found[1].obstacle == "a grid of 0 rows"


# Costs as data


def test_costs_survive_json() -> None:
    costs = Costs(copy=1e-10, cores=4, measured=("shm",))
    assert Costs.from_dict(json.loads(json.dumps(costs.as_dict()))) == costs


@pytest.mark.parametrize(
    "change",
    [
        {"copy": -1},
        {"copy": "x"},
        {"copy": float("nan")},
        {"links": 3},
        {"links": {"tcp": [1]}},
        {"measured": 3},
    ],
)
def test_tables_that_are_none(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="table of costs"):
        Costs.from_dict({**Costs().as_dict(), **change})
    with pytest.raises(ValueError, match="not a table of costs"):
        Costs.from_dict({})


def test_unknown_links_are_named() -> None:
    with pytest.raises(ValueError, match="no cost for links of class 'rdma'; there are loopback, shm, tcp"):
        Costs().link("rdma")


def test_worlds_need_ranks() -> None:
    with pytest.raises(ValueError, match="0 hosts of 2 ranks"):
        Scene.regular(0, 2)


# Explanations


def test_an_explanation_says_why_each_lost() -> None:
    scene = Scene.regular(2, 4, PURE.with_links({}, nic=BETA))
    world = setting_of(scene, access=False)
    found = explain(world, scene, Request("all_reduce", "float32", "sum", 25_000_000, 0))
    assert found.choice in {p.algorithm for p in found.prices}
    assert found.verdicts[found.choice] == "chosen"
    assert found.verdicts["direct"].startswith("cannot run: it needs memory shared by all ranks")
    assert "not " in found.verdicts["star"]
    text = str(found)
    assert text.startswith("all_reduce of 25 MB on 8 ranks on 2 hosts\nchoice: ")
    assert "assumed, nothing was measured" in text
    for p in found.prices:
        assert p.algorithm in text


def test_what_rounds_twice_is_not_considered() -> None:
    scene = Scene.regular(4, 1, PURE)
    found = explain(setting_of(scene, False), scene, Request("all_reduce", "bfloat16", "sum", 1 << 20, 0))
    assert found.choice == "pairwise"
    assert found.verdicts["ring"] == "not considered: rounds bfloat16 more than once"


def test_latency_as_a_cause() -> None:
    scene = Scene.regular(16, 1, PURE)
    asked = explain(setting_of(scene, False), scene, Request("all_reduce", "float32", "sum", 64, 0), "star")
    assert asked.why == "asked for by the call"
    assert "30 messages per rank" in asked.verdicts["ring"]
    assert "of latency" in asked.verdicts["ring"]
