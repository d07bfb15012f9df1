"""The cases of training.py, on two ranks; slow: on four, where some hold nothing of a small parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.job import Job, values
from torch_backend.pair import case_names, run


@pytest.fixture(
    scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)], ids=["2-ranks", "4-ranks"]
)
def found(request: pytest.FixtureRequest) -> Iterator[list[dict[str, str]]]:
    # DETAIL must change nothing: torch's checks of what ranks call do not wrap groups of hcomm, which has its own.
    debug = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    job = Job(request.param, run, args=("training",), init=False, timeout=110, env=debug)
    yield values(job.wait())
    job.discard()


@pytest.mark.parametrize("case", case_names("training"))
def test_training(found: list[dict[str, Any]], case: str) -> None:
    for rank, outcomes in enumerate(found):
        assert not outcomes[f"training:{case}"], f"rank {rank}: {outcomes[f'training:{case}']}"
