"""PyTorch's own suite for backends, on one backend: `driver.py [--backend hcomm] [NAMES…]`.

The suite ships inside the torch package. Each test starts its processes and ends them.
"""

from __future__ import annotations

import os
import sys
import tempfile

if "BACKEND" not in os.environ:  # the parent; its children inherit
    os.environ["BACKEND"] = "gloo" if "gloo" in sys.argv[1:2] else "hcomm"
    os.environ.setdefault("WORLD_SIZE", "3")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="torch-suite-")
    os.makedirs(os.path.join(os.environ["TEMP_DIR"], "barrier"))
    os.makedirs(os.path.join(os.environ["TEMP_DIR"], "test_dir"))

import torch  # noqa: I001  (the order below matters)
import hcomm.torch  # noqa: F401  (registers the backend before torch's tests look for it)
from torch.testing._internal.common_distributed import DistTestCases
from torch.testing._internal.common_utils import run_tests

for feature in ("plugin", "ddp", "subgroup"):  # read when the tests are defined
    DistTestCases.backend_feature[feature].add("hcomm")

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class TorchSuite(TestDistBackend, DistributedTest._DistTestBase):
    """All of torch's tests of a backend."""

    def setUp(self) -> None:
        super().setUp()
        # Forked: importing the suite in each process would take longer than most tests.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


if __name__ == "__main__":
    run_tests(sys.argv[:1] + [word for word in sys.argv[1:] if word not in ("gloo", "hcomm")])
