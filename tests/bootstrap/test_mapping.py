"""Ranks that do not fit together are told so, all of them, at once."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from ranks import Rank, free_port, last, run, world

from hcomm.bootstrap.mapping import Record, missing, nodes, problems


def record(rank: int, size: int = 4, **changes: Any) -> Record:
    """A record like those that all the others send."""
    base = Record(
        rank=rank,
        world_size=size,
        local_rank=None,
        local_size=None,
        node=None,
        hostname="h",
        boot_id="b",
        netns=1,
        pid=100 + rank,
        launcher="test",
        address="127.0.0.1",
        port=1,
        unix_name="u",
        version="1",
        agree={"transport": "auto"},
    )
    return replace(base, **changes)


def locals_(local_ranks: list[int], size: int | None = None, **changes: Any) -> list[Record]:
    return [
        record(r, len(local_ranks), local_rank=local, local_size=size, **changes)
        for r, local in enumerate(local_ranks)
    ]


GOOD = {
    "plain": [record(r) for r in range(4)],
    "one node": locals_([0, 1, 2, 3], 4),
    "two made-up nodes on one host": locals_([0, 1, 0, 1], 2),
    "two agents on one host": [replace(r, node=r.rank // 2) for r in locals_([0, 1, 0, 1])],
    "dealt out to two hosts": [replace(r, hostname=f"h{r.rank % 2}") for r in locals_([0, 0, 1, 1], 2)],
}


@pytest.mark.parametrize("case", GOOD)
def test_what_fits(case: str) -> None:
    assert problems(GOOD[case]) == []


TWO_HOSTS = [record(r, 2, boot_id=f"b{r}", hostname=f"h{r}") for r in range(2)]

GOOD["a hidden namespace"] = [record(0), record(1, netns=0)]

BAD: dict[str, tuple[list[Record], list[str]]] = {
    "claimed twice": (
        [record(0), record(1), record(1, pid=7, hostname="x"), record(3)],
        ["rank 1 claimed by pid 101 on h and pid 7 on x"],
    ),
    "outside": ([record(r) for r in (0, 1, 2, 4)], ["rank 4 outside 0..3"]),
    "sizes": (
        [record(0), record(1), record(2), record(3, 3)],
        ["world size disagrees: rank 3 (pid 103 on h) says 3, the others 4"],
    ),
    "versions": ([record(0), record(1, version="2")], ["hcomm version disagrees"]),
    "settings": (
        [record(0), record(1), record(2, agree={"transport": "tcp"})],
        ["transport disagrees: rank 2 (pid 102 on h) has tcp, the others auto"],
    ),
    "local rank twice": (
        locals_([0, 1, 1, 3], 4),
        ["local rank 1 on h claimed by rank 1 (pid 101) and rank 2"],
    ),
    "local rank too big": (locals_([0, 1, 2, 3], 2), ["rank 2: local rank 2 outside 0..1"]),
    "made-up nodes, crossed": (
        locals_([0, 1, 1, 0], 2),
        ["do not follow the ranks: rank 2 has local rank 1"],
    ),
    "made-up nodes without a size": (locals_([0, 1, 0, 1]), ["set LOCAL_WORLD_SIZE"]),
    "loopback between hosts": (
        TWO_HOSTS,
        ["rank 1 (pid 101 on h1) advertises 127.0.0.1", "HCOMM_SOCKET_IFNAME"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit(case: str) -> None:
    records, words = BAD[case]
    text = "; ".join(problems(records))
    for word in words:
        assert word in text


def test_missing_and_nodes() -> None:
    assert missing([record(0), record(3)], 4) == [1, 2]
    split = nodes(locals_([0, 1, 0, 1], 2))
    assert [[r.rank for r in node] for node in split] == [[0, 1], [2, 3]]


CLAIMS: dict[str, tuple[list[tuple[int, int]], str]] = {
    "0,1,1,3": ([(0, 4), (1, 4), (1, 4), (3, 4)], "rank 1 claimed by pid"),
    "0,1,2,4": ([(0, 4), (1, 4), (2, 4), (4, 4)], "rank 4 outside 0..3"),
    "0,0,1": ([(0, 3), (0, 3), (1, 3)], "rank 0 claimed by pid"),
    "sizes": ([(0, 4), (1, 4), (2, 4), (3, 3)], "world size disagrees: rank 3"),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_every_rank_hears_of_a_mistake(case: str) -> None:
    """Field report A6."""
    claims, words = CLAIMS[case]
    port = free_port()
    lines = run([{"rank": rank, "size": size, "port": port} for rank, size in claims])
    arrived = max(said[0]["at"] for said in lines)
    for said in lines:
        assert last(said)["kind"] == "MappingError"
        assert words in last(said)["error"]
        assert last(said)["at"] < arrived + 5


def test_a_waiting_init_says_who_is_missing() -> None:
    cases = world(4, settings={"init_timeout": 3, "notice_every": 1})
    lines = run([cases[0], cases[2]])
    for said in lines:
        assert any("[1, 3]" in line.get("notice", "") for line in said), said
        assert last(said)["kind"] == "MappingError"
        assert "[1, 3]" in last(said)["error"]
        assert 2.5 < last(said)["at"] - said[0]["at"] < 5


def test_latecomers_are_waited_for() -> None:
    """Rank 1 comes first, rank 0 two seconds later (field report A3)."""
    cases = world(2, settings={"init_timeout": 10})
    early = Rank(cases[1])
    time.sleep(2)
    late = Rank(cases[0])
    for rank in (late, early):
        assert last(rank.lines()).get("end")


def test_versions_must_be_equal() -> None:
    cases = world(2)
    cases[1]["version"] = "2"
    for said in run(cases):
        assert "hcomm version disagrees" in last(said)["error"]
