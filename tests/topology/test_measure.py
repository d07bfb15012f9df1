"""Which links are measured, and how results are kept."""

from __future__ import annotations

from pathlib import Path

from hcomm.topology.measure import KEEP_SECONDS, Pair, cache_folder, load, representatives, store


def test_pairs_that_are_measured() -> None:
    hosts = ((0, 1), (2, 3), (4, 5))
    assert representatives(hosts, hosts) == [
        [Pair(0, 1, "shm"), Pair(2, 3, "shm"), Pair(4, 5, "shm")],
        [Pair(0, 2, "tcp")],
        [Pair(2, 4, "tcp")],
    ]
    singles = tuple((r,) for r in range(6))
    assert representatives(hosts, singles)[0] == [
        Pair(0, 1, "loopback"),
        Pair(2, 3, "loopback"),
        Pair(4, 5, "loopback"),
    ]
    assert representatives(((0,),), ((0,),)) == []


def test_no_rank_is_in_two_pairs_of_a_phase() -> None:
    hosts = tuple((2 * h, 2 * h + 1) for h in range(9))
    for phase in representatives(hosts, hosts):
        ranks = [rank for pair in phase for rank in (pair.a, pair.b)]
        assert len(set(ranks)) == len(ranks)


def test_the_cache_follows_xdg() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/hcomm")
    assert cache_folder({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache/hcomm")
    assert cache_folder({"HOME": "/h"}) == Path("/h/.cache/hcomm")


def test_values_are_kept_for_a_while(tmp_path: Path) -> None:
    assert load("tcp a b", folder=tmp_path) == ()
    assert store("tcp a b", (1.5, 2.0), now=1000.0, folder=tmp_path)
    assert load("tcp a b", now=1001.0, folder=tmp_path) == (1.5, 2.0)
    assert load("tcp a c", now=1001.0, folder=tmp_path) == ()
    assert load("tcp a b", now=1001.0 + KEEP_SECONDS, folder=tmp_path) == ()
    assert load("tcp a b", now=999.0, folder=tmp_path) == ()  # from the future: the clock was set back


def test_damaged_files_are_no_values(tmp_path: Path) -> None:
    store("x", (1.0,), now=1.0, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    for text in ("", "{", "[]", '{"version": 1}', path.read_text().replace("[1.0]", '["a"]'), "\x00"):
        path.write_text(text)
        assert load("x", now=2.0, folder=tmp_path) == ()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    assert not store("x", (1.0,), folder=blocker / "below")
