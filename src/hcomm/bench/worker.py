"""One rank of a measurement: `python -m hcomm.bench.worker ORDER`, started by `hcomm bench`.

Rank 0 tells its parent, in lines of JSON on standard output: `{"about": …}`, `{"progress": [done, total]}`,
`{"row": …}` and at last `{"end": share of the machine that other work took}`, or `{"error": …}`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import hcomm
from hcomm.bench.order import Order
from hcomm.errors import HcommError

_PR_SET_PDEATHSIG = 1


def measure(order: Order) -> Iterator[dict[str, Any]]:
    """Join the job that the environment describes, measure, leave it; on every rank, what rank 0 tells.

    Raises:
        HcommError: the job could not be brought up, something that is needed is missing, or an operation failed.
    """
    from hcomm.bench.sweep import Sweep

    world = hcomm.init(transport=None if order.transport == "auto" else order.transport)
    try:
        sweep = Sweep(world, order)
        yield {"rank": world.rank, "about": sweep.about()}
        steps: list[list[int]] = []
        for row in sweep.rows(lambda done, total: steps.append([done, total])):
            yield {"progress": steps[-1]}
            yield {"row": asdict(row)}
        foreign = sweep.foreign()
        sweep.leave()
    finally:
        hcomm.finalize()
    yield {"end": foreign}


def main() -> int:
    """Measure and tell; the exit code."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no rank outlives its launcher
    first = False
    try:
        for message in measure(Order.decode(sys.argv[1])):
            first = first or message.get("rank") == 0
            if first:
                sys.stdout.write(json.dumps(message) + "\n")
                sys.stdout.flush()
    except HcommError as error:
        text = f"{type(error).__name__}: {error}"
        if os.environ.get("RANK", "0") == "0":  # under mpiexec no rank has this variable, and all are heard
            print(json.dumps({"error": text}), flush=True)
        else:
            print(text, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
