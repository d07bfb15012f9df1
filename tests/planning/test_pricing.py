"""The choice by measured costs."""

from __future__ import annotations

import time

import pytest

from hcomm.planning.cost import Costs, LinkCost, Scene
from hcomm.planning.planner import Planner
from hcomm.planning.pricing import size_class
from hcomm.planning.registry import lookup

MB = 1 << 20
#: A network without latency, and one with nothing else.
WIDE = LinkCost(1e-9, 1e-9)
FAR = LinkCost(10e-3, 1e-13)


def scene(hosts: int, link: LinkCost, per_host: int = 1) -> Scene:
    costs = Costs(nic=link.beta, measured=("tcp",)).with_links({"tcp": link})
    return Scene.regular(hosts, per_host, costs)


def planner(place: Scene, rank: int = 0, **settings: str) -> Planner:
    p = Planner(rank, place.size, place.cliques, window_bytes=4 * MB, access=True, settings=settings)
    p.use_costs(place)
    return p


def chosen(place: Scene, nbytes: int, **more: str) -> str:
    return planner(place, **more).choose("all_reduce", "float32", "sum", nbytes, None).algorithm


def test_latency_and_bandwidth_decide() -> None:
    """Two hops of everything where latency is all there is; every byte once where there is none."""
    assert chosen(scene(8, FAR), 16 * MB) in ("star", "pairwise")
    assert chosen(scene(8, WIDE), MB) in ("ring", "halving_doubling", "pairwise", "torus2d", "grouped")
    # What the table takes for 1 MB is kept where it is as cheap as any.
    assert chosen(scene(4, WIDE), MB) == "halving_doubling"


def test_the_reason_is_told() -> None:
    why = planner(scene(4, FAR)).choose("all_reduce", "float32", "sum", MB, None).why
    assert "by measured costs" in why


def test_all_ranks_choose_alike() -> None:
    for link in (WIDE, FAR, LinkCost(25e-6, 0.85e-9)):
        for operation in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier"):
            for nbytes in (0, 8, 100_000, 100 * MB):
                place = scene(3, link, 2)
                found = [
                    planner(place, rank).choose(operation, "float32", "sum", nbytes, 1) for rank in range(6)
                ]
                assert len({(c.algorithm, c.options, c.hash, c.why) for c in found}) == 1


def test_what_users_ask_for_is_stronger() -> None:
    place = scene(8, FAR)
    assert chosen(place, MB, ALLREDUCE_ALGO="ring") == "ring"
    assert chosen(place, MB, ALLREDUCE_ALGO="^recursive_doubling") != "recursive_doubling"
    strict = planner(place, DETERMINISTIC="strict").choose("all_reduce", "float32", "sum", MB, None)
    assert lookup("all_reduce", strict.algorithm).reduces_once


def test_larger_worlds_and_uneven_blocks_are_left_to_the_table() -> None:
    large = planner(scene(17, FAR)).choose("all_reduce", "float32", "sum", MB, None)
    assert "measured" not in large.why
    uneven = planner(scene(4, FAR)).choose("all_to_all", "float32", None, 0, None)
    assert "measured" not in uneven.why


def test_sizes_of_a_class_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from hcomm.planning import pricing

    played = []
    real = pricing.simulate
    monkeypatch.setattr(pricing, "simulate", lambda *a, **k: played.append(a) or real(*a, **k))
    p = planner(scene(4, LinkCost(11e-6, 1e-9)))
    p.choose("all_reduce", "float32", "sum", MB, None)
    first = len(played)
    assert first > 5
    p.choose("all_reduce", "float32", "sum", MB + 4096, None)
    p.choose("all_reduce", "int32", "max", MB + 8192, None)
    assert len(played) == first
    p.choose("all_reduce", "float32", "sum", 2 * MB, None)
    assert len(played) > first


def test_classes_of_sizes() -> None:
    assert [size_class(n) for n in (0, 1, 64, 100, 1024, 1536, 2047)] == [0, 64, 80, 112, 1280, 1792, 1792]
    for nbytes in range(64, 5000, 7):
        assert 3 / 4 <= size_class(nbytes) / nbytes <= 5 / 4


def test_a_choice_among_sixteen_ranks_takes_less_than_a_measurement() -> None:
    """Some tens of ms at most, once for a class; a busy machine gets five times as long."""
    place = scene(8, LinkCost(25e-6, 0.85e-9), 2)
    planner(place).choose("all_reduce", "float32", "sum", 8, None)
    p = planner(scene(8, LinkCost(25e-6, 0.86e-9), 2))
    start = time.process_time()
    p.choose("all_reduce", "float32", "sum", 100 * MB, None)
    assert time.process_time() - start < 5 * 0.1
