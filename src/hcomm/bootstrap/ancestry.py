"""Which process manager stands above this process."""

from __future__ import annotations

import os
import re


def process_manager(pid: int | None = None) -> str:
    """The MPI process manager that started this process, as `pid-start time`: the nearest ancestor of such a
    name, or the parent.

    The ranks of one host have it in common, also when a shell stands between.
    """
    current = parent = os.getppid() if pid is None else pid
    while current > 1:
        name, above, started = _process(current)
        if re.match(r"hydra_pmi|pmi_proxy|mpiexec|mpirun|prte|orted", name):
            return f"{current}-{started}"
        current = above
    return f"{parent}-{_process(parent)[2]}"


def _process(pid: int) -> tuple[str, int, str]:
    """Name, parent and start time of a process (proc(5))."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, tail = file.read().rpartition(")")
    except OSError:
        return "", 0, "0"
    fields = tail.split()
    return head.partition("(")[2], int(fields[1]), fields[19]
