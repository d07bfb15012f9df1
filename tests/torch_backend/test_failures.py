"""How process groups fail, begin again and end."""

from __future__ import annotations

import os
import subprocess
import textwrap
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from support.command import TORCHRUN
from support.inside import attempt, open_descriptors
from support.job import Failure, Outcome, clean_env


def _join(seconds: float = 30, name: str = "store", **how: Any) -> Any:
    import torch
    import torch.distributed as dist

    import hcomm.torch  # noqa: F401

    torch.set_num_threads(1)
    init = f"file://{os.environ['JOB_DIR']}/{name}"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "hcomm", init_method=init, rank=rank, world_size=size, timeout=timedelta(seconds=seconds), **how
    )
    return torch, dist


def several_failures() -> dict[str, Failure | None]:
    """One process, one failure after the other: each breaks a group of its own."""
    torch, dist = _join()
    import hcomm.torch

    me = dist.get_rank()
    groups = {
        name: dist.new_group([0, 1], timeout=timedelta(seconds=20))
        for name in ("types", "late", "wait", "ddp")
    }
    groups["gone"] = dist.new_group([0, 1], pg_options=hcomm.torch.Options(timeout=1.0))
    found: dict[str, Any] = {}

    def mismatch() -> None:
        if me == 0:
            dist.all_reduce(torch.ones(3), group=groups["types"])
        else:
            dist.broadcast(torch.ones(5), 0, group=groups["types"])

    found["mismatch"] = attempt(mismatch)
    found["afterwards"] = attempt(lambda: dist.barrier(group=groups["types"]))
    # somebody is late at a monitored barrier
    if me == 0:
        found["barrier"] = attempt(lambda: hcomm.torch.monitored_barrier(groups["late"], timeout=1.0))
    dist.barrier()
    found["monitored"] = attempt(lambda: dist.monitored_barrier(timeout=timedelta(seconds=1)))
    found["sequence"] = attempt(lambda: dist.distributed_c10d._get_sequence_number_for_group())

    def waits() -> None:
        work = dist.all_reduce(torch.ones(2), group=groups["wait"], async_op=True)
        if me == 0:
            found["not yet"] = attempt(lambda: work.wait(timedelta(seconds=0.3)))
            dist.barrier()
            work.wait()

    if me == 0:
        found["wait"] = attempt(waits)
    else:
        dist.barrier()
        waits()
        dist.barrier(group=groups["wait"])
    if me == 0:
        dist.barrier(group=groups["wait"])
        # a Future whose peer never comes
        future = dist.all_reduce(torch.ones(2), group=groups["gone"], async_op=True).get_future()
        found["future"] = attempt(future.wait)
    dist.barrier()
    # different numbers of parameters' gradients: DDP's own check speaks first, an exchange that differs second
    parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2), process_group=groups["ddp"])

    def hook(state: Any, bucket: Any) -> Any:
        buffer = bucket.buffer() if me == 0 else bucket.buffer()[:3].clone()
        return (
            dist.all_reduce(buffer, group=groups["ddp"], async_op=True)
            .get_future()
            .then(lambda f: f.value()[0])
        )

    hook.__annotations__ = {}
    parallel.register_comm_hook(None, hook)
    found["ddp"] = attempt(lambda: parallel(torch.ones(1, 4)).sum().backward())
    dist.barrier()
    found["warned"] = destroyed_with_a_failure(torch, dist)
    dist.destroy_process_group()
    return found


def destroyed_with_a_failure(torch: Any, dist: Any) -> list[str]:
    """The warnings of a group whose failed operation nobody waited for."""
    group = dist.new_group([0, 1])
    work = dist.all_reduce(torch.ones(2 + dist.get_rank()), group=group, async_op=True)
    while not work._over():
        time.sleep(0.01)
    dist.barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.destroy_process_group(group)
    return [str(warning.message) for warning in caught]


def test_errors_are_hcomms_and_torchs(job: Callable[..., list[Any]]) -> None:
    debug = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    for rank, found in enumerate(job(2, several_failures, init=False, timeout=90, env=debug)):
        mismatch = found["mismatch"]
        assert {"CollectiveMismatch", "DistBackendError", "HcommError"} <= set(mismatch.kinds), mismatch
        assert "all_reduce" in mismatch.text
        assert "broadcast" in mismatch.text
        assert mismatch.text.count("test_failures.py:") == 2, (
            "lines of the user, not of torch: " + mismatch.text
        )
        assert {"BrokenCommunicator", "DistBackendError"} <= set(found["afterwards"].kinds)
        # torch's own refusal: by the name of the backend, from 2.14 on by the device.
        assert any(word in found["monitored"].text for word in ("GLOO", "No backend type"))
        assert found["sequence"] is not None
        assert "DistBackendError" in found["ddp"].kinds or "CollectiveMismatch" in found["ddp"].text, found[
            "ddp"
        ]
        assert any("nobody has been told" in text and "all_reduce" in text for text in found["warned"]), (
            found["warned"]
        )
        if rank == 0:
            late = found["barrier"]
            assert {"CollectiveTimeout", "DistBackendError", "TimeoutError"} <= set(late.kinds)
            assert late.ranks == (1,)
            assert 1 <= late.seconds < 3
            assert {"CollectiveTimeout", "DistBackendError"} <= set(found["not yet"].kinds)
            assert found["wait"] is None
            assert found["future"] is not None
            assert "CollectiveTimeout" in found["future"].text
            assert found["future"].seconds < 3


