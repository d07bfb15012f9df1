"""`hcomm check` as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command import TORCHRUN, run_command
from support.job import clean_env

import hcomm

CHECK = [sys.executable, "-m", "hcomm.cli.check"]
SECONDS = 100

#: What makes the interpreter give up being dumpable, as a set-user-id program or a hardened container would.
NOT_DUMPABLE = "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"


def run(
    *arguments: str, prefix: tuple[str, ...] = (), check: int | None = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    return run_command(*prefix, *CHECK, *arguments, code=check, timeout=SECONDS, **environment)


def document(*arguments: str, **options: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(run("--json", *arguments, **options).stdout)
    return parsed


def lines(text: str, topic: str) -> list[str]:
    return [line.removeprefix(f"{topic}: ") for line in text.splitlines() if line.startswith(f"{topic}: ")]


@pytest.fixture(scope="module")
def usual() -> str:
    return run("--ranks", "2").stdout


def test_topology_backend_and_bandwidth_are_lines_of_their_own(usual: str) -> None:
    assert any("CPUs may be used" in line for line in lines(usual, "Topology"))
    assert any("NUMA node" in line for line in lines(usual, "Topology"))
    assert lines(usual, "Backend")[0].startswith("recommended: shm, because all 2 ranks are on one host")
    assert lines(usual, "Backend")[1] == "in use: shm (as recommended)"
    assert lines(usual, "Backend")[2].startswith("ranks 0-1: shm")
    pair = lines(usual, "Bandwidth")[0]
    assert re.fullmatch(r"ranks 0-1 shm: [\d.]+ [MG]B/s, latency [\d.]+ [µm]s", pair), pair
    assert any("all_reduce of 25 MB float32, 2 ranks" in line for line in lines(usual, "Bandwidth"))


def test_limits_network_and_rdma_are_shown(usual: str) -> None:
    assert "memfd works" in lines(usual, "Shared memory")[0]
    assert "ptrace_scope" in lines(usual, "Peer access")[0]
    assert "libraries" in lines(usual, "RDMA")[0]
    assert len(lines(usual, "Result")) == 1


def test_json_has_every_figure() -> None:
    found = document("--ranks", "3")
    assert found["version"] == 1
    assert found["exit_code"] == 0
    assert found["backend"] == found["recommended"]["backend"] == "shm"
    assert [(pair["a"], pair["b"]) for pair in found["pairs"]] == [(0, 1), (0, 2), (1, 2)]
    for pair in found["pairs"]:
        assert pair["transport"] == "shm"
        assert pair["bandwidth"] > 1e6
        assert 0 < pair["latency"] < 1
    assert [reduction["nbytes"] for reduction in found["all_reduce"]] == [8, 1_000_000, 25_000_000]
    for reduction in found["all_reduce"]:
        assert reduction["algbw"] == pytest.approx(reduction["nbytes"] / reduction["seconds"])
        assert reduction["busbw"] == pytest.approx(reduction["algbw"] * 4 / 3)
    assert len(found["hosts"]) == 1
    assert found["hosts"][0]["cpus"]["allowed"] == sorted(os.sched_getaffinity(0))
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2]


def test_forced_tcp_ends_with_exit_code_1_cause_and_cure() -> None:
    text = run("--ranks", "2", check=1, HCOMM_TRANSPORT="tcp").stdout
    assert "in use: tcp (not the recommended one, see below)" in lines(text, "Backend")
    assert "ranks 0-1 are on one host but use TCP instead of shared memory" in lines(text, "Problem")
    assert lines(text, "Cause") == ["HCOMM_TRANSPORT=tcp forces TCP"]
    assert lines(text, "Cure") == ["unset HCOMM_TRANSPORT, or set it to auto"]
    assert lines(text, "Setting")[0].startswith("HCOMM_TRANSPORT=tcp (default auto)")


def test_settings_that_differ_are_listed_and_secrets_are_not_shown() -> None:
    found = document("--ranks", "2", HCOMM_TIMEOUT="20", HCOMM_JOB_SECRET="hush", HCOMM_TIMOUT="3")
    assert {entry["variable"]: entry["value"] for entry in found["settings"]} == {
        "HCOMM_TIMEOUT": "20.0",
        "HCOMM_JOB_SECRET": "(set)",
    }
    assert any("HCOMM_TIMOUT is not a setting" in note for note in found["notes"])


def test_every_setting_can_be_listed_without_measuring() -> None:
    text = run("--env", HCOMM_TIMEOUT="20", HCOMM_JOB_SECRET="hush").stdout
    assert any(line.startswith("HCOMM_TIMEOUT = 20.0") for line in text.splitlines())
    assert "hush" not in text


def test_a_single_visible_device_is_pointed_out() -> None:
    cpu = min(os.sched_getaffinity(0))
    text = run(HCOMM_VISIBLE_DEVICES=str(cpu)).stdout
    assert f"a single device is visible: cpu {cpu}; unset HCOMM_VISIBLE_DEVICES to use the others" in text
    assert any("2 ranks on 1 CPU" in line for line in lines(text, "Note"))


def test_devices_that_do_not_exist_are_refused() -> None:
    done = run(check=2, HCOMM_VISIBLE_DEVICES="4711")
    assert "no cpu 4711 here" in done.stderr


def test_a_setting_that_does_not_parse_is_named() -> None:
    done = run(check=2, HCOMM_TRANSPORT="pigeon")
    assert "HCOMM_TRANSPORT" in done.stderr


def test_a_measurement_that_takes_too_long_ends() -> None:
    done = run("--ranks", "8", "--timeout", "1", check=2)
    assert "took longer than 1 s" in done.stderr


def test_the_command_group_has_it_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hcomm.cli.main", "check", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "fast path" in done.stdout
    version = subprocess.run(
        [sys.executable, "-m", "hcomm.cli.main", "--version"], capture_output=True, text=True
    )
    assert hcomm.__version__ in version.stdout


def test_processes_of_a_launcher_measure_together(tmp_path: Path) -> None:
    torchrun = [*TORCHRUN, "3"]
    done = subprocess.run(
        [*torchrun, "-m", "hcomm.cli.check", "--json"],
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)  # only rank 0 spoke
    assert len(found["ranks"]) == 3
    assert len({rank["pid"] for rank in found["ranks"]}) == 3


def test_a_small_dev_shm_is_reported_and_does_not_matter(user_namespaces: None) -> None:
    script = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'
    text = run("--ranks", "2", prefix=("unshare", "-rm", "sh", "-c", script, "sh")).stdout
    assert "/dev/shm 1 MiB, 1 MiB free" in lines(text, "Shared memory")[0]
    assert "in use: shm (as recommended)" in lines(text, "Backend")


def test_refused_reads_of_memory_are_a_problem(tmp_path: Path) -> None:
    setpriv = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    if shutil.which("setpriv") is None or subprocess.run([*setpriv, "true"], capture_output=True).returncode:
        pytest.skip("this user may not drop capabilities with setpriv")
    (tmp_path / "sitecustomize.py").write_text(NOT_DUMPABLE)
    text = run("--ranks", "2", prefix=setpriv, check=1, PYTHONPATH=str(tmp_path)).stdout
    assert any("cannot read each other's memory" in line for line in lines(text, "Problem"))
    assert any("Operation not permitted" in line and "dumpable" in line for line in lines(text, "Cause"))
    assert any("SYS_PTRACE" in line for line in lines(text, "Cure"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--json", "--env"), "--json and --env exclude each other"),
        (("--ranks", "2", "--env"), "--ranks and --env exclude each other"),
    ],
)
def test_options_that_contradict_each_other(options: tuple[str, ...], words: str) -> None:
    done = run(*options, check=2)
    assert words in done.stderr
    assert not done.stdout


def test_the_number_of_ranks_belongs_to_the_job() -> None:
    job = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = run("--ranks", "2", check=2, **job)
    assert "RANK/WORLD_SIZE has started 3 ranks" in " ".join(done.stderr.replace("│", " ").split())
