"""What HCOMM_DEBUG tells, a line at a time on standard error.

`info`: a line for each communicator that is made, and one for each plan, with the reason of its algorithm.
`trace`: also a line for each call.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from hcomm.diagnose.report import describe


def tell(line: str) -> None:
    """Write one line to standard error, at once, so that ranks do not mix."""
    sys.stderr.write(f"hcomm: {line}\n")
    sys.stderr.flush()


def call(operation: str, dtype: str, op: str | None, elements: int, root: int | None) -> str:
    """A collective in words; uneven exchanges, whose length ranks need not agree on, have 0 elements."""
    details = [op] if op else []
    if root is not None and root >= 0:
        details.append(f"root {root}")
    if operation == "barrier":
        return describe(operation, "", ())
    return describe(operation, dtype, (elements,), ", ".join(details))


def arrival(
    who: str, backend: str, host: str, pid: int, tcp: Mapping[int, str], cliques: Sequence[Sequence[int]]
) -> str:
    """The line about a new communicator.

    Args:
        who: the rank, in words.
        backend: how its ranks are joined.
        host: name of this host.
        pid: this process.
        tcp: per rank that is reached by TCP, the reason.
        cliques: the ranks that share memory with each other.
    """
    text = f"{who}: pid {pid} on {host}, backend {backend}"
    if tcp and len(cliques) > 1:
        text += ", memory shared by " + " | ".join(",".join(map(str, clique)) for clique in cliques)
    reasons: dict[str, list[int]] = {}
    for rank, reason in tcp.items():
        reasons.setdefault(reason, []).append(rank)
    for reason, ranks in reasons.items():
        text += f"; TCP with {','.join(map(str, ranks))}: {reason}"
    return text
