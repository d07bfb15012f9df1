"""PyTorch's own suite for backends, on one backend: `driver.py hcomm|gloo RESULTS.json [test_… …]`.

The suite ships inside the torch package. Each test starts its processes and ends them. Many tests are written for
backends by name; on hcomm those for gloo run, and those for MPI on CPUs, which gloo itself skips.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import unittest
from typing import Any


class Alias(str):
    """A backend's name that also counts as others where torch's tests ask for names.

    Args:
        name: what it reads.
        equal: the names that it equals.
        known: the names that it does not differ from, besides.
    """

    equal: frozenset[str]
    known: frozenset[str]

    def __new__(cls, name: str, equal: set[str], known: set[str]) -> Alias:
        self = super().__new__(cls, name)
        self.equal, self.known = frozenset(equal), frozenset(equal | known)
        return self

    def __eq__(self, other: object) -> bool:
        return str(other) in self.equal

    def __ne__(self, other: object) -> bool:
        return str(other) not in self.known

    __hash__ = str.__hash__


CHOSEN = sys.argv[1]
os.environ["BACKEND"] = "gloo"
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "120")
os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="torch-suite-")
for folder in ("barrier", "test_dir"):
    os.makedirs(os.path.join(os.environ["TEMP_DIR"], folder))

import torch  # noqa: E402

import hcomm.torch  # noqa: E402, F401  (registers the backend)

environ: Any = os.environ
if CHOSEN == "hcomm":
    # Conditions are asked while the tests are being defined; they see this instead of a plain name.
    os.environ = {**environ, "BACKEND": Alias("gloo", {"gloo"}, {"mpi"})}  # type: ignore[assignment]  # noqa: B003
from torch.testing._internal.distributed import distributed_test  # noqa: E402

if CHOSEN == "hcomm":
    os.environ = environ  # noqa: B003
    distributed_test.BACKEND = Alias("hcomm", {"hcomm", "gloo"}, set())


class TorchSuite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    """All of torch's tests of a backend."""

    def setUp(self) -> None:
        super().setUp()
        # Forked: importing the suite in each process would take longer than most tests.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class Recorder(unittest.TextTestResult):
    """Writes down how each test ended, and how long it took."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.found: dict[str, dict[str, Any]] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        self.began = time.monotonic()
        super().startTest(test)

    def _note(self, test: Any, outcome: str, text: str = "") -> None:
        took = round(time.monotonic() - self.began, 2)
        self.found[test._testMethodName] = {"outcome": outcome, "text": text, "seconds": took}

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self._note(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self._note(test, "skipped", reason)

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self._note(test, "failed", self._exc_info_to_string(err, test))

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self._note(test, "failed", self._exc_info_to_string(err, test))


def main(results: str, names: list[str]) -> int:
    """Run the tests of these names, or all; write down how they ended."""
    loader = unittest.defaultTestLoader
    suite = (
        loader.loadTestsFromTestCase(TorchSuite) if not names else unittest.TestSuite(map(TorchSuite, names))
    )
    result = unittest.TextTestRunner(resultclass=Recorder, verbosity=2).run(suite)
    assert isinstance(result, Recorder)
    with open(results, "w") as file:
        json.dump(result.found, file, indent=1)
    return not result.wasSuccessful()


if __name__ == "__main__":
    sys.exit(main(sys.argv[2], sys.argv[3:]))
