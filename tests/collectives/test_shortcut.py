"""Collectives on ordinary tensors take a short way from their second call on; it must see what the long way sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Job = Callable[..., list[Any]]


def _every_kind_of_tensor() -> list[Any]:
    import torch

    import hcomm

    comm = hcomm.new_group(list(range(hcomm.world_size())))
    rank = hcomm.rank()
    results: list[Any] = []

    def note(tensor: Any) -> None:
        results.append(tensor.detach().resolve_neg().flatten().tolist())

    for _ in range(3):
        for dtype in (torch.float32, torch.int32, torch.uint8, torch.bfloat16, torch.float64):
            tensor = torch.full((2, 3), rank + 1, dtype=dtype)
            assert hcomm.all_reduce(tensor) is tensor
            note(tensor)
            note(comm.all_reduce(tensor, "max"))
        # The same number of elements, but strided: its neighbours must stay as they are.
        wide = torch.zeros(6, 2) + rank
        hcomm.all_reduce(wide[:, 0])
        note(wide)
        # One element is contiguous whatever its strides, and may still be lazily negated.
        one = torch.tensor([float(rank + 1)])
        hcomm.all_reduce(one)
        note(one)
        negated = torch.tensor([complex(0, rank + 1)]).conj().imag
        hcomm.all_reduce(negated)
        note(negated)
        weights = torch.nn.Parameter(torch.full((6,), float(rank)))
        hcomm.all_reduce(weights)
        note(weights)
        part = torch.arange(12.0)[3:9]
        hcomm.all_reduce(part)
        note(part)
        hcomm.all_reduce(torch.empty(0))
    return results


def _every_operation() -> dict[str, int]:
    """Calls of each kind, three times over, with values by hand; how often a plan was looked up in the last round."""
    import torch

    import hcomm

    comm = hcomm.new_group(list(range(hcomm.world_size())))
    rank = hcomm.rank()
    looked_up: list[str] = []
    plan = comm._plan

    def counted(signature: Any) -> Any:
        looked_up.append(signature.operation)
        return plan(signature)

    comm._plan = counted  # type: ignore[method-assign]

    def same(found: Any, *expected: float) -> None:
        assert found.flatten().tolist() == list(expected)

    for turn in range(3):
        looked_up.clear()
        for dtype in (torch.float32, torch.int64, torch.bfloat16):
            ten = 10 * rank + turn  # 0, 1, 2 on rank 0; 10, 11, 12 on rank 1
            tensor = torch.tensor([[1, 2], [3, 4]], dtype=dtype) + ten
            own = tensor.clone()
            out = torch.zeros(4, 2, dtype=dtype)
            both = [1 + turn, 2 + turn, 3 + turn, 4 + turn, 11 + turn, 12 + turn, 13 + turn, 14 + turn]
            assert comm.all_gather(tensor, out) is out
            same(out, *both)
            cube = torch.zeros(2, 2, 2, dtype=dtype)
            assert comm.all_gather(tensor, out=cube) is cube
            same(cube, *both)
            flat = torch.zeros(2, dtype=dtype)
            same(comm.all_gather(torch.tensor(1 + ten, dtype=dtype), flat), 1 + turn, 11 + turn)
            # The input may be this rank's own block of the output, and nothing else of it.
            cube = torch.zeros(2, 2, 2, dtype=dtype)
            cube[rank] = tensor
            same(comm.all_gather(cube[rank], cube), *both)
            block = torch.zeros(1, 2, dtype=dtype)
            assert comm.reduce_scatter(tensor, block) is block
            same(block, 12 + 4 * rank + 2 * turn, 14 + 4 * rank + 2 * turn)
            row = torch.zeros(2, dtype=dtype)
            assert comm.reduce_scatter(tensor, row, op="max") is row
            same(row, 11 + 2 * rank + turn, 12 + 2 * rank + turn)
            out = torch.zeros(2, 2, dtype=dtype)
            assert comm.all_to_all(tensor, out) is out
            same(out, *(part + 2 * rank + turn for part in (1, 2, 11, 12)))
            for root in range(2):
                sent = tensor.clone()
                assert comm.broadcast(sent, root) is sent
                same(sent, *(part + 10 * root + turn for part in (1, 2, 3, 4)))
                added = tensor.clone()
                assert comm.reduce(added, dst=root) is added
                sums = [part + 2 * turn for part in (12, 14, 16, 18)]
                same(added, *(sums if rank == root else own.flatten().tolist()))
                place = torch.zeros(4, 2, dtype=dtype) if rank == root else None
                assert comm.gather(tensor, root, out=place) is place
                if place is not None:
                    same(place, *both)
                block = torch.zeros(1, 2, dtype=dtype)
                assert comm.scatter(tensor if rank == root else None, root, out=block) is block
                first = 1 + 2 * rank + 10 * root + turn
                same(block, first, first + 1)
            assert torch.equal(tensor, own)
            assert comm.barrier() is None
    return {name: looked_up.count(name) for name in set(looked_up)}


def _values() -> tuple[list[Any], dict[str, int]]:
    return _every_kind_of_tensor(), _every_operation()


def test_the_second_call_sees_type_length_strides_and_signs(job: Job) -> None:
    expected: list[list[float]] = []
    for _ in range(3):
        expected += [[3] * 6] * 10
        expected += [[1, 0] * 6]  # rank 0 shows its own neighbours; see below for rank 1
        expected += [[3], [-3], [1] * 6, [6, 8, 10, 12, 14, 16]]
    (first, looked_up), (second, looked_up_too) = job(2, _values)
    assert first == expected
    assert looked_up == looked_up_too == {}, "ordinary calls of known shapes took the general way"
    assert second == [[1, 1] * 6 if row == [1, 0] * 6 else row for row in expected]


def _refusals() -> list[str]:
    """What is said of calls that cannot be served, after ones like them that could."""
    import numpy as np
    import torch

    import hcomm

    rank = hcomm.rank()
    big, small = torch.arange(8.0), torch.ones(4)
    own = 4 * rank
    for _ in range(2):
        hcomm.all_reduce(torch.ones(4))
        hcomm.broadcast(torch.ones(4), 1)
        hcomm.reduce(torch.ones(4), 1)
        hcomm.all_gather(small, big)
        hcomm.all_gather(big[own : own + 4], big)
        hcomm.reduce_scatter(big, small)
        hcomm.all_to_all(big, torch.empty(8))
        hcomm.gather(small, 0, out=torch.empty(8) if rank == 0 else None)
        hcomm.scatter(big if rank == 0 else None, 0, out=torch.empty(4))
        hcomm.barrier()
    fixed = np.zeros(8, np.float32)
    fixed.flags.writeable = False
    calls: list[Callable[[], Any]] = [
        lambda: hcomm.all_reduce(torch.ones(4, device="meta")),
        lambda: hcomm.all_reduce(torch.ones(4), "median"),
        lambda: hcomm.all_reduce(torch.ones(4), None),  # type: ignore[arg-type]
        lambda: hcomm.all_reduce(torch.ones(4), 3),  # type: ignore[arg-type]
        lambda: hcomm.all_reduce(torch.ones(2, 2).to_sparse()),
        lambda: hcomm.broadcast(torch.ones(4), 2),
        lambda: hcomm.broadcast(torch.ones(4), -1),
        lambda: hcomm.broadcast(torch.ones(4), "1"),  # type: ignore[arg-type]
        lambda: hcomm.reduce(torch.ones(4), 1, op=1),  # type: ignore[arg-type]
        lambda: hcomm.all_gather(small, torch.empty(2, 2, 2)),
        lambda: hcomm.all_gather(small.view(2, 2), big),
        lambda: hcomm.all_gather(small, torch.empty(8, dtype=torch.int32)),
        lambda: hcomm.all_gather(small, torch.empty(1).expand(8)),
        lambda: hcomm.all_gather(small, fixed),
        lambda: hcomm.all_gather(small, out=7),
        lambda: hcomm.all_gather(big[2:6], big),
        lambda: hcomm.all_gather(big[4 - own : 8 - own], big),
        lambda: hcomm.reduce_scatter(big, big[own : own + 4]),
        lambda: hcomm.reduce_scatter(big, torch.empty(2, 2)),
        lambda: hcomm.all_to_all(big, big),
        lambda: hcomm.gather(small, 0, out=torch.empty(4) if rank == 0 else torch.empty(8)),
        lambda: hcomm.scatter(None, 0, out=None),
    ]
    said = []
    for call in calls:
        try:
            call()
        except (hcomm.HcommError, ValueError) as error:
            said.append(type(error).__name__)
        else:
            said.append("served")
    # Served, if by the general way: strided, lazily negated and conjugated tensors of shapes that are known.
    negated = torch.tensor([complex(0, rank + 1)] * 4).conj().imag
    strided = torch.zeros(8, 2)[:, 0]
    hcomm.all_gather(negated, strided)
    said.append(str(strided.tolist()))
    ones = [torch.tensor([complex(0, rank + 1)]) for _ in range(2)]
    for one in (ones[0], ones[1].conj()):
        said.append(str(hcomm.all_gather(one, torch.empty(2, dtype=torch.complex64)).imag.tolist()))
    parts = [torch.empty(4), torch.empty(4)]
    hcomm.all_gather(torch.full((4,), rank + 1.0), parts)
    said.append(str([part[0].item() for part in parts]))
    try:
        hcomm.all_gather(small, big) if rank == 0 else hcomm.reduce_scatter(big, small)
    except hcomm.CollectiveMismatch as error:
        said.append(str(error).partition(": ")[2].partition(". Every")[0])
    try:
        hcomm.all_gather(small, big)
    except hcomm.BrokenCommunicator:
        said.append("broken")
    return said


def test_what_cannot_be_served_is_refused_after_a_call_that_was(job: Job) -> None:
    buffer, operator, value = "UnsupportedBuffer", "UnsupportedOperator", "ValueError"
    expected = [buffer, operator, operator, operator, buffer, value, value, value, operator]
    expected += [value, value, value, buffer, buffer, buffer, value, value, value, value, value, value, value]
    expected += [
        "[-1.0, -1.0, -1.0, -1.0, -2.0, -2.0, -2.0, -2.0]",
        "[1.0, 2.0]",
        "[-1.0, -2.0]",
        "[1.0, 2.0]",
    ]
    for said in job(2, _refusals):
        assert said[:26] == expected
        assert "rank 0: all_gather(float32, " in said[26]
        assert "rank 1: reduce_scatter(float32, 8 elements, sum) at " in said[26]
        assert said[27:] == ["broken"]
