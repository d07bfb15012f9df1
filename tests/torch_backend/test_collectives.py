"""The cases of collectives.py, on two ranks that share memory and on three over TCP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.job import Job, values
from torch_backend.pair import case_names, run

CASES = case_names("collectives")


@pytest.fixture(scope="module", params=[(2, "auto"), (3, "tcp")], ids=["2-shm", "3-tcp"])
def found(request: pytest.FixtureRequest) -> Iterator[list[dict[str, str]]]:
    size, transport = request.param
    job = Job(size, run, args=("collectives",), init=False, transport=transport, timeout=110)
    yield values(job.wait())
    job.discard()


@pytest.mark.parametrize("case", CASES)
def test_collectives(found: list[dict[str, Any]], case: str) -> None:
    for rank, outcomes in enumerate(found):
        assert not outcomes[f"collectives:{case}"], f"rank {rank}: {outcomes[f'collectives:{case}']}"
