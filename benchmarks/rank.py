"""What one rank of a launch runs: ``python -m benchmarks.rank TASK FOLDER ARGUMENTS``; jobs.py starts it.

Writes its result to FOLDER/result-RANK.json. Each task imports only what it needs: init() is timed without torch.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hcomm.bench.meeting import Meeting

_PR_SET_PDEATHSIG = 1


def _all_reduce(folder: Path, meeting: Meeting, arguments: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.timing import run

    return run(arguments["library"], arguments["sizes"], arguments["budget"], folder, meeting)


def _growth(folder: Path, meeting: Meeting, arguments: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.growth import run

    return run(arguments["calls"], arguments["warm_up"], meeting)


def _init(folder: Path, meeting: Meeting, arguments: dict[str, Any]) -> dict[str, Any]:
    """Seconds of `hcomm.init()`; all ranks call it at the same time, so no rank's start-up is counted."""
    import hcomm

    meeting.barrier(patient=True)
    start = time.perf_counter()
    hcomm.init()
    seconds = time.perf_counter() - start
    hcomm.finalize()
    return {"seconds": seconds}


def _selection(folder: Path, meeting: Meeting, arguments: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.choices import run

    return run(arguments["sizes"], arguments["also"], arguments["budget"], meeting)


def _accuracy(folder: Path, meeting: Meeting, arguments: dict[str, Any]) -> dict[str, Any]:
    import hcomm
    from benchmarks.compressing import accuracies

    hcomm.init()
    found = accuracies(**arguments)
    hcomm.finalize()
    return found


def _steps(folder: Path, meeting: Meeting, arguments: dict[str, Any]) -> dict[str, Any]:
    import hcomm
    from benchmarks.compressing import steps

    hcomm.init()
    found = steps(**arguments)
    hcomm.finalize()
    return found


def _overlap(folder: Path, meeting: Meeting, arguments: dict[str, Any]) -> dict[str, Any]:
    import hcomm
    from benchmarks.compressing import overlap

    hcomm.init()
    found = overlap(**arguments)
    hcomm.finalize()
    return found


def _training(folder: Path, meeting: Meeting, arguments: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.trained import run

    meeting.barrier(patient=True)
    return run(arguments["model"], arguments["count"], folder, meeting)


TASKS: dict[str, Callable[[Path, Meeting, dict[str, Any]], dict[str, Any]]] = {
    "all_reduce": _all_reduce,
    "growth": _growth,
    "init": _init,
    "selection": _selection,
    "accuracy": _accuracy,
    "steps": _steps,
    "overlap": _overlap,
    "training": _training,
}


def main() -> None:
    """Run one task on this rank."""
    task, place, arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(
        _PR_SET_PDEATHSIG, signal.SIGKILL
    )  # no rank outlives its launcher, however that ends
    folder = Path(place)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    result = TASKS[task](folder, Meeting(folder / "meeting", rank, size), json.loads(arguments))
    (folder / f"result-{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
