"""all_reduce on ordinary tensors takes a short way from its second call on; it must see what the long way sees."""

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


def test_the_second_call_sees_type_length_strides_and_signs(job: Job) -> None:
    expected: list[list[float]] = []
    for _ in range(3):
        expected += [[3] * 6] * 10
        expected += [[1, 0] * 6]  # rank 0 shows its own neighbours; see below for rank 1
        expected += [[3], [-3], [1] * 6, [6, 8, 10, 12, 14, 16]]
    first, second = job(2, _every_kind_of_tensor)
    assert first == expected
    assert second == [[1, 1] * 6 if row == [1, 0] * 6 else row for row in expected]


def _refusals() -> list[str]:
    import torch

    import hcomm

    hcomm.all_reduce(torch.ones(4))
    said = []
    for tensor, op in (
        (torch.ones(4, device="meta"), "sum"),
        (torch.ones(4), "median"),
        (torch.ones(4), None),
        (torch.ones(4), 3),
        (torch.ones(2, 2).to_sparse(), "sum"),
    ):
        try:
            hcomm.all_reduce(tensor, op)  # type: ignore[arg-type]
        except hcomm.HcommError as error:
            said.append(type(error).__name__)
    return said


def test_what_cannot_be_served_is_refused_after_a_call_that_was(job: Job) -> None:
    operator = "UnsupportedOperator"
    said = ["UnsupportedBuffer", operator, operator, operator, "UnsupportedBuffer"]
    assert job(2, _refusals) == [said, said]
