"""Every algorithm on real links, against NumPy; what chooses it; what ranks do that choose differently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.inside import attempt

from hcomm.codes import OPERATIONS
from hcomm.planning.registry import LINKS, algorithms

#: Elements per block: one, a few, and more than tiles and windows hold.
COUNTS = (1, 1000, 700_001)
ANYWHERE = [a.name for a in algorithms("all_reduce") if a.requires is LINKS]
LOCAL = [a.name for a in algorithms("all_reduce")]


def vector(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-5, 9, count).astype(np.float32)


def called(operation: str, count: int, **more: Any) -> tuple[Any, Any]:
    """(result, what it must be) of one call on this rank."""
    import hcomm

    me, size = hcomm.rank(), hcomm.world_size()
    root = size - 1
    call = getattr(hcomm, operation)
    small = [vector(count, rank) for rank in range(size)]
    large = [vector(count * size, rank) for rank in range(size)]
    mine = slice(me * count, (me + 1) * count)
    match operation:
        case "all_reduce":
            return call(small[me].copy(), **more), sum(small)
        case "broadcast":
            return call(small[me].copy(), root, **more), small[root]
        case "reduce":
            return call(small[me].copy(), root, **more), sum(small) if me == root else small[me]
        case "all_gather":
            return call(small[me], **more), np.concatenate(small)
        case "reduce_scatter":
            return call(large[me], **more), sum(large)[mine]
        case "all_to_all":
            return call(large[me], **more), np.concatenate([v[mine] for v in large])
        case "gather":
            return call(small[me], root, **more), np.concatenate(small) if me == root else None
        case "scatter":
            return call(large[root], root, **more), large[root][mine]
    return call(**more), None


def every_algorithm() -> tuple[list[str], list[str]]:
    """(what went wrong, what ran)."""
    from hcomm.errors import UnknownAlgorithm

    wrong, ran = [], []
    for operation in OPERATIONS:
        for entry in algorithms(operation):
            for count in COUNTS:
                try:
                    found, expected = called(operation, count, algorithm=entry.name)
                except UnknownAlgorithm:
                    continue
                ran.append(f"{operation} {entry.name}")
                if not np.array_equal(found, expected):
                    wrong.append(f"{operation} {entry.name} of {count}")
    return wrong, sorted(set(ran))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_algorithm(job: Any, ranks: int, transport: str) -> None:
    """Chosen by call; all that can run on such links do."""
    anywhere = transport == "tcp" and ranks > 1
    expected = sorted(f"{a.operation} {a.name}" for a in algorithms() if a.requires is LINKS or not anywhere)
    for wrong, ran in job(ranks, every_algorithm, transport=transport, timeout=200):
        assert wrong == []
        assert ran == expected


def sums() -> list[bool]:
    pairs = [called("all_reduce", count) for count in (1, 1000, 100_003)]
    return [bool(np.array_equal(found, expected)) for found, expected in pairs]


@pytest.mark.parametrize("name", ANYWHERE)
def test_the_environment_chooses_over_tcp(job: Any, name: str) -> None:
    assert job(3, sums, transport="tcp", env={"HCOMM_ALLREDUCE_ALGO": name}) == [[True] * 3] * 3


@pytest.mark.parametrize("name", LOCAL)
def test_the_environment_chooses_in_shared_memory(job: Any, name: str) -> None:
    assert job(4, sums, transport="shm", env={"HCOMM_ALLREDUCE_ALGO": name}) == [[True] * 3] * 4


def in_pieces() -> list[bool]:
    operations = ("all_reduce", "all_gather", "reduce_scatter")
    pairs = [called(operation, count) for operation in operations for count in (3, 100_003)]
    return [bool(np.array_equal(found, expected)) for found, expected in pairs]


@pytest.mark.parametrize("variable", ["HCOMM_RING_CHUNK_SIZE", "HCCL_RING_CHUNK_SIZE"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_rings_in_pieces(job: Any, variable: str, transport: str) -> None:
    env = {
        variable: "10000",
        **{f"HCOMM_{o}_ALGO": "ring" for o in ("ALLREDUCE", "ALLGATHER", "REDUCESCATTER")},
    }
    assert job(3, in_pieces, transport=transport, env=env) == [[True] * 6] * 3


def ranges_and_options() -> list[bool]:
    return [bool(np.array_equal(*called("all_reduce", count))) for count in (8, 100_003)]


def test_ranges_options_and_exclusions(job: Any) -> None:
    for text in ("recursive_doubling:0-8KB;torus2d(grid=2x2):8KB-max", "^oneshot,staged,star,ring"):
        assert job(4, ranges_and_options, env={"HCOMM_ALLREDUCE_ALGO": text}) == [[True] * 2] * 4


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "butterfly",
            "UnknownAlgorithm",
            "unknown all_reduce algorithm 'butterfly'; known: direct, double_binary_tree",
        ),
        ("ring:8KB", "ConfigError", "HCOMM_ALLREDUCE_ALGO='ring:8KB' is not understood"),
        ("^ring,butterfly", "UnknownAlgorithm", "'butterfly'"),
    ],
)
def test_mistakes_are_found_when_the_job_is_made(outcomes: Any, text: str, kind: str, message: str) -> None:
    for outcome in outcomes(2, sums, env={"HCOMM_ALLREDUCE_ALGO": text}):
        assert outcome.error.kind == kind
        assert message in outcome.error.text


def an_impossible_grid() -> Any:
    import hcomm

    failure = attempt(hcomm.all_reduce, np.ones(8), algorithm="torus2d(grid=2x2)")
    return failure, float(hcomm.all_reduce(np.ones(1))[0])


def test_an_impossible_grid_breaks_nothing(job: Any) -> None:
    for failure, after in job(3, an_impossible_grid):
        assert failure.kind == "UnknownAlgorithm"
        assert "grid=2x2 is not X×Y with X·Y = 3 ranks" in failure.text
        assert after == 3.0


def choose_differently(*choices: str) -> Any:
    import hcomm

    return attempt(hcomm.all_reduce, np.ones(1000), algorithm=choices[hcomm.rank()])


@pytest.mark.parametrize("choices", [("ring", "star"), ("torus2d(grid=1x2)", "torus2d(grid=2x1)")])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_that_choose_differently_find_out(job: Any, transport: str, choices: tuple[str, str]) -> None:
    for failure in job(2, choose_differently, args=choices, transport=transport):
        assert failure.kind == "CollectiveMismatch"
        assert all(f"with algorithm '{choice}'" in failure.text for choice in choices), failure.text


def a_group_of_a_name() -> list[float]:
    import hcomm

    group = hcomm.new_group([0, 1, 2], algorithm="recursive:0-1KB;ring:1KB-max")
    gathered = hcomm.all_gather(np.array([hcomm.rank() + 1.0]), group=group)
    reduced = hcomm.all_reduce(np.ones(1), group=group)  # has no algorithm `recursive`, so the table chooses
    return [*gathered.tolist(), float(reduced[0])]


def test_a_group_takes_names_where_operations_have_them(job: Any) -> None:
    assert job(3, a_group_of_a_name) == [[1.0, 2.0, 3.0, 3.0]] * 3


def own_algorithm() -> list[float]:
    import hcomm

    @hcomm.algorithm("all_reduce", name="Mine")
    def mine(p: hcomm.Builder) -> None:
        if p.rank:
            p.send(0, p.output())
            p.recv(0, p.output())
        else:
            for r in p.ranks[1:]:
                p.recv_reduce(r, p.output())
            p.finish(p.output())
            for r in p.ranks[1:]:
                p.send(r, p.output())

    hcomm.init()
    group = hcomm.new_group([0, 1, 2], algorithm="Mine")
    found = [
        hcomm.all_reduce(np.full(10, hcomm.rank() + 1.0), "avg", algorithm="Mine"),
        hcomm.all_reduce(np.full(10, hcomm.rank() + 1.0), group=group),
        hcomm.all_reduce(np.full(10, hcomm.rank() + 1.0)),
    ]
    hcomm.finalize()
    return [float(v[0]) for v in found]


def test_ones_own_algorithm_by_call_group_and_setting(job: Any) -> None:
    env = {"HCOMM_ALLREDUCE_ALGO": "Mine"}
    assert job(3, own_algorithm, init=False, env=env) == [[2.0, 6.0, 6.0]] * 3


def calls_again() -> tuple[int, int, int]:
    import hcomm

    planner = hcomm.default_communicator()._planner
    built = []
    for _ in range(3):
        for operation in OPERATIONS:
            called(operation, 1000)
        built.append(planner.built)
    return tuple(built)


def test_second_calls_build_nothing(job: Any) -> None:
    for first, second, third in job(2, calls_again):
        assert first == second == third
        assert first <= 2 * len(OPERATIONS)
