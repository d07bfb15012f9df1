"""The table: operation × type × operator × count × layout × transport × ranks, checked element by element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.matrix import RANKS, table
from support.table import run_table

if TYPE_CHECKING:
    from support.cases import Case

_cache: dict[tuple[int, str], dict[str, str]] = {}

ROWS = [
    pytest.param(ranks, transport, case, id=f"{ranks}-{transport}-{case}")
    for transport in ("shm", "tcp")
    for ranks in RANKS
    for case in table(ranks, transport)
]


def _selected(items: list[Any], ranks: int, transport: str) -> list[Case]:
    """The rows of this job that the run asks for."""
    calls = [i.callspec.params for i in items if getattr(i, "originalname", "") == "test_row"]
    return [c["case"] for c in calls if (c["ranks"], c["transport"]) == (ranks, transport)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("ranks", "transport", "case"), ROWS)
def test_row(request: pytest.FixtureRequest, ranks: int, transport: str, case: Case) -> None:
    """One row; all rows of a job run when the first is asked for."""
    key = (ranks, transport)
    if key not in _cache:
        selected = _selected(request.session.items, ranks, transport)
        _cache[key] = run_table(selected, ranks, transport if ranks > 1 else None)
    verdict = _cache[key][str(case)]
    assert not verdict, verdict


@pytest.mark.parametrize(("ranks", "transport"), sorted({(p.values[0], p.values[1]) for p in ROWS}))
def test_the_job_of_the_table_ended_well(ranks: int, transport: str) -> None:
    """Every rank left with exit code 0."""
    end = _cache.get((ranks, transport), {}).get("the end of the job", "")
    assert not end, end
