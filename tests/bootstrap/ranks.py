"""Starting ranks of a test as processes and reading what they say."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RANK = str(Path(__file__).with_name("rank.py"))


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Rank:
    """One process."""

    def __init__(self, case: dict[str, Any], before: list[str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*(before or []), sys.executable, RANK, json.dumps(case)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def lines(self, timeout: float = 60) -> list[dict[str, Any]]:
        """All that it said, when it has ended."""
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, err
        return [json.loads(line) for line in out.splitlines()]

    def kill(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def run(cases: list[dict[str, Any]], timeout: float = 60) -> list[list[dict[str, Any]]]:
    """Run ranks together; what each said."""
    ranks = [Rank(case) for case in cases]
    end = time.monotonic() + timeout
    try:
        return [rank.lines(max(0.1, end - time.monotonic())) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def world(size: int, **common: Any) -> list[dict[str, Any]]:
    """The cases of all ranks of a world."""
    port = common.pop("port", None)
    port = free_port() if port is None else port
    return [{"rank": rank, "size": size, "port": port, **common} for rank in range(size)]


def last(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The last thing a rank said."""
    return lines[-1]


def found(lines: list[dict[str, Any]], what: str) -> list[Any]:
    """All values of `what` that a rank said."""
    return [line[what] for line in lines if what in line]
