"""The cases of sharing.py, on two ranks; afterwards nothing is shared any more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.job import Job, values
from torch_backend.pair import case_names, run


def run_and_look() -> dict[str, str]:
    """One rank: all cases, and what is still registered once the groups are destroyed."""
    found = run("sharing")
    from hcomm import memory

    found["left"] = ", ".join(hex(address) for _, address in memory._registered)
    return found


@pytest.fixture(scope="module")
def found() -> Iterator[list[dict[str, str]]]:
    job = Job(2, run_and_look, init=False, timeout=60)
    yield values(job.wait())
    job.discard()


@pytest.mark.parametrize("case", case_names("sharing"))
def test_sharing(found: list[dict[str, str]], case: str) -> None:
    for rank, outcomes in enumerate(found):
        assert not outcomes[f"sharing:{case}"], f"rank {rank}: {outcomes[f'sharing:{case}']}"


def test_nothing_stays_shared_after_the_end(found: list[dict[str, str]]) -> None:
    assert [outcomes["left"] for outcomes in found] == ["", ""]
