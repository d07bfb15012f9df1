"""Starts the ranks of one launch as processes of this host, waits for their results, and leaves nobody behind."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hcomm.bench.machine import busy_seconds
from hcomm.cli.local_job import worker_environment

#: The folder that holds this package: ranks are started there, as `python -m benchmarks` itself is.
ROOT = Path(__file__).resolve().parent.parent
#: Rarely enough that the launcher does not take the ranks' cores.
_LOOK_SECONDS = 0.05
_LAST_WORDS = 12


class JobFailed(Exception):
    """A launch gave no result; the message says which rank failed, and its last words."""


@dataclass(frozen=True)
class Outcome:
    """What a launch gave.

    Attributes:
        ranks: each rank's result.
        foreign: share of the machine's processors that other work took meanwhile, 0 to 1.
    """

    ranks: list[dict[str, Any]]
    foreign: float


def run_job(
    task: str,
    ranks: int,
    arguments: Mapping[str, Any],
    *,
    settings: Mapping[str, str] | None = None,
    seconds: float = 120.0,
) -> Outcome:
    """Run a task of rank.py on `ranks` processes.

    Args:
        task: its name.
        ranks: how many processes.
        arguments: what the task is told; must be JSON.
        settings: variables of the environment beside those that describe the job.
        seconds: the longest that all of it may take.

    Raises:
        JobFailed: a rank failed, or the time was over; every process has ended.
    """
    job_id = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="hcomm-bench-") as place:
        folder = Path(place)
        command = [sys.executable, "-m", "benchmarks.rank", task, place, json.dumps(dict(arguments))]
        processes: list[subprocess.Popen[bytes]] = []
        begin, busy, own = time.monotonic(), busy_seconds(), _own_seconds()
        try:
            for rank in range(ranks):
                environment = worker_environment(rank, ranks, job_id) | dict(settings or {})
                with (folder / f"log-{rank}").open("wb") as log:
                    process = subprocess.Popen(
                        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )
                processes.append(process)
            _wait(processes, folder, begin + seconds)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        took = time.monotonic() - begin
        other = (busy_seconds() - busy) - (_own_seconds() - own)
        results = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(ranks)]
    return Outcome(results, max(0.0, other / took / (os.cpu_count() or 1)))


def _wait(processes: list[subprocess.Popen[bytes]], folder: Path, deadline: float) -> None:
    """Until all have ended well; raises JobFailed with the first that did not."""
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code not in (None, 0):
                raise JobFailed(_explain(f"rank {rank} ended with exit code {code}", folder, rank))
        if None not in codes:
            return
        if time.monotonic() > deadline:
            rank = codes.index(None)
            raise JobFailed(_explain(f"rank {rank} did not end in time", folder, rank))
        time.sleep(_LOOK_SECONDS)


def _explain(what: str, folder: Path, rank: int) -> str:
    lines = (folder / f"log-{rank}").read_text(errors="replace").strip().splitlines()
    return "\n  ".join([what, *lines[-_LAST_WORDS:]])


def _own_seconds() -> float:
    """What the launches that have ended used of them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