def loses_a_peer() -> Any:
    torch, dist = _join()
    tensor = torch.ones(1 << 18)
    dist.all_reduce(tensor)
    if dist.get_rank() == 1:
        os._exit(7)
    found = attempt(lambda: [dist.all_reduce(tensor) for _ in range(1000)])
    dist.destroy_process_group()
    return found


def test_a_lost_peer_is_named(outcomes: Callable[..., list[Outcome]]) -> None:
    survivor, dead = outcomes(2, loses_a_peer, init=False)
    assert dead.code == 7
    assert {"PeerLost", "DistNetworkError", "ConnectionError"} <= set(survivor.value.kinds)
    assert survivor.value.ranks == (1,)
    assert survivor.value.seconds < 2


def begins_again() -> Any:
    torch, dist = _join()
    dist.destroy_process_group()
    store = dist.FileStore(os.path.join(os.environ["JOB_DIR"], "kept"), 2)
    counts = []
    for cycle in range(25):
        # One store for all cycles, as torchrun's agent keeps it.
        dist.init_process_group("hcomm", store=store, rank=int(os.environ["RANK"]), world_size=2)
        group = dist.new_group([0, 1])
        tensor = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 3.0, cycle
        dist.all_reduce(tensor, async_op=True).get_future().wait()
        dist.destroy_process_group()
        if cycle in (4, 24):
            counts.append((open_descriptors(), _threads()))
    return counts


def _threads() -> int:
    """Threads of this process; the least of some looks, since one that was joined may still be on its way out."""
    looks = []
    for _ in range(10):
        looks.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.02)
    return min(looks)


def test_init_destroy_init(job: Callable[..., list[Any]]) -> None:
    for early, late in job(2, begins_again, init=False, timeout=90):
        assert all(after <= before for before, after in zip(early, late, strict=True)), "descriptors, threads"


def waits_in_vain() -> Any:
    return attempt(_join, 2.0)


def test_a_rank_that_never_comes_is_named(launch: Callable[..., Any]) -> None:
    alone = launch(2, waits_in_vain, init=False, ranks=[0]).wait()[0].value
    assert {"MappingError", "DistBackendError"} <= set(alone.kinds)
    assert "ranks [1]" in alone.text


SCRIPT = """
import os, sys
import torch, torch.distributed as dist
import hcomm.torch
dist.init_process_group("hcomm")
tensor = torch.ones(4)
dist.all_reduce(tensor)
assert tensor[0] == dist.get_world_size()
work = dist.isend(torch.ones(1 << 20), (dist.get_rank() + 1) % 2)
future = dist.irecv(torch.ones(1), (dist.get_rank() + 1) % 2, tag=9).get_future()
print("ready", flush=True)
sys.exit(3 if dist.get_rank() == 0 else 0)
"""


def test_torchrun_and_an_exit_without_goodbye(tmp_path: Path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(textwrap.dedent(SCRIPT))
    begin = time.monotonic()
    command = [*TORCHRUN, "2", str(script)]
    done = subprocess.run(command, env=clean_env(), capture_output=True, text=True, timeout=60)
    assert done.stdout.count("ready") == 2, done.stderr
    assert "exitcode  : 3" in done.stderr
    for word in ("Fatal", "Aborted", "SIGSEGV", "SIGABRT"):
        assert word not in done.stderr
    assert time.monotonic() - begin < 50


def spawned_by_tcp() -> Any:
    """What mp.spawn's processes do: a tcp:// meeting point that rank 0 hosts."""
    import torch
    import torch.distributed as dist

    import hcomm.torch

    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['JOB_DIR']}/gloo", rank=rank, world_size=2
    )
    beside = dist.new_group([0, 1], backend="hcomm")  # its own store, for the default group is gloo's
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor, group=beside)
    assert hcomm.torch.communicator(beside).size == 2
    dist.destroy_process_group()
    port = int(os.environ["PORT"])
    dist.init_process_group("hcomm", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor.item()


def test_tcp_meeting_and_a_group_beside_gloo(job: Callable[..., list[Any]]) -> None:
    from support.job import free_port

    assert job(2, spawned_by_tcp, init=False, env={"PORT": str(free_port())}) == [2, 2]
