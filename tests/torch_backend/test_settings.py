"""Settings of a group, operators and errors; in this process, without ranks."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import hcomm
import hcomm.torch
from hcomm.torch import core, errors, operators
from hcomm.torch.options import checked, settings_for

TORCHS = dist.distributed_c10d.default_pg_timeout


@pytest.mark.parametrize(
    ("option", "given", "environment", "operation", "arrival"),
    [
        (None, TORCHS, {}, 1800, 1800),
        (None, TORCHS, {"HCOMM_TIMEOUT": "7", "HCOMM_INIT_TIMEOUT": "8"}, 7, 8),
        (None, timedelta(seconds=9), {"HCOMM_TIMEOUT": "7", "HCOMM_INIT_TIMEOUT": "8"}, 9, 9),
        (5, timedelta(seconds=9), {"HCOMM_TIMEOUT": "7"}, 5, 9),
        (timedelta(milliseconds=1500), TORCHS, {}, 1.5, 1800),
    ],
)
def test_which_time_limit_holds(
    monkeypatch: pytest.MonkeyPatch,
    option: float | timedelta | None,
    given: timedelta,
    environment: dict[str, str],
    operation: float,
    arrival: float,
) -> None:
    for name in ("HCOMM_TIMEOUT", "HCOMM_INIT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = settings_for(hcomm.torch.Options(timeout=option), given)
    assert settings.seconds("TIMEOUT") == operation
    assert settings.seconds("INIT_TIMEOUT") == arrival


def test_options_are_checked() -> None:
    assert checked(None) == hcomm.torch.Options()
    with pytest.raises(TypeError, match=r"hcomm\.torch\.Options"):
        checked({"transport": "tcp"})
    with pytest.raises(TypeError, match="priority"):
        checked(hcomm.torch.Options(priority="high"))  # type: ignore[arg-type]
    with pytest.raises(hcomm.HcommError, match=r"Options\(transport\)"):
        settings_for(hcomm.torch.Options(transport="rdma"), TORCHS)
    with pytest.raises(hcomm.HcommError, match=r"Options\(timeout\)"):
        settings_for(hcomm.torch.Options(timeout=-1), TORCHS)
    settings = settings_for(hcomm.torch.Options(transport="tcp", buffer_size="2MB"), TORCHS)
    assert (settings.text("TRANSPORT"), settings.size("BUFFER_SIZE")) == ("tcp", 2 << 20)


def test_operators_have_names() -> None:
    assert operators.name_of(dist.ReduceOp.MAX) == "max"
    assert operators.name_of(dist.ReduceOp(dist.ReduceOp.BXOR)) == "bxor"
    premultiplied = dist._make_nccl_premul_sum(0.25)
    assert operators.name_of(premultiplied) == "premul_sum"
    assert operators.factor_of(premultiplied) == 0.25
    assert operators.scaled(torch.tensor([8.0], dtype=torch.bfloat16), 0.25).dtype is torch.bfloat16
    with pytest.raises(hcomm.UnsupportedOperator, match="factor"):
        operators.factor_of(dist.ReduceOp.PREMUL_SUM)


def test_errors_are_of_both_families() -> None:
    lost = errors.translated(hcomm.PeerLost("rank 2 died", (2,)))
    assert isinstance(lost, hcomm.PeerLost)
    assert isinstance(lost, dist.DistNetworkError)
    assert (str(lost), lost.ranks) == ("rank 2 died", (2,))
    assert errors.translated(lost) is lost
    mismatch = errors.translated(hcomm.CollectiveMismatch("differs"))
    assert isinstance(mismatch, dist.DistBackendError)
    assert type(mismatch).__name__ == "CollectiveMismatch"
    argument = hcomm.UnsupportedBuffer("a tensor on device meta")
    assert errors.translated(argument) is argument


def test_accelerator_tensors_are_told_where_to_go() -> None:
    refusal = hcomm.UnsupportedBuffer("a tensor on device cuda:0: pass tensor.cpu(); hcomm moves CPU memory")
    text = str(core._explained(refusal))
    assert "cuda:0" in text
    assert "tensor.cpu()" in text
    assert "new_group(backend='nccl')" in text


def test_a_group_of_another_backend_is_refused() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="gloo"):
            hcomm.torch.communicator()
        with pytest.raises(ValueError, match="gloo"):
            hcomm.torch.monitored_barrier(timeout=1)
    finally:
        dist.destroy_process_group()


def test_a_world_of_one() -> None:
    dist.init_process_group("hcomm", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert tensor.tolist() == [1, 1, 1]
        assert dist.all_reduce(tensor, async_op=True).get_future().wait()[0] is tensor
    finally:
        dist.destroy_process_group()
