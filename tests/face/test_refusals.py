"""Arguments and settings that are impossible are refused at once, in words of ours; what HCOMM_DEBUG tells."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import hcomm
from hcomm import ConfigError, InitError, LaunchError, UnsupportedBuffer, config
from hcomm.bootstrap.launcher import detect
from hcomm.bootstrap.store import torch_store_hint

ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"rank": 5, "world_size": 2}, "the arguments of init say rank 5 of 2.*rank must be in 0..1"),
    ({"rank": "0", "world_size": 2}, r"rank must be an integer, found '0' \(str\)"),
    ({"rank": 0, "world_size": 2.0}, "world_size must be an integer, found 2.0"),
    ({"rank": True, "world_size": 2}, "rank=True"),
    ({"rank": -1, "world_size": 2}, "rank=-1: it must be 0 or more"),
    ({"rank": 0, "world_size": 0}, "world_size=0: it must be 1 or more"),
    ({"rank": 0, "world_size": 2, "master_addr": "a", "master_port": "1"}, "master_port must be an integer"),
    ({"rank": 0, "world_size": 2, "master_addr": 7, "master_port": 1}, "master_addr must be a name"),
    ({"rank": 0, "world_size": 2, "master_addr": "a", "master_port": 70000}, "expected 0..65535"),
    ({"rank": 0, "world_size": 2}, "MASTER_ADDR and MASTER_PORT are missing"),
    ({"local_rank": 2, "local_size": 2}, r"local_rank=2 is outside 0\.\.1"),
    ({"local_size": 3}, "local_size=3 is more than world_size=1"),
]


@pytest.mark.parametrize(("arguments", "words"), ARGUMENTS)
def test_impossible_arguments_of_init(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        detect({}, **arguments)


@pytest.mark.parametrize("value", ["banana", "-1", "99999", "0,"])
def test_init_refuses_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HCOMM_VISIBLE_DEVICES", value)
    with pytest.raises(ConfigError, match="HCOMM_VISIBLE_DEVICES"):
        hcomm.init()


@pytest.mark.parametrize("value", ["1KB", "63KB", "2TB", "999999GB"])
def test_buffer_sizes_have_limits(value: str) -> None:
    with pytest.raises(ConfigError, match=f"HCOMM_BUFFER_SIZE='{value}'.*from 64KB to 1TB"):
        config.load({"HCOMM_BUFFER_SIZE": value})


def test_memory_that_the_system_refuses(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from hcomm import _native

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(_native, "Comm", refuse)
    with pytest.raises(InitError, match=r"rank 1: .* bytes \(HCOMM_BUFFER_SIZE is 65536\).*Cannot allocate"):
        fake.communicator(1, 2, config.load({"HCOMM_BUFFER_SIZE": "64KB"}))


@pytest.mark.parametrize("ranks", [["a"], [0.0], "01", None, 3, [None]])
def test_lists_that_are_none(fake: ModuleType, ranks: Any) -> None:
    comm, _ = fake.communicator()
    with pytest.raises(ValueError, match=r"ranks must be a list of ranks \(integers in 0..2\), found"):
        comm.new_group(ranks)


def test_timeouts_that_are_no_numbers(fake: ModuleType) -> None:
    comm, _ = fake.communicator()
    for call in (lambda: comm.barrier(timeout="5s"), lambda: comm.new_group([0], timeout="5s")):
        with pytest.raises(ValueError, match="timeout must be a positive number of seconds, not '5s'"):
            call()
    work = comm.all_reduce_async(torch.ones(1))
    for bad in (-1, "5s", float("nan")):
        with pytest.raises(ValueError, match="timeout must be a number of seconds, 0 or more, not"):
            work.wait(timeout=bad)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(fake: ModuleType, layout: Any) -> None:
    comm, _ = fake.communicator()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    with pytest.raises(UnsupportedBuffer, match="nested tensor"):
        comm.all_reduce(nested)


def test_a_torch_store_is_named_as_a_possible_holder_of_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_is = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch_is)
    assert "the store of torch.distributed" in torch_store_hint()
    torch_is.is_initialized = lambda: False
    assert torch_store_hint() == ""


@pytest.mark.parametrize("level", ["off", "warn", "info", "trace"])
def test_what_debug_tells(fake: ModuleType, capfd: pytest.CaptureFixture[str], level: str) -> None:
    cliques, reasons = ((0, 1), (2,)), {2: "ranks 0 and 2 are on different hosts (a, b)"}
    settings = config.load({"HCOMM_DEBUG": level})
    comm, _ = fake.communicator(0, 3, settings, cliques=cliques, reasons=reasons)
    comm.announce("torchrun")
    for _ in range(2):
        comm.all_reduce(torch.ones(10))
        comm.broadcast(torch.ones(3), src=1)
        comm.send(torch.ones(1), 1)
    lines = capfd.readouterr().err.splitlines()
    if level in ("off", "warn"):
        assert lines == []
        return
    assert lines[0] == (
        f"hcomm: rank 0 of 3, started by torchrun: pid {os.getpid()} on h, backend shm+tcp, memory shared by 0,1 | 2; "
        "TCP with 2: ranks 0 and 2 are on different hosts (a, b)"
    )
    calls = [line for line in lines if " at test_refusals" in line or " at tests" in line]
    assert len(calls) == (6 if level == "trace" else 0), lines
    assert [line for line in lines if "new plan" in line] == [
        "hcomm: rank 0: new plan: all_reduce(float32, 10 elements, sum): fake (there is no other)",
        "hcomm: rank 0: new plan: broadcast(float32, 3 elements, root 1): fake (there is no other)",
    ]
