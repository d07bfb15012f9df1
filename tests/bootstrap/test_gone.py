"""Ranks that end while others wait for them are named at once, in the meeting, in wire-up and in groups."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import Rank, found, last, run, world

from hcomm.bootstrap import vigil
from hcomm.bootstrap.auth import Credentials
from hcomm.bootstrap.dialing import Contact, Group
from hcomm.bootstrap.listener import _checked_topic
from hcomm.bootstrap.mapping import Census, Record
from hcomm.bootstrap.probing import checked, complaint
from hcomm.bootstrap.store import Patience, connect
from hcomm.bootstrap.store_server import StoreServer, listening_socket
from hcomm.errors import InitError, PeerLost, RendezvousError

KNOWN = Credentials(b"k" * 32, b"j" * 16, 1)


def record(rank: int, size: int) -> Record:
    place = {"hostname": "h", "boot_id": "b", "netns": 1, "pid": 100 + rank, "launcher": "the test"}
    reached = {"address": "127.0.0.1", "port": 1, "unix_name": f"u{rank}", "version": "1", "agree": {}}
    return Record(rank, size, None, None, None, **place, **reached)  # type: ignore[arg-type]


def test_a_rank_that_dies_after_its_record_is_named_while_others_are_still_missing() -> None:
    server = StoreServer(listening_socket("127.0.0.1", 0, time.monotonic() + 5), KNOWN, 3)
    try:
        deadline = time.monotonic() + 20
        patience = Patience(deadline, lambda line: None, 60)
        host, other = (connect("127.0.0.1", server.port, KNOWN, patience) for _ in range(2))
        census = Census(host, record(0, 3), deadline, lambda line: None)
        census.arrive()
        Census(other, record(1, 3), deadline, lambda line: None).arrive()
        other._sock.close()  # no goodbye: it was killed
        start = time.monotonic()
        census.collect({})
        assert time.monotonic() - start < 2
        with pytest.raises(
            InitError, match=r"rank 1 \(pid 101 on h\) has ended while the ranks were meeting"
        ):
            census.verdict()
        host.close()
    finally:
        server.close()


def contact(rank: int, unix_name: str, netns: int = 1) -> Contact:
    return Contact(rank, rank, "h", "b", 100 + rank, "127.0.0.1", 1, unix_name, netns)


@pytest.mark.parametrize(("parent", "kind"), [(0, InitError), (7, PeerLost)])
def test_a_closed_listener_is_found_in_the_kernels_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: int, kind: type[Exception]
) -> None:
    sockets = tmp_path / "unix"
    sockets.write_text("Num\n0: @name-of-0\n0: @name-of-1\n")
    monkeypatch.setattr(vigil, "_SOCKETS", str(sockets))
    contacts = [contact(0, "name-of-0"), contact(1, "name-of-1"), contact(2, "name-of-2"), contact(3, "x", 9)]
    home: Any = SimpleNamespace(rank=0, contacts=contacts)
    watch = vigil.Vigil(home, Group((0, 1, 2, 3), 1, parent, "auto", 1), list)
    assert watch.gone({1, 2, 3}) == {2}  # nothing is known about 3, in another network namespace
    watch.look({1, 2, 3})
    with pytest.raises(kind, match=r"rank 2 \(pid 102 on h\) has ended or left the job"):
        watch.look({1, 2, 3})
    sockets.write_text("Num\n")
    assert watch.gone({1, 2}) == set(), "a list without this process is no proof"


def test_what_the_parent_has_lost_counts() -> None:
    lost: list[int] = []
    home: Any = SimpleNamespace(rank=0, contacts=[contact(0, "a", 0), contact(1, "b", 0)])
    watch = vigil.Vigil(home, Group((0, 1), 1, 7, "auto", 1), lambda: lost)
    watch.look({1})
    watch.look({1})
    lost.append(1)
    watch.look({1})
    with pytest.raises(PeerLost) as error:
        watch.look({1})
    assert error.value.ranks == (1,)
    with pytest.raises(PeerLost) as told:
        checked(complaint(error.value))
    assert told.value.ranks == (1,), "also on the ranks that are told of it"


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_rank_that_is_killed_after_the_verdict(transport: str) -> None:
    cases = world(3, settings={"transport": transport, "init_timeout": 20})
    cases[2]["die"] = True
    started = time.monotonic()
    ranks = [Rank(case) for case in cases]
    try:
        for rank in ranks[:2]:
            said = last(rank.lines())
            assert said["kind"] == "InitError"
            assert "rank 2 (pid" in said["error"]
        assert time.monotonic() - started < 10
    finally:
        for rank in ranks:
            rank.kill()


def test_a_group_with_a_rank_that_left() -> None:
    group = {"ranks": {"0": [0, 1], "2": [2, 1]}, "delay": {"0": 0.5, "2": 0.5}}
    cases = world(3, groups=[group], settings={"init_timeout": 20})
    started = time.monotonic()
    lines = run(cases)
    assert time.monotonic() - started < 10
    for place in (0, 2):
        (error,) = found(lines[place], "group_error")
        assert "rank 1 (pid" in error
        assert "has ended or left the job" in error


def test_named_groups_made_by_threads_in_any_order() -> None:
    cases = world(2, groups=[{"threads": ["a", "b", "c"], "ranks": {"0": [0, 1], "1": [0, 1]}}])
    cases[1]["groups"][0] = {**cases[1]["groups"][0], "threads": ["c", "a", "b"]}
    uids = [dict(found(said, "named")) for said in run(cases)]
    assert uids[0] == uids[1]
    assert len(set(uids[0].values())) == 3


def test_a_group_timeout_bounds_its_making() -> None:
    cases = world(2, groups=[{"ranks": {"0": [0, 1]}, "timeout": 1.0}], hold=3)
    started, ended = (found(run(cases)[0], what) for what in ("wiring", "group_error"))
    assert started
    assert "ranks [1] did not come to the group [0, 1] in time" in ended[0]


def test_what_a_peer_said_before_its_topic_is_understandable() -> None:
    with pytest.raises(ValueError, match="gave up before it had said what it came for: no such thing"):
        _checked_topic(complaint(InitError("no such thing")))
    with pytest.raises(ValueError, match="belongs to this job, but its first message has no proper 'key'"):
        _checked_topic({})


def test_an_unreachable_meeting_point_may_have_been_left() -> None:
    patience = Patience(time.monotonic() + 0.2, lambda line: None, 60)
    with listening_socket("127.0.0.1", 0, time.monotonic() + 5) as sock:
        port = sock.getsockname()[1]
    with pytest.raises(RendezvousError, match=r"the job has completed its init.*is rank 1 started twice"):
        connect("127.0.0.1", port, KNOWN, patience, rank=1)
