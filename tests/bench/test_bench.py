"""`hcomm bench` as a user runs it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.command import run_command

import hcomm
from hcomm.bench.definitions import DEFINITIONS
from hcomm.cli.bench import bench

BENCH = [sys.executable, "-m", "hcomm.bench"]
SECONDS = 100

#: Every result of rank 1 has one wrong element, wherever hcomm is asked for it.
SABOTAGE = """
from hcomm.bench.libraries import Hcomm
usual = Hcomm.call

def call(self, case, line):
    run = usual(self, case, line)
    def spoilt():
        run()
        if case.rank == 1:
            case.target_view[5] += 1
    return spoilt

Hcomm.call = call
"""


def run(
    *arguments: str, prefix: tuple[str, ...] = (), code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    return run_command(*prefix, *BENCH, *arguments, code=code, timeout=SECONDS, **environment)


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_every_operation_in_the_columns_of_nccl_tests(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    text = run("all", "--ranks", "3", "--arrays", "numpy", "-b", "4000", "-e", "4000", "-n", "3",
               "--json", str(file)).stdout  # fmt: skip
    found = json.loads(file.read_text())
    assert (found["version"], found["ranks"], found["wrong"], found["exit_code"]) == (1, 3, 0, 0)
    assert [entry["operation"] for entry in found["rows"]] == list(DEFINITIONS)
    for entry, columns in zip(found["rows"], rows_of(text), strict=True):
        name = entry["operation"]
        assert columns[:5] == [
            str(entry["nbytes"]), str(entry["count"]), entry["dtype"], entry["operator"], str(entry["root"])
        ], name  # fmt: skip
        assert len(columns) == 13, name
        for form, first in (("out_of_place", 5), ("in_place", 9)):
            timing = entry[form]
            if timing is None:
                assert columns[first : first + 4] == ["N/A"] * 4, name
                continue
            assert columns[first + 3] == "0", name
            assert timing["calls"] == 3
            factor = {"all_reduce": 4 / 3, "all_gather": 2 / 3, "reduce_scatter": 2 / 3, "all_to_all": 2 / 3,
                      "gather": 2 / 3, "scatter": 2 / 3}.get(name, 1.0)  # fmt: skip
            algbw = entry["nbytes"] / timing["time_us"] / 1e3
            assert timing["algbw_GBps"] == pytest.approx(algbw), name
            assert timing["busbw_GBps"] == pytest.approx(algbw * factor), name
    sizes = {entry["operation"]: (entry["count"], entry["nbytes"]) for entry in found["rows"]}
    assert sizes["all_reduce"] == (1000, 4000)
    assert sizes["all_gather"] == (333, 3996)
    for words in ("# machine:", "3 on host", "rewritten on every rank before every call", "numpy", "Linux",
                  "# Out of bounds values : 0 OK", "# Avg bus bandwidth"):  # fmt: skip
        assert words in text
    assert "HCOMM_JOB_ID" not in text


def test_lines_side_by_side_and_warm_caches(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    text = run("all_reduce", "-d", "bfloat16,int16", "-b", "8K", "-e", "8K", "-n", "3", "--peer", "gloo", "--warm",
               "--algorithm", "ring,star", "--transport", "tcp", "--json", str(file)).stdout  # fmt: skip
    found = json.loads(file.read_text())
    names = [(entry["dtype"], entry["library"], entry["algorithm"]) for entry in found["rows"]]
    lines = [("hcomm", "ring"), ("hcomm", "star"), ("gloo", "")]
    assert names == [(dtype, *line) for dtype in ("bfloat16", "int16") for line in lines]
    assert (found["backend"], found["refilled"], found["rounds"]) == ("tcp", False, 3)
    assert "gloo" in found["libraries"]
    *_, refused = found["rows"]
    assert refused["in_place"] is None
    assert "Invalid scalar type" in refused["note"], "gloo has no int16"
    assert all(entry["in_place"]["wrong"] == 0 for entry in found["rows"][:-1])
    assert "NOT rewritten" in text
    assert "hcomm:ring" in text
    assert text.count(" 1.00") >= 2, "the others' times are told as multiples of the first line's"


def test_a_wrong_result_is_counted_and_fails(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SABOTAGE)
    arguments = ("all_gather", "--arrays", "numpy", "-b", "1K", "-e", "1K", "-n", "2")
    text = run(*arguments, code=1, PYTHONPATH=str(tmp_path)).stdout
    assert rows_of(text)[0][8] == "2", "one in the first call, one in the last"
    assert "# Out of bounds values : 4 FAILED" in text
    assert "# WRONG: all_gather float32 none of 1024 bytes by hcomm: 4 elements" in text
    unchecked = run(*arguments, "--no-check", PYTHONPATH=str(tmp_path)).stdout
    assert rows_of(unchecked)[0][8] == "N/A"
    assert "not checked" in unchecked


def test_processes_of_a_launcher_measure_together() -> None:
    mpiexec = shutil.which("mpiexec.mpich")
    if mpiexec is None:
        pytest.skip("mpiexec.mpich is not installed")
    options = ("broadcast", "--arrays", "numpy", "-b", "64", "-e", "64", "-n", "2", "-r", "2")
    text = run(*options, prefix=(mpiexec, "-n", "3")).stdout
    assert text.count("# machine:") == 1, "only rank 0 speaks"
    assert "# ranks:     3 on host" in text
    assert rows_of(text)[0][4] == "2"


def test_zero_copy_says_whether_it_can() -> None:
    arguments = ("--arrays", "numpy", "-b", "8", "-e", "8", "-n", "2", "--zero-copy")
    if hasattr(hcomm, "empty"):
        assert "hcomm.empty (zero copy)" in run(*arguments).stdout
    else:
        assert "has no hcomm.empty" in run(*arguments, code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all_reduce,nothing",), "'nothing' is not known; known: all, all_reduce, broadcast"),
        (("-d", "float8"), "'float8' is not known; known: all, bool, int8"),
        (("-b", "1M", "-e", "1K"), "the smallest size, 1048576 bytes, is above the largest, 1024 bytes"),
        (("-b", "8X"), "expected a size such as 8, 64K or 25M"),
        (("--arrays", "numpy", "--root", "2", "--ranks", "2"), "--root 2: there are 2 ranks, 0 to 1"),
        (("--budget", "nan"), "expected a number, found nan"),
        (("--json", "/no/such/folder/out.json"), "there is no folder /no/such/folder"),
        (("--ranks", "257"), "257 is not in the range"),
        (("-b", "1", "-e", "3", "--arrays", "numpy"), "nothing to measure: no size from 1 to 1 bytes"),
        (("--algorithm", "bubble"), "unknown all_reduce algorithm 'bubble'; known:"),
    ],
)
def test_options_that_make_no_sense(arguments: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(bench, arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("missing", "arguments", "words"),
    [
        ("matplotlib", ("--plot", "out.png"), "--plot needs matplotlib, which is not installed"),
        ("numpy", (), "the measurement needs NumPy, which is not installed"),
    ],
)
def test_what_is_missing_is_said_before_anything_runs(
    missing: str, arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = importlib.util.find_spec
    absent: Any = lambda name, *rest: None if name == missing else usual(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    done = CliRunner().invoke(bench, arguments)
    assert done.exit_code == 2
    assert words in done.output
