"""`hcomm check` across hosts made of network namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.job import clean_env

_DEFAULT = Path(__file__).resolve().parents[2].parent / "shared" / "netlab" / "netlab"
NETLAB = Path(os.environ.get("HCOMM_NETLAB", _DEFAULT))
LAB = f"hk{os.getpid()}"


def netlab(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(NETLAB), words[0], "--name", LAB, *words[1:]],
        capture_output=True,
        text=True,
        timeout=110,
        env=clean_env(),
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"netlab cannot run here: {done.stderr.strip()}")
    return done


@pytest.fixture
def lab() -> Iterator[None]:
    """Two hosts, joined by 1 Gbit/s."""
    if not NETLAB.exists():
        pytest.skip(f"netlab is not at {NETLAB} (set HCOMM_NETLAB)")
    up = netlab("up", "--hosts", "2", "--rate", "1gbit")
    assert up.returncode == 0, up.stderr
    yield
    netlab("down")


def test_hosts_are_measured_together(lab: None) -> None:
    check = ["--", sys.executable, "-m", "hcomm.cli.check", "--json"]
    done = netlab("run", "--nproc", "2", "--launcher", "env", "--port", "29519", "--timeout", "90", *check)
    assert done.returncode == 0, done.stdout + done.stderr
    prefix = "[h0:0] "
    found = json.loads(
        "\n".join(line.removeprefix(prefix) for line in done.stdout.splitlines() if prefix in line)
    )
    assert found["backend"] == found["recommended"]["backend"] == "shm+tcp"
    assert [host["host"] for host in found["hosts"]] == [f"{LAB}-h0", f"{LAB}-h1"]
    transports = {(pair["a"], pair["b"]): pair["transport"] for pair in found["pairs"]}
    assert {pair for pair, transport in transports.items() if transport == "shm"} == {(0, 1), (2, 3)}
    across = next(pair for pair in found["pairs"] if (pair["a"], pair["b"]) == (0, 2))
    assert across["bandwidth"] < 200e6, "1 Gbit/s is 125 MB/s, plus what a burst gains"
    assert across["reason"], "the reason why it is not shared memory is kept"
