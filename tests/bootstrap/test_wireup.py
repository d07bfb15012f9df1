"""Wiring: what is shared is proven, the rest is TCP, and disagreements are told."""

from __future__ import annotations

from typing import Any

import pytest
from ranks import found, last, run, world

from hcomm.bootstrap.cliques import Agreement, agree, find_cliques
from hcomm.errors import TransportUnavailable


def wired(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The wirings of ranks that all must come up; what has to be alike is."""
    lines = run(cases)
    for said in lines:
        assert last(said).get("end"), lines
    wirings = [found(said, "wiring")[0] for said in lines]
    for name in ("uid", "ranks", "cliques", "access"):
        assert len({str(w[name]) for w in wirings}) == 1
    return wirings


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_one_host_shares_memory(size: int) -> None:
    for rank, wiring in enumerate(wired(world(size))):
        assert wiring["cliques"] == [list(range(size))]
        assert wiring["windows"] == [True] * size
        assert wiring["sizes"] == [4096 + size * (16 << 20)] * size
        assert wiring["coll"] == [False] * size
        assert wiring["reasons"] == {str(peer): "" for peer in range(size) if peer != rank}


def test_forced_tcp() -> None:
    for rank, wiring in enumerate(wired(world(3, settings={"transport": "tcp"}))):
        assert wiring["cliques"] == [[0], [1], [2]]
        assert wiring["windows"] == [peer == rank for peer in range(3)]
        assert wiring["coll"] == [peer != rank for peer in range(3)]
        assert all("transport=tcp" in reason for reason in wiring["reasons"].values())


@pytest.mark.parametrize("crippled", [{"no_unix": True}, {"no_memfd": True}])
def test_files_where_descriptors_cannot_be_passed(crippled: dict[str, bool]) -> None:
    """The fallback: a checked /dev/shm file, whose name is gone when all have it open."""
    import os

    before = set(os.listdir("/dev/shm"))
    for wiring in wired(world(3, settings={"buffer_bytes": 1 << 16}, **crippled)):
        assert wiring["cliques"] == [[0, 1, 2]]
        assert set(wiring["reasons"].values()) == {""}
    assert {name for name in os.listdir("/dev/shm") if name.startswith("hcomm-")} <= before


def test_a_shm_that_is_too_small_is_said_with_numbers() -> None:
    """Field report I1: no bus error later, but TCP now, with the bytes that are needed and free."""
    huge = {"buffer_bytes": 1 << 50}
    for wiring in wired(world(2, no_unix=True, settings={**huge, "transport": "auto"})):
        assert wiring["cliques"] == [[0], [1]]
        (reason,) = wiring["reasons"].values()
        assert "bytes free" in reason
        assert str(4096 + 2 * (1 << 50)) in reason


def test_forced_shm_that_is_impossible() -> None:
    lines = run(world(3, no_unix=True, no_shm=True, settings={"transport": "shm"}))
    for said in lines:
        assert last(said)["kind"] == "TransportUnavailable"
        assert "ranks 0 and 1 cannot share memory" in last(said)["error"]
        assert "/nonexistent" in last(said)["error"]


def test_one_rank_apart() -> None:
    """Rank 1 cannot be reached by descriptors or files: it alone uses TCP."""
    cases = world(3)
    cases[1].update(no_unix=True, no_memfd=True, no_shm=True)
    cases[2].update(no_unix=True, no_memfd=True, no_shm=True)
    wirings = wired(cases)
    assert wirings[0]["cliques"] == [[0], [1], [2]]
    assert wirings[0]["coll"] == [False, True, True]


def groups(size: int, *lists: dict[str, Any], **common: Any) -> list[list[dict[str, Any]]]:
    lines = run(world(size, groups=list(lists), **common))
    for said in lines:
        assert last(said).get("end"), lines
    return lines


def test_only_members_make_a_group() -> None:
    """Field report F1: {0, 3} and {1, 2} at the same time, then {0} alone, twice the same, another order."""
    pairs = {"0": [0, 3], "3": [0, 3], "1": [1, 2], "2": [1, 2]}
    lines = groups(
        4,
        {"ranks": pairs},
        {"ranks": {"0": [0]}},
        {"ranks": pairs},
        {"ranks": {str(r): [3, 1, 2, 0] for r in range(4)}, "transport": "tcp"},
    )
    made = [found(said, "group") for said in lines]
    assert [g["ranks"] for g in made[0]] == [[0, 3], [0], [0, 3], [3, 1, 2, 0]]
    assert [g["ranks"] for g in made[1]] == [[1, 2], [1, 2], [3, 1, 2, 0]]
    assert made[3][-1]["cliques"] == [[0], [1], [2], [3]]
    uids = {g["uid"] for said in made for g in said}
    assert len(uids) == 6  # two pairs twice, [0], and all


@pytest.mark.parametrize(
    "lists",
    [
        {"0": [0, 1], "1": [1, 0], "2": None},
        {"0": [0, 1], "1": [0, 1, 2], "2": [0, 1, 2]},
        {"0": [0, 1, 2], "1": [0, 1], "2": [0, 1, 2]},
        {"0": [0, 1, 2], "1": [2, 1], "2": [0, 1, 2]},
    ],
)
def test_lists_that_disagree(lists: dict[str, list[int] | None]) -> None:
    """Field report F1: all members hear of it long before the timeout, with both lists."""
    given = {rank: ranks for rank, ranks in lists.items() if ranks is not None}
    lines = groups(3, {"ranks": given, "timeout": 20}, hold=1.5)
    for rank in given:
        said = lines[int(rank)]
        (text,) = found(said, "group_error")
        assert "CollectiveMismatch" in found(said, "kind"), said
        both = [str(ranks) for ranks in given.values()]
        assert sum(ranks in text for ranks in set(both)) == 2, text
        failed = next(line["at"] for line in said if "group_error" in line)
        assert failed - next(line["at"] for line in said if "wiring" in line) < 5


def test_a_member_that_does_not_come() -> None:
    lines = groups(3, {"ranks": {"0": [0, 1, 2], "2": [0, 1, 2]}, "timeout": 1}, hold=2)
    for rank in (0, 2):
        (text,) = found(lines[rank], "group_error")
        assert "ranks [1] did not come" in text or "rank 0" in text, text
    everybody = {str(r): [0, 1, 2] for r in range(3)}
    again = groups(
        3,
        {"ranks": {"0": [0, 1, 2]}, "timeout": 0.2},
        {"ranks": everybody, "timeout": 10, "delay": {"1": 1.0, "2": 1.0}},
    )
    assert found(again[0], "group_error")
    for said in again:
        assert found(said, "group")[-1]["ranks"] == [0, 1, 2]


def test_settings_of_a_group_must_be_equal() -> None:
    lines = groups(
        2, {"ranks": {"0": [0, 1], "1": [0, 1]}, "transport": {"0": "tcp", "1": "auto"}, "timeout": 10}
    )
    for said in lines:
        (text,) = found(said, "group_error")
        assert "transport is" in text
        assert "'tcp'" in text
        assert "'auto'" in text


def test_a_member_that_has_gone_is_noticed() -> None:
    """Rank 0 ends while rank 1 wants a group with it: an error at once, not at the timeout."""
    lines = groups(2, {"ranks": {"1": [0, 1]}, "timeout": 20})
    (text,) = found(lines[1], "group_error")
    assert "rank 0" in text
    assert last(lines[1])["at"] - lines[1][0]["at"] < 10


def test_cliques() -> None:
    def both(*pairs: tuple[int, int], size: int) -> list[frozenset[int]]:
        return [frozenset(b for a, b in (*pairs, *((y, x) for x, y in pairs)) if a == r) for r in range(size)]

    assert find_cliques(3, both(size=3)) == ((0,), (1,), (2,))
    assert find_cliques(4, both((0, 2), (1, 3), size=4)) == ((0, 2), (1, 3))
    # 0-1 and 1-2 share, 0-2 do not: 1 joins 0, 2 is alone
    assert find_cliques(3, both((0, 1), (1, 2), size=3)) == ((0, 1), (2,))
    one_sided = [frozenset({1}), frozenset()]
    assert find_cliques(2, one_sided) == ((0,), (1,))


def test_the_agreement() -> None:
    rows = [
        {"shared": [1], "cma": [1], "reasons": {}},
        {"shared": [0], "cma": [], "reasons": {}},
    ]
    assert agree((0, 1), rows, "auto") == Agreement(((0, 1),), False)
    rows[1]["cma"] = [0]
    assert agree((0, 1), rows, "shm") == Agreement(((0, 1),), True)
    rows[0]["shared"], rows[1]["reasons"] = [], {"0": "because"}
    refused = agree((5, 9), rows, "shm")
    assert isinstance(refused, TransportUnavailable)
    assert "ranks 5 and 9 cannot share memory: because" in str(refused)
