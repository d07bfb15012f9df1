"""Mesh: who sits where, who belongs together, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.inside import attempt

import hcomm
from hcomm.mesh import _sizes

if TYPE_CHECKING:
    from collections.abc import Callable


def grid() -> dict[str, Any]:
    """A mesh of 8 ranks: what each knows and computes."""
    mesh = hcomm.Mesh(dp=2, pp=-1, tp=2)
    found: dict[str, Any] = {
        "axes": dict(mesh.axes),
        "coordinates": dict(mesh.coordinates),
        "ranks": {axis: mesh[axis].ranks for axis in mesh},
        "names": {axis: mesh[axis].name for axis in mesh},
        "places": {axis: mesh[axis].rank for axis in mesh},
        "stage": [group.ranks for group in (mesh.group("tp", "dp"), mesh.group("dp", "tp"))],
        "next": mesh.neighbour("pp", 1),
        "before": mesh.neighbour("pp", -1),
        "twin": mesh.rank_of(dp=1 - mesh.coordinates["dp"]),
        "everyone": [mesh.coordinates_of(rank) for rank in range(8)],
        "text": repr(mesh),
        "told": [
            failure.text if failure else ""
            for failure in (
                attempt(lambda: mesh["ep"]),
                attempt(mesh.rank_of, tp=2),
                attempt(mesh.group, "tp", "tp"),
                attempt(mesh.coordinates_of, 8),
            )
        ],
    }
    for axis in mesh:
        value = np.array([hcomm.rank()])
        mesh[axis].all_reduce(value)
        found[f"sum {axis}"] = int(value[0])
    mesh.close()
    text = (Path(__file__).resolve().parents[2] / "docs" / "parallelism.md").read_text(encoding="utf-8")
    snippet = text.partition("## Mesh")[2].partition("```python\n")[2].partition("```")[0]
    page: dict[str, Any] = {}
    exec(snippet.replace("hcomm.init()\n", ""), page)
    found["page"] = (page["mesh"].neighbour("pp", 1), page["partial"].tolist())
    page["mesh"].close()
    return found


def test_a_grid_of_three_axes(job: Callable[..., list[Any]]) -> None:
    for rank, found in enumerate(job(8, grid)):
        dp, pp, tp = rank // 4, rank // 2 % 2, rank % 2
        assert found["axes"] == {"dp": 2, "pp": 2, "tp": 2}
        assert found["coordinates"] == found["places"] == {"dp": dp, "pp": pp, "tp": tp}
        groups = {
            "dp": (rank % 4, rank % 4 + 4),
            "pp": (4 * dp + tp, 4 * dp + tp + 2),
            "tp": (rank - tp, rank - tp + 1),
        }
        assert found["ranks"] == groups
        assert {axis: found[f"sum {axis}"] for axis in groups} == {axis: sum(r) for axis, r in groups.items()}
        assert found["names"]["tp"] == f"tp of dp={dp},pp={pp}"
        assert found["stage"] == [tuple(r for r in range(8) if r // 2 % 2 == pp)] * 2
        assert (found["next"], found["before"]) == ((1, None) if pp == 0 else (None, 0))
        assert found["page"] == (found["next"], [2.0] * 4)
        assert found["twin"] == (rank + 4) % 8
        assert found["everyone"][5] == {"dp": 1, "pp": 0, "tp": 1}
        assert found["text"] == f"<hcomm.Mesh(dp=2, pp=2, tp=2): rank {rank} is dp {dp}, pp {pp}, tp {tp}>"
        no_axis, off_axis, twice, no_rank = found["told"]
        assert "no axis 'ep'; there are dp, pp, tp" in no_axis
        assert off_axis == "tp must be in 0..1, not 2"
        assert "different axes of dp, pp, tp" in twice
        assert no_rank == "rank must be in 0..7, not 8"


def refusals() -> list[str]:
    """Meshes that cannot be; the job goes on after each."""
    rank = hcomm.rank()
    made: list[Callable[[], object]] = [
        lambda: hcomm.Mesh(dp=2, tp=2),
        lambda: hcomm.Mesh(dp=3, tp=1) if rank else hcomm.Mesh(dp=1, tp=3),
        lambda: hcomm.Mesh(),
        lambda: hcomm.Mesh(dp=2, tp=-1),
    ]
    told = []
    for make in made:
        failure = attempt(make)
        assert failure is not None
        assert failure.kind == "ValueError"
        told.append(failure.text)
    assert hcomm.Mesh(dp=3, tp=1)["tp"].size == 1
    return told


def test_every_rank_is_told_what_does_not_fit(job: Callable[..., list[Any]]) -> None:
    for product, different, none, left in job(3, refusals):
        assert product == "Mesh(dp=2, tp=2) needs 4 ranks, and there are 3"
        assert different == (
            "the ranks make different meshes: rank 0: Mesh(dp=1, tp=3); rank 1: Mesh(dp=3, tp=1); "
            "rank 2: Mesh(dp=3, tp=1)"
        )
        assert "at least one axis" in none
        assert left == "Mesh(dp=2, tp=-1) needs a multiple of 2 ranks, and there are 3"


@pytest.mark.parametrize("size", [0, -2, 1.5, True, "2"])
def test_a_size_is_a_positive_number(size: Any) -> None:
    with pytest.raises(ValueError, match="tp must be a positive number of ranks, or -1 for what is left"):
        _sizes({"dp": 1, "tp": size}, 2)


def test_only_one_size_may_be_left_open() -> None:
    assert _sizes({"dp": -1, "tp": 2}, 6) == {"dp": 3, "tp": 2}
    with pytest.raises(ValueError, match=r"Mesh\(dp=-1, tp=-1\): only one axis may be -1"):
        _sizes({"dp": -1, "tp": -1}, 6)
