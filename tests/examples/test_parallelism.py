"""The examples of pipeline and 3-D parallelism."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.command import TORCHRUN, run_command

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SECONDS = 110
#: A link that is slow enough for messages to take time, and no processor.
SLOW_LINK = (
    'ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 256k latency 400ms && exec "$@"'
)


def run(*command: str, **environment: str) -> str:
    return run_command(*command, timeout=SECONDS, **environment).stdout


def test_a_pipeline_hides_its_messages(user_namespaces: None) -> None:
    if shutil.which("tc") is None or shutil.which("ip") is None:
        pytest.skip("no `tc` and `ip` (iproute2) on this machine")
    shaped = ["unshare", "-rn", "sh", "-c", SLOW_LINK, "sh"]
    probe = subprocess.run([*shaped, "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"this kernel shapes no traffic: {probe.stderr.strip()}")
    options = ("--microbatches", "12", "--megabytes", "2", "--stage-ms", "32", "--rounds", "1")
    text = run(*shaped, *TORCHRUN, "3", str(EXAMPLES / "pipeline.py"), *options, HCOMM_TRANSPORT="tcp")
    assert "3 stages over tcp, 12 microbatches" in text
    share = {
        name: float(found) for name, found in re.findall(r"(ideal|blocking|overlapped)\b.* ([\d.]+)%", text)
    }
    assert share["ideal"] == 100
    # Measured 53 and 94 % with 48 microbatches; a busy machine takes from both.
    assert share["overlapped"] > 1.2 * share["blocking"], text
    difference = re.search(r"gradients are those of one process: largest difference (\S+)", text)
    assert difference, text
    assert float(difference[1]) <= 1e-12


def test_three_kinds_of_parallelism_at_once() -> None:
    text = run(*TORCHRUN, "8", str(EXAMPLES / "hybrid.py"))
    assert "8 ranks over shm: dp=2, pp=2, tp=2; 4 blocks" in text
    difference = re.search(r"same weights as one process after 20 steps: largest difference (\S+)", text)
    assert difference, text
    assert float(difference[1]) <= 1e-12
