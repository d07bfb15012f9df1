"""The examples, under the launchers that their users have."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from support.command import TORCHRUN, run_command

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SECONDS = 110


def run(*command: str, code: int = 0, **environment: str) -> str:
    return run_command(*command, code=code, timeout=SECONDS, **environment).stdout


def mpiexec(flavour: str) -> list[str]:
    """The command of one MPI; skips where it is not installed."""
    name = f"mpiexec.{flavour}"
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    if flavour == "openmpi":
        return [name, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n"]
    return [name, "-n"]


def check_places(text: str, size: int) -> None:
    """Each rank once, all on one node, over shared memory."""
    pattern = re.compile(r"global rank (\d+)/(\d+)  node (\S+)  local rank (\d+)/(\d+)  backend (\S+)")
    found = [pattern.fullmatch(line) for line in text.splitlines() if "global rank" in line]
    assert all(found), text
    places = sorted((int(m[1]), int(m[2]), int(m[4]), int(m[5]), m[6]) for m in found if m)
    assert places == [(rank, size, rank, size, "shm") for rank in range(size)]
    assert len({m[3] for m in found if m}) == 1


def test_init_check_under_torchrun() -> None:
    check_places(run(*TORCHRUN, "4", str(EXAMPLES / "init_check.py")), 4)


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_init_check_under_mpiexec(flavour: str) -> None:
    check_places(run(*mpiexec(flavour), "3", sys.executable, str(EXAMPLES / "init_check.py")), 3)


def test_init_check_alone() -> None:
    assert "global rank 0/1" in run(sys.executable, str(EXAMPLES / "init_check.py"))


def test_hello() -> None:
    text = run(*TORCHRUN, "2", str(EXAMPLES / "hello.py"))
    assert sorted(text.splitlines()) == [
        "rank 0 of 2 over shm: [3.0, 3.0, 3.0, 3.0]",
        "rank 1 of 2 over shm: [3.0, 3.0, 3.0, 3.0]",
    ]


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_numpy_mean(flavour: str) -> None:
    text = run(*mpiexec(flavour), "2", sys.executable, str(EXAMPLES / "numpy_mean.py"))
    found = re.search(r"2000000 numbers on 2 processes: mean ([\d.]+), deviation ([\d.]+)", text)
    assert found, text
    assert float(found[1]) == pytest.approx(5.0, abs=0.01)
    assert float(found[2]) == pytest.approx(2.0, abs=0.01)


def train(ranks: int, *options: str, code: int = 0, **environment: str) -> str:
    return run(*TORCHRUN, str(ranks), str(EXAMPLES / "train_digits.py"), *options, code=code, **environment)


@pytest.mark.parametrize(("ranks", "transport"), [(2, "shm"), (3, "shm"), (2, "tcp")])
def test_training_leaves_the_weights_of_one_process(ranks: int, transport: str) -> None:
    text = train(ranks, "--steps", "20", "--min-accuracy", "0", HCOMM_TRANSPORT=transport)
    difference = re.search(r"same weights as one +(\S+) largest difference after 20 steps", text)
    assert difference, text
    assert float(difference[1]) <= 1e-9
    assert re.search(rf"backend +{transport}, {ranks} ranks", text)
    assert text.count("test accuracy") == 1, "only rank 0 prints"
    assert "speed-up" in text
    assert "communication" in text
    compared = re.search(
        r"beside gloo .*\(0\.61 MB\) averaged in ([\d.]+) ms, over gloo in ([\d.]+) ms", text
    )
    assert compared, text
    assert min(float(compared[1]), float(compared[2])) > 0


def test_training_learns() -> None:
    text = train(2, "--epochs", "12")
    accuracy = re.search(r"test accuracy +(\S+)", text)
    assert accuracy, text
    assert float(accuracy[1]) >= 0.97


def test_a_model_that_did_not_learn_is_a_failure() -> None:
    assert "FAILED" in train(2, "--steps", "2", code=1)
