"""Arguments are checked before anything is sent, and calls are described to the core as all ranks expect them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from hcomm import UnknownAlgorithm, UnsupportedBuffer, UnsupportedOperator
from hcomm.config import load


def _sizes(plan: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(plan[key] for key in ("count", "n_in", "n_out", "bounds_in", "bounds_out"))


@pytest.mark.parametrize(
    ("dtype", "op"),
    [("bool", "avg"), ("complex64", "min"), ("complex128", "max"), ("complex64", "bor")]
    + [
        (dtype, op)
        for dtype in ("float16", "bfloat16", "float32", "float64")
        for op in ("band", "bor", "bxor")
    ],
)
def test_operators_without_meaning(fake: ModuleType, dtype: str, op: str) -> None:
    comm, native = fake.communicator()
    tensor = torch.zeros(3, dtype=getattr(torch, dtype))
    for call in (
        comm.all_reduce,
        lambda t, op: comm.reduce(t, 0, op),
        lambda t, op: comm.reduce_scatter(t, op=op),
    ):
        with pytest.raises(
            UnsupportedOperator, match=f"operator '{op}' has no meaning for {dtype}; accepted: sum"
        ):
            call(tensor, op)
    assert native.runs == []


def test_unknown_operators_list_the_known() -> None:
    from hcomm import operators

    with pytest.raises(
        UnsupportedOperator, match="unknown reduction operator 'mean'; known: sum, avg, prod, min"
    ):
        operators.check("mean", "float32")


@pytest.mark.parametrize("bad", [-1, 3, 99])
def test_roots_and_peers_out_of_range(fake: ModuleType, bad: int) -> None:
    comm, _ = fake.communicator()
    tensor = torch.zeros(3)
    calls = [
        ("src", lambda: comm.broadcast(tensor, bad)),
        ("dst", lambda: comm.reduce(tensor, bad)),
        ("dst", lambda: comm.gather(tensor, bad)),
        ("src", lambda: comm.scatter(tensor, bad)),
        ("dst", lambda: comm.send(tensor, bad)),
        ("src", lambda: comm.recv(tensor, bad)),
    ]
    for name, call in calls:
        with pytest.raises(ValueError, match=rf"{name}={bad} is not a rank of this communicator: 0\.\.2"):
            call()


def test_bad_tags(fake: ModuleType) -> None:
    comm, native = fake.communicator(rank=1)
    for tag in (-1, 2**31, 1.5):
        with pytest.raises(ValueError, match=r"tag must be an integer in 0\.\.2147483647"):
            comm.recv(torch.zeros(1), 0, tag)
    assert native.messages == []


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_timeouts_are_positive(fake: ModuleType, timeout: float) -> None:
    comm, _ = fake.communicator()
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds"):
        comm.all_reduce(torch.zeros(1), timeout=timeout)


def test_all_reduce_is_in_place_and_its_second_call_plans_nothing(fake: ModuleType) -> None:
    comm, native = fake.communicator()
    tensor = torch.ones(2, 3)
    assert comm.all_reduce(tensor) is tensor
    assert comm.all_reduce(tensor) is tensor
    assert comm.all_reduce(tensor, "max") is tensor
    assert [plan["op"] for plan in native.plans] == [0, 4]
    assert _sizes(native.plans[0]) == (6, 6, 6, [], [])
    assert all(run[1] == run[2] == tensor.data_ptr() for run in native.runs)


def test_the_fast_way_sees_strides_and_lazy_signs(fake: ModuleType) -> None:
    comm, native = fake.communicator()
    comm.all_reduce(torch.ones(2))
    comm.all_reduce(torch.ones(1))
    column = torch.ones(2, 2)[:, 0]
    comm.all_reduce(column)
    assert native.runs[-1][1] != column.data_ptr()
    negative = torch.tensor([1 + 2j]).conj().imag
    comm.all_reduce(negative)
    assert native.runs[-1][1] != negative.data_ptr()


def test_numpy_and_per_call_timeout(fake: ModuleType) -> None:
    comm, native = fake.communicator()
    array = np.ones(4, dtype=np.float64)
    assert comm.all_reduce(array, "avg", timeout=2) is array
    assert native.runs[-1][1:] == (array.ctypes.data, array.ctypes.data, 2.0)


def test_reduce_receives_on_the_root_only(fake: ModuleType) -> None:
    comm, native = fake.communicator(rank=1)
    source = np.ones(4)
    source.flags.writeable = False
    comm.reduce(source, dst=0)
    assert _sizes(native.plans[-1]) == (4, 4, 0, [], [])
    assert native.runs[-1][2] == 0
    with pytest.raises(UnsupportedBuffer, match="read-only"):
        comm.reduce(source, dst=1)


def test_all_gather_shapes(fake: ModuleType) -> None:
    comm, native = fake.communicator(rank=1)
    block = torch.zeros(4, 2)
    assert comm.all_gather(block).shape == (12, 2)
    assert _sizes(native.plans[-1]) == (24, 8, 24, [], [0, 8, 16, 24])
    assert comm.all_gather(block, torch.zeros(3, 4, 2)).shape == (3, 4, 2)
    assert comm.all_gather(torch.tensor(1.0)).shape == (3,)
    assert comm.all_gather(torch.zeros(1, 0, 2)).shape == (3, 0, 2)
    assert comm.all_gather(torch.zeros(2, 2), sizes=[1, 2, 3]).shape == (6, 2)
    assert _sizes(native.plans[-1]) == (12, 4, 12, [], [0, 2, 6, 12])
    assert native.plans[-1]["agreed"] != 0
    outs = [torch.zeros(n) for n in (1, 2, 3)]
    assert comm.all_gather(torch.zeros(2), outs) is outs
    assert len(native.plans) == 5


def test_all_gather_takes_its_own_block_of_the_output(fake: ModuleType) -> None:
    comm, native = fake.communicator(rank=1)
    out = torch.zeros(3, 4)
    comm.all_gather(out[1], out)
    assert native.runs[-1][1] == out.data_ptr() + 16
    with pytest.raises(ValueError, match="all_gather: out shares memory with the input"):
        comm.all_gather(out[0], out)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.zeros(11), r"out has shape \(11,\), expected \(12,\) or \(3, 4\)"),
        (torch.zeros(12, dtype=torch.float64), "out has element type float64, expected float32"),
        ([torch.zeros(4)] * 2, "out has 2 tensors, expected 3"),
        ([torch.zeros(4), torch.zeros(3), torch.zeros(4)], r"out\[1\] has shape \(3,\), expected \(4,\)"),
        ([torch.zeros(4)] * 3, r"out\[0\] and out\[1\] share memory"),
        ([], "out is empty"),
    ],
)
def test_all_gather_outputs_that_do_not_fit(fake: ModuleType, out: Any, message: str) -> None:
    comm, native = fake.communicator(rank=1)
    with pytest.raises(ValueError, match=message):
        comm.all_gather(torch.zeros(4), out)
    assert native.runs == []


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([1, 2], "sizes must be 3 lengths"),
        ([4, 3, 4], r"sizes\[1\] is 3, but this rank's tensor has shape \(4,\)"),
        ([4, 4, -1], "sizes must be 3 lengths"),
    ],
)
def test_all_gather_sizes_that_do_not_fit(fake: ModuleType, sizes: list[int], message: str) -> None:
    comm, _ = fake.communicator(rank=1)
    with pytest.raises(ValueError, match=message):
        comm.all_gather(torch.zeros(4), sizes=sizes)


def test_list_outputs_are_dealt_out(fake: ModuleType) -> None:
    comm, native = fake.communicator(rank=1)

    def fill(plan: Any, in_ptr: int, out_ptr: int) -> None:
        import ctypes

        values = (ctypes.c_float * 6).from_address(out_ptr)
        values[:] = range(6)

    native.on_run = fill
    outs = [torch.zeros(1), torch.zeros(2), np.zeros(3, dtype=np.float32)]
    comm.all_gather(torch.zeros(2), outs)
    assert [out.tolist() for out in outs] == [[0], [1, 2], [3, 4, 5]]


def test_reduce_scatter_shapes(fake: ModuleType) -> None:
    comm, native = fake.communicator(rank=1)
    assert comm.reduce_scatter(torch.zeros(6, 2)).shape == (2, 2)
    assert _sizes(native.plans[-1]) == (12, 12, 4, [0, 4, 8, 12], [])
    assert comm.reduce_scatter(torch.zeros(6), sizes=[3, 2, 1]).shape == (2,)
    assert comm.reduce_scatter([torch.zeros(3), torch.zeros(2), torch.zeros(1)]).shape == (2,)
    assert comm.reduce_scatter(torch.zeros(3, 5), torch.zeros(5)).shape == (5,)
    with pytest.raises(
        ValueError, match=r"dimension 0 of shape \(7,\) does not divide evenly by the 3 ranks"
    ):
        comm.reduce_scatter(torch.zeros(7))
    with pytest.raises(ValueError, match="a 0-dimensional tensor cannot be divided among 3 ranks"):
        comm.reduce_scatter(torch.tensor(1.0))
    with pytest.raises(ValueError, match="add up to 7, but dimension 0"):
        comm.reduce_scatter(torch.zeros(6), sizes=[3, 2, 2])
    whole = torch.zeros(6)
    with pytest.raises(ValueError, match="reduce_scatter: out shares memory"):
        comm.reduce_scatter(whole, whole[:2])


def test_all_to_all_shapes(fake: ModuleType) -> None:
    comm, native = fake.communicator(rank=0)
    assert comm.all_to_all(torch.zeros(6, 2)).shape == (6, 2)
    assert _sizes(native.plans[-1]) == (12, 12, 12, [0, 4, 8, 12], [0, 4, 8, 12])
    got = comm.all_to_all(torch.zeros(2), input_sizes=[0, 2, 0], output_sizes=[0, 1, 0])
    assert got.shape == (1,)
    assert _sizes(native.plans[-1]) == (0, 2, 1, [0, 0, 2, 2], [0, 0, 1, 1])
    assert native.plans[-1]["agreed"] != 0
    lists = comm.all_to_all([torch.zeros(2)] * 3)
    assert [tuple(tensor.shape) for tensor in lists] == [(2,)] * 3
    with pytest.raises(ValueError, match="needs both input_sizes and output_sizes"):
        comm.all_to_all(torch.zeros(2), input_sizes=[0, 2, 0])
    with pytest.raises(ValueError, match="needs out="):
        comm.all_to_all([torch.zeros(2), torch.zeros(1), torch.zeros(1)])
    same = torch.zeros(6)
    with pytest.raises(ValueError, match="all_to_all: out shares memory"):
        comm.all_to_all(same, same)


def test_gather_and_scatter(fake: ModuleType) -> None:
    root, native = fake.communicator(rank=0)
    assert root.gather(torch.zeros(2)).shape == (6,)
    assert _sizes(native.plans[-1]) == (6, 2, 6, [], [0, 2, 4, 6])
    assert root.scatter(torch.zeros(6)).shape == (2,)
    assert _sizes(native.plans[-1]) == (6, 6, 2, [0, 2, 4, 6], [])
    assert root.scatter([torch.zeros(2)] * 3).shape == (2,)

    other, native = fake.communicator(rank=1)
    assert other.gather(torch.zeros(2)) is None
    assert _sizes(native.plans[-1]) == (6, 2, 0, [], [0, 2, 4, 6])
    assert other.scatter(torch.zeros(6)).shape == (2,)
    out = torch.zeros(2)
    assert other.scatter(out=out) is out
    assert _sizes(native.plans[-1]) == (6, 0, 2, [0, 2, 4, 6], [])
    assert other.scatter(out=torch.zeros(3), sizes=[1, 3, 2]).shape == (3,)
    with pytest.raises(ValueError, match=r"out is for the root \(rank 0\) only"):
        other.gather(torch.zeros(2), out=torch.zeros(6))
    with pytest.raises(ValueError, match="scatter needs the tensor on the root"):
        other.scatter()


def test_barrier_and_messages(fake: ModuleType) -> None:
    comm, native = fake.communicator(rank=0)
    assert comm.barrier() is None
    assert native.plans[-1]["operation"] == 8
    tensor = torch.zeros(3, dtype=torch.int16)
    work = comm.send(tensor, 2, tag=7, timeout=4)
    assert native.messages == [("send", 2, 7, tensor.data_ptr(), 6, 2, 4.0, native.messages[0][-1])]
    assert "test_arguments.py:" in native.messages[0][-1]
    native.ops[-1].finish()
    assert work.wait() is None
    received = comm.recv_async(tensor, tag=7)
    assert native.messages[-1][:3] == ("recv", -1, 7)
    with pytest.raises(ValueError, match="the source is known when"):
        _ = received.source
    native.ops[-1].finish(source=2)
    assert received.wait() is tensor
    assert received.source == 2


def test_groups(fake: ModuleType) -> None:
    comm, _ = fake.communicator(rank=0, size=4)
    group = comm.new_group([3, 0], timeout=7, name="pair")
    assert (group.ranks, group.size, group.rank, group.timeout, group.name) == ((3, 0), 2, 1, 7, "pair")
    for ranks, message in (
        ([], "needs at least one rank"),
        ([0, 0, 1], r"ranks \[0\] are listed more than once"),
        ([0, 9], r"ranks \[9\] are not in this communicator, whose ranks are 0\.\.3"),
        ([1, 2], r"rank 0 is not in \[1, 2\]: only members"),
    ):
        with pytest.raises(ValueError, match=message):
            comm.new_group(ranks)
    with pytest.raises(ValueError, match="transport='carrier pigeon' is not understood"):
        comm.new_group([0], transport="carrier pigeon")
    with pytest.raises(UnknownAlgorithm, match="no operation has an algorithm named 'magic'; known: "):
        comm.new_group([0], algorithm="magic")


@pytest.mark.parametrize(
    ("cliques", "name"),
    [(((0, 1, 2),), "shm"), (((0,), (1,), (2,)), "tcp"), (((0, 1), (2,)), "shm+tcp")],
)
def test_backend_names(fake: ModuleType, cliques: Any, name: str) -> None:
    comm, _ = fake.communicator(cliques=cliques)
    assert comm.backend_name == name
    assert fake.communicator(size=1)[0].backend_name == "self"


def test_links_and_the_warning_about_slow_ones(fake: ModuleType) -> None:
    how = {
        "cliques": ((0,), (1,), (2,)),
        "reasons": {1: "memfd: not permitted", 2: "another host"},
        "boot_ids": ["a", "a", "b"],
    }
    comm, _ = fake.communicator(**how)
    assert comm.links[1] == ("tcp", "memfd: not permitted")
    with pytest.warns(
        RuntimeWarning, match="uses TCP on its own host.*with rank 1: memfd: not permitted"
    ) as found:
        comm.warn_slow_links()
    assert len(found) == 1
    assert "another host" not in str(found[0].message)
    forced, _ = fake.communicator(settings=load({"HCOMM_TRANSPORT": "tcp"}), **how)
    forced.warn_slow_links()
