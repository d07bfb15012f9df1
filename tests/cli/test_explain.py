"""`hcomm explain`, `hcomm simulate` and `hcomm topology`, as their users see them, and `explain` inside a job."""

from __future__ import annotations

import json
import xml.etree.ElementTree as Tree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import hcomm
from hcomm import costs
from hcomm.cli import plot
from hcomm.cli.main import main
from hcomm.cli.quantities import parse_bytes
from hcomm.cli.validate import Row, as_markdown, summary
from hcomm.planning.cost import Costs


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("HCOMM_TOPOLOGY", "HCCL_NVLINK_MAP", "HCCL_GROUP_0", "HCOMM_ALLREDUCE_ALGO"):
        monkeypatch.delenv(name, raising=False)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


# explain


def test_the_choice_and_every_candidate() -> None:
    done = run("explain", "all_reduce", "25MB", "--ranks", "8", "--hosts", "2")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "all_reduce of 25 MB on 8 ranks on 2 hosts"
    assert lines[1].startswith("choice: ")
    chosen = lines[1].split()[1]
    rows = {line[2:].split()[0]: line for line in lines[3:]}
    assert rows[chosen].startswith("* ")
    assert rows[chosen].endswith("chosen")
    for name in ("ring", "star", "pairwise", "direct", "oneshot", "staged"):
        assert name in rows
    assert "× as slow" in rows["star"]
    assert "cannot run" in rows["oneshot"]


def test_settings_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCOMM_ALLREDUCE_ALGO", "star")
    assert (
        "choice: star (asked for by the setting ALLREDUCE_ALGO)"
        in run("explain", "all_reduce", "8", "--ranks", "4").stdout
    )


def test_ranks_that_do_not_divide() -> None:
    done = run("explain", "all_reduce", "8", "--ranks", "8", "--hosts", "3")
    assert done.exit_code == 2
    assert "8 ranks cannot be spread evenly over 3 hosts" in done.stderr


def test_bad_words() -> None:
    assert "expected a size such as" in run("explain", "all_reduce", "much").stderr
    assert "all_reduce" in run("explain", "all_sum", "8").stderr
    done = run("simulate", "all_reduce", "8", "--algorithm", "rong")
    assert done.exit_code == 2
    assert "unknown all_reduce algorithm 'rong'; known: direct" in done.stderr
    assert "an operation and a size are needed" in run("simulate").stderr
    assert "expected a rate such as" in run("simulate", "all_reduce", "8", "--between", "1").stderr


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("25MB", 25_000_000), ("64kB", 64_000), ("4MiB", 4 << 20), ("1.5GB", 1_500_000_000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


def test_costs_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(Costs(measured=("shm", "memory")).as_dict()))
    assert "measured (shm, memory)" in run("explain", "all_reduce", "1MB", "--costs", str(path)).stdout
    path.write_text("{}")
    done = run("explain", "all_reduce", "1MB", "--costs", str(path))
    assert done.exit_code == 1
    assert "not a table of costs" in done.stderr


# simulate


def test_a_table_of_all_algorithms() -> None:
    done = run("simulate", "all_reduce", "10MB", "--hosts", "4", "--ranks-per-host", "2")
    assert done.exit_code == 0, done.output
    assert "all_reduce of 10 MB on 4 hosts, 8 ranks" in done.stdout
    for name in ("ring", "star", "pairwise", "1.00×", "assumed, not measured"):
        assert name in done.stdout


def test_one_algorithm_only() -> None:
    done = run(
        "simulate", "all_reduce", "10MB", "--algorithm", "ring", "--between", "100Gbit/s", "--latency", "5"
    )
    assert "ring" in done.stdout
    assert "star" not in done.stdout


def test_figures_need_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    done = run("simulate", "all_reduce", "1kB", "--plot", str(tmp_path / "out.png"))
    assert done.exit_code == 2
    assert "--plot needs matplotlib, which is not installed: pip install matplotlib" in done.stderr


def test_what_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: dict[str, Any] = {}

    def draw(path: Path, operation: str, by_size: Any, by_world: Any) -> None:
        drawn.update(sizes={p.nbytes for p in by_size}, ranks={p.ranks for p in by_world}, path=path)

    monkeypatch.setattr(plot, "need_matplotlib", lambda: None)
    monkeypatch.setattr(plot, "draw", draw)
    words = (
        "simulate",
        "all_reduce",
        "100kB",
        "--hosts",
        "4",
        "--ranks-per-host",
        "2",
        "--plot",
        str(tmp_path / "a.png"),
    )
    assert run(*words).exit_code == 0
    assert drawn["sizes"] == {1000, 10_000, 100_000}
    assert drawn["ranks"] == {2, 4, 8}


