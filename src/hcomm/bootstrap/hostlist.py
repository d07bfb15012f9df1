"""Slurm's lists of hosts."""

from __future__ import annotations

import re

from hcomm.errors import LaunchError


def first_host(nodes: str) -> str:
    """The first host of a Slurm node list: `gpu[007-009,12],login` → `gpu007`.

    Raises:
        LaunchError: it does not parse.
    """
    host, rest = "", nodes.strip()
    while rest and rest[0] != ",":
        if rest[0] != "[":
            part = re.split(r"[\[,]", rest, maxsplit=1)[0]
            host, rest = host + part, rest[len(part) :]
            continue
        match = re.match(r"\[(\d+)(?:-\d+)?(?:,\d+(?:-\d+)?)*\]", rest)
        if match is None:
            raise LaunchError(
                f"the Slurm node list {nodes!r} does not parse; set MASTER_ADDR to the host of rank 0"
            )
        host, rest = host + match.group(1), rest[match.end() :]
    if not re.fullmatch(r"[A-Za-z0-9._-]+", host):
        raise LaunchError(
            f"the Slurm node list {nodes!r} does not parse; set MASTER_ADDR to the host of rank 0"
        )
    return host
