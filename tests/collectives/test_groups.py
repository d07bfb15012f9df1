"""Groups: order, settings, roots in group ranks, nesting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.inside import attempt


def every_operation_in_a_group(ranks: list[int], settings: dict[str, str]) -> Any:
    import hcomm

    me = hcomm.rank()
    group = hcomm.new_group(ranks, **settings) if me in ranks else None
    found: dict[str, Any] = {}
    if group is not None:
        size, root = len(ranks), len(ranks) - 1
        blocks = np.arange(2 * size) + 100 * me
        found = {
            "rank": hcomm.rank(group),
            "size": hcomm.world_size(group),
            "backend": hcomm.get_backend_name(group),
            "sum": hcomm.all_reduce(np.array([10**me]), group=group).tolist(),
            "broadcast": hcomm.broadcast(np.array([me]), src=root, group=group).tolist(),
            "gathered": hcomm.all_gather(np.array([me]), group=group).tolist(),
            "scattered": hcomm.reduce_scatter(blocks, group=group).tolist(),
            "exchanged": hcomm.all_to_all(blocks, group=group).tolist(),
        }
        to_root = hcomm.gather(np.array([me]), dst=root, group=group)
        found["to_root"] = None if to_root is None else to_root.tolist()
        reduced = hcomm.reduce(np.array([me]), dst=root, op="max", group=group)
        found["reduced"] = reduced.tolist() if hcomm.rank(group) == root else None
        group.barrier()
    hcomm.barrier()
    return found


@pytest.mark.parametrize(
    "settings", [{}, {"transport": "tcp"}, {"transport": "shm"}], ids=["auto", "tcp", "shm"]
)
@pytest.mark.parametrize("ranks", [[3, 0, 2], [1, 3], [2], [3, 2, 1, 0]], ids=str)
def test_every_operation_in_a_group(job: Any, ranks: list[int], settings: dict[str, str]) -> None:
    """Ranks of a group count in the order given to new_group."""
    answers = job(4, every_operation_in_a_group, args=(ranks, settings))
    size, last = len(ranks), ranks[-1]
    for position, member in enumerate(ranks):
        found = answers[member]
        assert found["rank"] == position
        assert found["size"] == size
        assert found["backend"] == ("self" if size == 1 else settings.get("transport", "shm"))
        assert found["sum"] == [sum(10**r for r in ranks)]
        assert found["broadcast"] == [last]
        assert found["gathered"] == ranks
        assert found["scattered"] == [size * (2 * position + k) + 100 * sum(ranks) for k in (0, 1)]
        assert found["exchanged"] == [2 * position + k + 100 * r for r in ranks for k in (0, 1)]
        assert found["to_root"] == (ranks if position == size - 1 else None)
        assert found["reduced"] == ([max(ranks)] if position == size - 1 else None)
    assert all(answers[r] == {} for r in range(4) if r not in ranks)


def methods() -> dict[str, Any]:
    """The same operations as methods of a Communicator."""
    import hcomm

    comm = hcomm.new_group([1, 0])
    me = hcomm.rank()
    x = np.array([me, me + 1])
    work = comm.send(np.array([7 + me]), dst=1 - comm.rank, tag=4)
    incoming = np.zeros(1, dtype=np.int64)
    comm.recv(incoming, src=1 - comm.rank, tag=4)
    work.wait()
    handle = comm.all_reduce_async(np.array([me + 1.0]), op="prod")
    handle.wait()
    return {
        "sum": comm.all_reduce(x.copy()).tolist(),
        "gathered": comm.all_gather(x).tolist(),
        "exchanged": comm.all_to_all(x).tolist(),
        "message": incoming.tolist(),
        "product": handle.result().tolist(),
    }


def test_methods_of_a_communicator(job: Any) -> None:
    answers = job(2, methods)
    for me, found in enumerate(answers):
        position = 1 - me  # the group is [1, 0]
        assert found["sum"] == [1, 3]
        assert found["gathered"] == [1, 2, 0, 1]
        assert found["exchanged"] == [1 + position, 0 + position]
        assert found["message"] == [7 + (1 - me)]
        assert found["product"] == [2.0]


def forced_algorithm(name: str) -> Any:
    import hcomm

    return attempt(lambda: hcomm.all_reduce(np.ones(3), group=hcomm.new_group([0, 1], algorithm=name)))


def test_an_unknown_algorithm_is_refused_with_the_known_ones(job: Any) -> None:
    for failure in job(2, forced_algorithm, args=("butterfly",)):
        assert failure.kind == "UnknownAlgorithm"
        assert "butterfly" in failure.text
        assert "ring" in failure.text


def too_large_for_a_window() -> Any:
    import hcomm

    group = hcomm.new_group([0, 1], algorithm="oneshot", buffer_size="64KB")
    failure = attempt(hcomm.all_reduce, np.ones(1_000_000), group=group)
    return failure, float(hcomm.all_reduce(np.ones(1), group=group)[0])


def test_a_forced_algorithm_that_cannot_run_says_why(job: Any) -> None:
    for failure, total in job(2, too_large_for_a_window, transport="shm"):
        assert failure.kind == "UnknownAlgorithm"
        assert "oneshot" in failure.text
        assert "window" in failure.text
        assert total == 2.0


def two_algorithms_in_the_environment() -> list[float]:
    import hcomm

    return [float(hcomm.all_reduce(np.full(n, hcomm.rank() + 1.0)).sum()) for n in (1, 1000)]


@pytest.mark.parametrize("variable", ["HCOMM_ALLREDUCE_ALGO", "HCCL_ALLREDUCE_ALGO"])
def test_the_environment_forces_an_algorithm(job: Any, variable: str) -> None:
    env = {variable: "ring"}
    assert job(3, two_algorithms_in_the_environment, env=env) == [[6.0, 6000.0]] * 3


def many_groups() -> list[float]:
    import hcomm

    me = hcomm.rank()
    sums = []
    for turn in range(12):
        ranks = [(turn + k) % 4 for k in range(2 + turn % 3)]
        if me in ranks:
            sums.append(float(hcomm.all_reduce(np.array([10.0**me]), group=hcomm.new_group(ranks))[0]))
    return sums


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_overlapping_groups_made_in_turn(job: Any, transport: str) -> None:
    turns = [[(turn + k) % 4 for k in range(2 + turn % 3)] for turn in range(12)]
    for me, sums in enumerate(job(4, many_groups, transport=transport)):
        assert sums == [float(sum(10**r for r in ranks)) for ranks in turns if me in ranks]
