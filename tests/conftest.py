"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # `support`, for tests that pytest imports by path

from support.job import Job, Outcome, report, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def pytest_configure(config: pytest.Config) -> None:
    """Leave out what is marked `slow` unless `-m` says otherwise."""
    config.addinivalue_line("markers", "slow: minutes long; run with `-m slow`")
    if not config.option.markexpr:
        config.option.markexpr = "not slow"


@pytest.fixture
def launch() -> Iterator[Callable[..., Job]]:
    """Start a `support.job.Job` to be handled by the test; nobody outlives the test."""
    jobs: list[Job] = []

    def start(*args: Any, **kwargs: Any) -> Job:
        jobs.append(Job(*args, **kwargs))
        return jobs[-1]

    yield start
    for job in jobs:
        job.discard()


@pytest.fixture
def outcomes(launch: Callable[..., Job]) -> Callable[..., list[Outcome]]:
    """Run a job to its end; every process ended by itself."""

    def run(*args: Any, **kwargs: Any) -> list[Outcome]:
        done = launch(*args, **kwargs).wait()
        assert not any(o.survived for o in done), report(done)
        return done

    return run


@pytest.fixture
def job(outcomes: Callable[..., list[Outcome]]) -> Callable[..., list[Any]]:
    """Run a job to its good end; what each rank returned."""

    def run(*args: Any, **kwargs: Any) -> list[Any]:
        return values(outcomes(*args, **kwargs))

    return run


@pytest.fixture(scope="session")
def user_namespaces() -> None:
    """Skip where this user may not make private mounts and hostnames."""
    if shutil.which("unshare") is None:
        pytest.skip("no `unshare` on this machine")
    done = subprocess.run(["unshare", "-rmu", "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"unshare -rmu is refused here: {done.stderr.strip()}")
