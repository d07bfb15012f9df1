"""Two hosts made of network namespaces, by `netlab` (its path in HCOMM_NETLAB, or ../shared/netlab/netlab)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.jobs import ROOT

_NETLAB = Path(os.environ.get("HCOMM_NETLAB", ROOT.parent / "shared" / "netlab" / "netlab"))


def on_two_hosts(task: str, rate: str, per_host: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a task of rank.py on two hosts that can each send `rate` (such as 100mbit); what rank 0 found.

    Needs root. Exits with netlab's words where it cannot.
    """
    lab = f"hb{os.getpid()}"

    def netlab(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, str(_NETLAB), *words], capture_output=True, text=True, cwd=ROOT
        )
        if done.returncode:
            sys.exit(
                f"netlab {words[0]} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
            )

    with tempfile.TemporaryDirectory(prefix="hcomm-bench-") as place:
        netlab("up", "--name", lab, "--hosts", "2", "--rate", rate)
        try:
            netlab(
                "run", "--name", lab, "--nproc", str(per_host), "--launcher", "env", "--port", "29519",
                "--timeout", "600", "--env", "OMP_NUM_THREADS=1", "--env", f"PYTHONPATH={ROOT}", "--",
                sys.executable, "-m", "benchmarks.rank", task, place, json.dumps(arguments),
            )  # fmt: skip
        finally:
            netlab("down", "--name", lab)
        found: dict[str, Any] = json.loads((Path(place) / "result-0.json").read_text())
    return found
