"""Groups of fast links: how a plan of them is told to algorithms, what these do with it, and when they are chosen."""

from __future__ import annotations

import pytest

from hcomm.errors import TopologyError, UnknownAlgorithm
from hcomm.planning.groups import GroupPlan
from hcomm.planning.planner import Planner
from hcomm.planning.program import Kind, decode
from hcomm.planning.registry import lookup
from hcomm.planning.verify import verify
from hcomm.surroundings import crowded, described_groups

MB = 1 << 20
#: As in a DGX A100 whose switches are split: all pairs of four have a link, and so have ranks of one place.
DGX = {"HCCL_GROUP_0": "0,1,2,3", "HCCL_GROUP_1": "4,5,6,7"}
CIRCLES = {"HCCL_NVLINK_MAP": "0:2,2:1,1:3,3:0,4:5,5:6,6:7,7:4"}


def plan(environ: dict[str, str], size: int) -> GroupPlan:
    found = described_groups(environ, size)
    assert found is not None
    return found


def planner(rank: int, size: int, environ: dict[str, str], cliques=None) -> Planner:
    groups = plan(environ, size)
    return Planner(
        rank,
        size,
        cliques or tuple((r,) for r in range(size)),
        window_bytes=4 * MB,
        access=False,
        settings={},
        groups=groups.text,
        inside=groups.inside,
    )


def peers(rank: int, environ: dict[str, str]) -> set[int]:
    choice = planner(rank, 8, environ).choose("all_reduce", "float32", "sum", MB, None)
    assert choice.algorithm == "grouped"
    steps = [step for block in decode(choice.program).blocks for step in block.steps]
    return {step.peer for step in steps if step.kind is Kind.SEND}


def test_two_groups_of_four_are_direct_inside_and_rings_between() -> None:
    assert plan(DGX, 8).text == "0+1+2+3/4+5+6+7"
    for rank in range(8):
        mates = set(range(4)) if rank < 4 else set(range(4, 8))
        assert peers(rank, DGX) == (mates - {rank}) | {(rank + 4) % 8}


def test_circles_are_rings_inside() -> None:
    assert plan(CIRCLES, 8).text == "0+2+1+3/4+5+6+7"
    after = {0: 2, 2: 1, 1: 3, 3: 0, 4: 5, 5: 6, 6: 7, 7: 4}
    across = {0: 4, 2: 5, 1: 6, 3: 7, 4: 0, 5: 2, 6: 1, 7: 3}
    for rank in range(8):
        assert peers(rank, CIRCLES) == {after[rank], across[rank]}


def test_all_ranks_choose_the_same() -> None:
    for operation in ("all_reduce", "all_gather", "reduce_scatter"):
        choices = [planner(r, 8, DGX).choose(operation, "float32", "sum", MB, None) for r in range(8)]
        assert len({(c.algorithm, c.options, c.hash) for c in choices}) == 1
        assert dict(choices[0].options)["groups"] == "0+1+2+3/4+5+6+7"
        assert "fast links" in choices[0].why


def test_small_vectors_and_sums_that_round_once_are_not_split_up() -> None:
    assert planner(0, 8, DGX).choose("all_reduce", "float32", "sum", 8, None).algorithm != "grouped"
    assert planner(0, 8, DGX).choose("all_reduce", "float16", "sum", MB, None).algorithm == "pairwise"


@pytest.mark.parametrize(
    ("size", "groups", "inside"),
    [
        (8, "0+1+2+3/4+5+6+7", "direct"),
        (8, "0+2+1+3/4+5+6+7", "ring"),
        (6, "5+0/1+4/3+2", "ring"),
        (7, "0+1+2/3+4+5+6", "ring"),  # uneven: not round about, whatever was asked
        (5, "0+3+4/1/2", "direct"),
    ],
)
def test_every_grouping_is_proved(size: int, groups: str, inside: str) -> None:
    options = (("groups", groups), ("inside", inside))
    verify(lookup("all_reduce", "grouped"), size, [(r,) for r in range(size)], options=options)
    for operation in ("all_gather", "reduce_scatter"):
        entry = lookup(operation, "hierarchical")
        verify(entry, size, [(r,) for r in range(size)], options=(("groups", groups),))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0+1/2", "must hold each of the ranks 0..3 once"),
        ("0+1/1+2+3", "must hold each of the ranks 0..3 once"),
        ("0+1/2+x", "is not understood: write 0.1.2.3/4.5.6.7"),
        ("0+1//2+3", "is not understood"),
    ],
)
def test_groups_that_are_none(text: str, problem: str) -> None:
    p = Planner(0, 4, ((0,), (1,), (2,), (3,)), window_bytes=MB, access=False, settings={})
    with pytest.raises(UnknownAlgorithm, match=problem):
        p.choose("all_reduce", "float32", "sum", MB, None, f"grouped(groups={text})")


def test_a_job_smaller_than_the_description_uses_its_first_devices() -> None:
    assert plan(DGX, 6).text == "0+1+2+3/4+5"
    assert plan(DGX, 4).text == ""  # one group: nothing to take in levels
    assert plan(DGX, 8).restricted([7, 1, 0]).text == "2+1/0"
    assert described_groups({}, 4) is None


def test_a_job_larger_than_the_description_is_refused(tmp_path) -> None:
    path = tmp_path / "two.json"
    path.write_text(
        '{"hcomm_topology": 1, "hosts": [{"name": "a", "devices": [{"id": 0}, {"id": 1}]}],'
        ' "links": [{"between": ["a/gpu0", "a/gpu1"], "kind": "nvlink"}]}'
    )
    with pytest.raises(TopologyError, match=r"two\.json: 2 devices, but the job has 4 ranks"):
        described_groups({"HCOMM_TOPOLOGY": str(path)}, 4)
    with pytest.raises(TopologyError, match=r"ranks \[8\] are in no group"):
        described_groups(DGX, 9)


def test_crowded_hosts() -> None:
    from hcomm.bootstrap import Contact

    def ranks(*masks: str, host: str = "h") -> list[Contact]:
        return [
            Contact(r, r, host, "b", 1, "127.0.0.1", 1, "u", 1, mask)
            for r, mask in enumerate(masks)
        ]  # fmt: skip

    assert not crowded(ranks("3", "3"))
    assert crowded(ranks("3", "3", "3"))
    assert not crowded(ranks("1", "2", "4"))  # each has its own processor
    assert crowded([*ranks("f"), *ranks("1", "1", host="other")])
    assert not crowded(ranks("", "", ""))