# topology


def test_a_topology_is_drawn(tmp_path: Path) -> None:
    links = [{"between": [f"h{h}/gpu0", f"h{h}/gpu1"], "kind": "nvlink"} for h in range(2)]
    hosts = [
        {
            "name": f"h{h}",
            "nodes": [{"id": 0, "cpus": "0-3", "memory": 1 << 30}],
            "devices": [{"id": 0, "node": 0}, {"id": 1}],
            "nics": [{"name": "eth<0>", "speed": "10Gbit/s"}],
        }
        for h in range(2)
    ]
    path, svg = tmp_path / "t.json", tmp_path / "t.svg"
    path.write_text(json.dumps({"hcomm_topology": 1, "hosts": hosts, "links": links}))
    done = run("topology", str(path), "--svg", str(svg))
    assert done.exit_code == 0, done.output
    for words in (
        "NUMA node 0, socket 0: CPUs 0-3, 1 GiB",
        "gpu0 (rank 2)",
        "eth<0>: ethernet, 10 Gbit/s",
        "h0/gpu0 - h0/gpu1: nvlink, 20 GB/s, 1 µs",
        "ranks 2, 3",
        "direct inside ranks 0, 1",
        "ring between groups: ranks 0, 2",
    ):
        assert words in done.stdout, words
    root = Tree.parse(svg).getroot()
    names = [element.tag.partition("}")[2] for element in root]
    assert names.count("line") == 2
    assert names.count("rect") == 1 + 2 + 4  # paper, hosts, devices


def test_a_bad_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"hcomm_topology": 1, "hosts": 3}')
    done = run("topology", str(path))
    assert done.exit_code == 2
    assert f"hcomm topology: topology file {path}: hosts: expected list, found 3" in done.stderr
    monkeypatch.setenv("HCOMM_TOPOLOGY", str(path))
    assert run("topology").exit_code == 2


def test_this_machine_is_drawn() -> None:
    assert "Topology (probed)" in run("topology").stdout


# validate


def test_errors_are_summed_up() -> None:
    rows = [Row(2, 1, "shm", "all_reduce", "ring", 64, 2e-6, p) for p in (1e-6, 2.2e-6, 4e-6)]
    assert [round(row.error, 2) for row in rows] == [-0.5, 0.1, 1.0]
    assert summary(rows)[0] == "median error: 50% of 3 predictions"
    assert "| 2 | 1 | shm | all_reduce | ring | 64 B | 2 µs | 1 µs | -50% |" in as_markdown(rows)


def test_bad_ranks() -> None:
    assert "expected numbers of ranks above 1" in run("simulate", "--validate", "--ranks", "1").stderr


# Inside a job


def explain_inside() -> dict[str, Any]:
    # However busy this machine is: all of it shall be measured.
    costs.BUDGET = 60.0
    world = hcomm.default_communicator()
    assumed = world.explain("all_reduce", 1_000_000)
    with pytest.raises(ValueError, match="unknown operation 'all_sum'"):
        world.explain("all_sum", 8)
    with pytest.raises(ValueError, match="nbytes must not be negative"):
        world.explain("all_reduce", -1)
    first = world.measure_costs()
    kept = world.measure_costs()
    fresh = world.measure_costs(fresh=True)
    found = world.explain("all_reduce", 1_000_000)
    runs = world._planner.choose("all_reduce", "float32", "sum", 1_000_000, None)
    return {
        "assumed": assumed.basis,
        "kept": first.as_dict() == kept.as_dict(),
        "costs": fresh.as_dict(),
        "choice": (found.choice, runs.algorithm),
        "text": str(found),
        "hosts": world.hosts,
    }


@pytest.mark.parametrize(("ranks", "transport", "links"), [(2, "shm", "shm"), (3, "tcp", "loopback")])
def test_explain_inside_a_job(
    job: Callable[..., list[Any]], tmp_path: Path, ranks: int, transport: str, links: str
) -> None:
    told = job(ranks, explain_inside, transport=transport, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert len({json.dumps(t["costs"], sort_keys=True) for t in told}) == 1, "ranks disagree about the costs"
    for t in told:
        assert t["assumed"] == "assumed, nothing was measured"
        assert t["kept"]
        assert t["costs"]["measured"] == [links, "memory"]
        assert all(value > 0 for value in t["costs"]["links"][links])
        assert t["choice"][0] == t["choice"][1]
        assert f"measured ({links}, memory)" in t["text"]
        assert t["hosts"] == (tuple(range(ranks)),)
    assert list((tmp_path / "hcomm").glob("*.json"))
