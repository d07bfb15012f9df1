"""PyTorch's own suite for backends, on one backend: `driver.py hcomm|gloo [-v] [TorchSuite.test_… …]`.

The suite ships inside the torch package. Each test starts its processes and ends them. Many tests are written for
backends by name; on hcomm those for gloo run, and those for MPI on CPUs, which gloo itself skips.
"""

from __future__ import annotations

import os
import sys
import tempfile


class _Chosen(str):
    """The name that conditions of tests compare with: gloo, but no reason to skip what only MPI serves."""

    __slots__ = ()

    def __ne__(self, other: object) -> bool:
        return other not in ("gloo", "mpi")

    def __eq__(self, other: object) -> bool:
        return other == "gloo"

    __hash__ = str.__hash__


CHOSEN = sys.argv[1] if len(sys.argv) > 1 else "hcomm"
os.environ["BACKEND"] = "gloo"
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "120")
os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="torch-suite-")
for folder in ("barrier", "test_dir"):
    os.makedirs(os.path.join(os.environ["TEMP_DIR"], folder))

import torch  # noqa: E402
from torch.testing._internal.common_utils import run_tests  # noqa: E402

import hcomm.torch  # noqa: E402, F401  (registers the backend)

if CHOSEN == "hcomm":
    # Conditions are asked while the tests are being defined; they see this instead of a plain name.
    environ, os.environ = os.environ, {**os.environ, "BACKEND": _Chosen("gloo")}  # type: ignore[assignment]  # noqa: B003
from torch.testing._internal.distributed import distributed_test  # noqa: E402

if CHOSEN == "hcomm":
    os.environ = environ  # noqa: B003
    distributed_test.BACKEND = "hcomm"


class TorchSuite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    """All of torch's tests of a backend."""

    def setUp(self) -> None:
        super().setUp()
        # Forked: importing the suite in each process would take longer than most tests.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


if __name__ == "__main__":
    run_tests([sys.argv[0], *sys.argv[2:]])
