"""Who waits long does not burn a core, and hcomm changes nothing of its caller's."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest

PAUSE = 5.0


def _seconds_of_cpu(turns: tuple[int, ...]) -> list[float]:
    """CPU time of this process while it waits for rank 0: in a collective, then for a message or a Work."""
    import hcomm

    rank, size = hcomm.rank(), hcomm.world_size()
    vector = np.ones(1000, np.float32)
    used = []
    for turn in turns:
        hcomm.barrier()
        before = time.process_time()
        if rank == 0:
            time.sleep(PAUSE)
            if turn == 0:
                hcomm.all_reduce(vector)
            else:
                hcomm.send(vector, 1).wait()
                hcomm.send(vector, 2).wait()
        elif turn == 0:
            hcomm.all_reduce(vector)
        elif rank == 1:
            hcomm.recv(vector, 0)
        else:
            hcomm.recv_async(vector, 0).wait()
        used.append(time.process_time() - before)
    assert bool((vector == (size if 0 in turns else 1)).all())
    return used


@pytest.mark.parametrize(("transport", "turns"), [("shm", (0, 1)), ("tcp", (0,))])
def test_one_slow_rank_does_not_heat_the_others(job: Any, transport: str, turns: tuple[int, ...]) -> None:
    for used in job(3, _seconds_of_cpu, args=(turns,), transport=transport):
        assert max(used) < 0.25, used


def _surroundings() -> list[Any]:
    import torch

    import hcomm

    def state() -> list[Any]:
        return [sorted(os.sched_getaffinity(0)), torch.get_num_threads(), torch.get_num_interop_threads(),
                os.getpriority(os.PRIO_PROCESS, 0), dict(os.environ)]  # fmt: skip

    before = state()
    hcomm.init()
    for count in (1, 1_000_000):
        tensor = torch.ones(count)
        for _ in range(4):
            hcomm.all_reduce(tensor)
        hcomm.all_reduce_async(tensor).wait()
    after = state()
    hcomm.finalize()
    return [before == after, before == state()]


def test_the_caller_keeps_its_affinity_pools_priority_and_environment(job: Any) -> None:
    assert job(2, _surroundings, init=False) == [[True, True]] * 2
