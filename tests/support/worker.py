"""The process of one rank: `worker.py DIRECTORY RANK` (started by support.job)."""

from __future__ import annotations

import ctypes
import importlib.util
import pickle
import signal
import sys
from pathlib import Path
from typing import Any


def _load(target: str) -> Any:
    path, _, name = target.rpartition(":")
    spec = importlib.util.spec_from_file_location("job_body", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["job_body"] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def main(directory: Path, rank: int) -> None:
    """Initialise, call the ordered function, write down what came of it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: do not outlive a killed test run
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the tests, not their folder `support`
    order = pickle.loads((directory / "order").read_bytes())
    from support.inside import describe

    result = directory / f"result-{rank}"
    try:
        function = _load(order["target"])
        if order["init"]:
            import hcomm

            hcomm.init()
        value = function(*order["args"])
        if order["init"]:
            hcomm.finalize()
    except BaseException as error:
        if not isinstance(error, SystemExit):
            result.write_bytes(pickle.dumps({"error": describe(error)}))
        raise
    result.write_bytes(pickle.dumps({"value": value}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
