"""Field reports I: shared memory and containers. Sources are named in each test."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.inside import mark
from support.job import free_port, report

pytestmark = pytest.mark.usefixtures("user_namespaces")


def inside(flags: str, script: str, ranks: tuple[int, ...] | None = None) -> Any:
    """A prefix that runs a rank in namespaces of its own, after some shell words."""

    def prefix(rank: int) -> list[str]:
        if ranks is not None and rank not in ranks:
            return []
        return ["unshare", flags, "sh", "-c", f'{script}exec "$@"', "sh"]

    return prefix


def tiny_shm(size: str, ranks: tuple[int, ...] | None = None) -> Any:
    return inside("-rm", f"mount -t tmpfs -o size={size} tmpfs /dev/shm && ", ranks)


def big_sum(count: int) -> Any:
    import hcomm

    x = np.full(count, hcomm.rank() + 1.0, dtype=np.float32)
    hcomm.all_reduce(x)
    hcomm.all_reduce(y := np.full(7, hcomm.rank() + 1.0))
    return float(x.min()), float(x.max()), float(y[3]), hcomm.get_backend_name()


# I1: NVIDIA/nccl#290, NVIDIA/nccl#342, pytorch/torchtitan#853, PaddlePaddle/Paddle#29331


@pytest.mark.parametrize("size", ["1m", "16m"])
def test_i1_a_tiny_dev_shm(job: Any, size: str) -> None:
    """64 MiB from each of four ranks; nothing depends on the size of /dev/shm."""
    answers = job(4, big_sum, args=(16 << 20,), prefix=tiny_shm(size))
    for low, high, small, backend in answers:
        assert (low, high, small) == (10.0, 10.0, 10.0)
        assert backend in ("shm", "shm+tcp", "tcp")


def fill_then_sum() -> Any:
    import hcomm

    before = big_sum(1000)
    if hcomm.rank() == 0:
        with contextlib.suppress(OSError):
            Path("/dev/shm/filler").write_bytes(bytes(2 << 20))
    hcomm.barrier()
    return before, big_sum(1 << 20)


def test_i1_dev_shm_fills_up_under_a_running_job(job: Any) -> None:
    for before, after in job(2, fill_then_sum, prefix=tiny_shm("1m")):
        assert before[:3] == (3.0, 3.0, 3.0)
        assert after[:3] == (3.0, 3.0, 3.0)


def test_i1_a_read_only_dev_shm(job: Any) -> None:
    prefix = inside("-rm", "mount -t tmpfs -o ro tmpfs /dev/shm && ")
    assert [a[:3] for a in job(2, big_sum, args=(1 << 20,), prefix=prefix)] == [(3.0, 3.0, 3.0)] * 2


# I2: sgl-project/sglang#28089, vllm-project/vllm#51317, eProsima/Fast-DDS#5308


def shm_entries() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "hcomm" in name.lower()}


def work_for_ever() -> None:
    import hcomm

    mark("started")
    hcomm.init()
    for _ in range(3):
        for _ in range(5):
            hcomm.all_reduce(np.ones(1 << 20))
        hcomm.new_group([0, 1, 2, 3])
    hcomm.finalize()
    mark("finished")
    time.sleep(30)


def kill_all(launch: Any, rounds: int) -> None:
    chance = random.Random(3)
    before = shm_entries()
    for _ in range(rounds):
        job = launch(4, work_for_ever, init=False)
        job.marked("started")
        time.sleep(chance.uniform(0.0, 0.8))
        job.close()
    time.sleep(0.2)
    assert shm_entries() <= before


def test_i2_killed_jobs_leave_nothing(launch: Any) -> None:
    kill_all(launch, 4)


@pytest.mark.slow
def test_i2_twenty_killed_jobs_leave_nothing(launch: Any) -> None:
    kill_all(launch, 20)


# I4: pytorch/gloo#458, vllm-project/vllm#46716, NVIDIA/nccl#155, NVIDIA/nccl#248


def test_i4_a_private_dev_shm_on_half_of_the_ranks(job: Any) -> None:
    answers = job(4, big_sum, args=(1 << 20,), prefix=tiny_shm("8m", ranks=(2, 3)))
    assert [a[:3] for a in answers] == [(10.0, 10.0, 10.0)] * 4
    assert len({a[3] for a in answers}) == 1


def test_i4_different_host_names_do_not_matter(job: Any) -> None:
    """Memory is shared where a token proves it, whatever the hosts are called."""
    prefix = inside("-ru", 'hostname "fake-$RANK" && ', ranks=(1, 3))
    answers = job(4, big_sum, args=(1 << 20,), prefix=prefix)
    assert list(answers) == [(10.0, 10.0, 10.0, "shm")] * 4


def small_groups() -> Any:
    import hcomm

    me = hcomm.rank()
    pairs = [[0, 2], [1, 3]]
    group = hcomm.new_group(pairs[me % 2])
    pair = hcomm.new_group([0, 1] if me < 2 else [2, 3])
    return (
        float(hcomm.all_reduce(np.array([me + 1.0]), group=group)[0]),
        float(hcomm.all_reduce(np.array([me + 1.0]), group=pair)[0]),
        hcomm.get_backend_name(group),
    )


def test_i4_local_world_size_decides_nothing(job: Any) -> None:
    """Groups of two in a job that says LOCAL_WORLD_SIZE=2, as if there were two hosts."""
    rank_env = {
        r: {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(r % 2), "GROUP_RANK": str(r // 2)} for r in range(4)
    }
    prefix = inside("-ru", 'hostname "node-$GROUP_RANK" && ')
    answers = job(4, small_groups, rank_env=rank_env, prefix=prefix, port=free_port())
    assert [a[:2] for a in answers] == [(4.0, 3.0), (6.0, 3.0), (4.0, 7.0), (6.0, 7.0)]


# I5: open-mpi/ompi#4948, openucx/ucx#3046, hpc/charliecloud#128


def undumpable(count: int) -> Any:
    """Refuse to have this rank's memory read, then work as usual."""
    import hcomm

    if os.environ["RANK"] == "1":
        ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE
    hcomm.init()
    answer = big_sum(count)
    hcomm.finalize()
    return answer


@pytest.mark.parametrize("count", [10, 1 << 20])
def test_i5_a_rank_whose_memory_may_not_be_read(job: Any, count: int) -> None:
    answers = job(3, undumpable, args=(count,), init=False, prefix=inside("-r", ""))
    assert answers == [(6.0, 6.0, 6.0, "shm")] * 3


def test_i5_forced_to_tcp(job: Any) -> None:
    answers = job(3, big_sum, args=(1 << 20,), transport="tcp")
    assert answers == [(6.0, 6.0, 6.0, "tcp")] * 3


def test_i5_a_transport_that_does_not_exist(outcomes: Any) -> None:
    done = outcomes(2, big_sum, args=(10,), transport="carrier-pigeon")
    for outcome in done:
        assert outcome.error is not None, report(done)
        assert "ValueError" in outcome.error.kinds, report(done)
        assert "HCOMM_TRANSPORT" in outcome.error.text, report(done)
        assert "shm" in outcome.error.text, report(done)
