"""The cases of training.py, on two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.job import Job, values
from torch_backend.pair import case_names, run


@pytest.fixture(scope="module")
def found() -> Iterator[list[dict[str, str]]]:
    job = Job(2, run, args=("training",), init=False, timeout=110)
    yield values(job.wait())
    job.discard()


@pytest.mark.parametrize("case", case_names("training"))
def test_training(found: list[dict[str, Any]], case: str) -> None:
    for rank, outcomes in enumerate(found):
        assert not outcomes[f"training:{case}"], f"rank {rank}: {outcomes[f'training:{case}']}"
