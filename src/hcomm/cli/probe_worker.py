"""One rank of a local measurement: `python -m hcomm.cli.probe_worker`, started by `hcomm check`.

Rank 0 tells its parent, in lines of JSON on standard output: `{"progress": [done, total]}`, then `{"result": …}` or
`{"error": …}`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from hcomm.errors import HcommError
from hcomm.topology.cpus import parse_cpulist


def _tell(message: dict[str, object]) -> None:
    if os.environ["RANK"] == "0":
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def main() -> int:
    """Measure and tell; the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpus", type=parse_cpulist, default=())
    cpus = parser.parse_args().cpus
    if cpus:
        os.sched_setaffinity(0, cpus)
    from hcomm.cli.measure import measure

    try:
        result = measure(lambda done, total: _tell({"progress": [done, total]}))
    except HcommError as error:
        _tell({"error": f"{type(error).__name__}: {error}"})
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if result is not None:
        _tell({"result": result.as_dict()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
