"""Field reports A: addresses, names, ports, launcher mistakes. Sources are named in each test."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.job import free_port, report


def sum_of_ranks() -> float:
    import hcomm

    return float(hcomm.all_reduce(np.array([hcomm.rank() + 1.0]))[0])


def private_hosts(rank: int) -> list[str]:
    """Rank 1 sees its own /etc/hosts, the file `hosts` in the job's directory."""
    if rank != 1:
        return []
    script = 'cp /etc/hosts "$JOB_DIR/hosts" && mount --bind "$JOB_DIR/hosts" /etc/hosts && exec "$@"'
    return ["unshare", "-rm", "sh", "-c", script, "sh"]


# A3: pytorch/pytorch#73682, kubeflow/pytorch-operator#125


@pytest.mark.usefixtures("user_namespaces")
def test_a3_the_masters_name_appears_late(launch: Any) -> None:
    """Rank 1 knows a name that resolves after 1.5 s; rank 0 listens 1.5 s after that."""
    job = launch(
        2,
        sum_of_ranks,
        ranks=[1],
        port=free_port(),
        env={"HCOMM_INIT_TIMEOUT": "15"},
        rank_env={1: {"MASTER_ADDR": "late-master.test"}},
        prefix=private_hosts,
    )
    time.sleep(1.5)
    assert job.alive() == [1], job.report()
    with (job.directory / "hosts").open("a") as hosts:
        hosts.write("127.0.0.1 late-master.test\n")
    time.sleep(1.5)
    assert job.alive() == [1], job.report()
    job.start(0)
    done = job.wait(12)
    assert [o.value for o in done] == [3.0, 3.0], report(done)


@pytest.mark.usefixtures("user_namespaces")
def test_a3_a_name_that_never_resolves(launch: Any) -> None:
    job = launch(
        2,
        sum_of_ranks,
        ranks=[1],
        port=free_port(),
        env={"HCOMM_INIT_TIMEOUT": "3"},
        rank_env={1: {"MASTER_ADDR": "no-such-master.invalid"}},
    )
    (done,) = job.wait(20)
    assert done.error is not None, report([done])
    assert "InitError" in done.error.kinds, report([done])
    assert "no-such-master.invalid" in done.error.text
    assert 2.5 < done.seconds < 6.0, report([done])


def test_a3_rank_zero_comes_last(launch: Any) -> None:
    job = launch(2, sum_of_ranks, ranks=[1], port=free_port())
    time.sleep(3.0)
    job.start(0)
    done = job.wait(10)
    assert [o.value for o in done] == [3.0, 3.0], report(done)


# A4: pytorch/pytorch#126510, pytorch/pytorch#169142


def test_a4_a_foreign_server_holds_the_port(launch: Any) -> None:
    """It accepts and stays silent: both ranks say so, long before the init timeout of 60 s."""
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        job = launch(2, sum_of_ranks, port=port, env={"HCOMM_INIT_TIMEOUT": "60"})
        done = job.wait(20)
    for outcome in done:
        assert outcome.error is not None, report(done)
        assert "InitError" in outcome.error.kinds, report(done)
        assert str(port) in outcome.error.text, report(done)
    assert done[0].seconds < 5.0, report(done)


def test_a4_twenty_jobs_at_once(launch: Any) -> None:
    jobs = [launch(2, sum_of_ranks) for _ in range(20)]
    for job in jobs:
        done = job.wait(60)
        assert [o.value for o in done] == [3.0, 3.0], report(done)


# A6: pytorch/pytorch#23074, pytorch/pytorch#53395

MISTAKES = {
    "rank 1 twice": ({2: {"RANK": "1"}}, ["1"]),
    "rank outside the world": ({3: {"RANK": "4"}}, ["4"]),
    "world size disagrees": ({3: {"WORLD_SIZE": "3", "RANK": "2"}}, ["3"]),
    "local rank twice": ({3: {"LOCAL_RANK": "2"}}, ["2"]),
}


@pytest.mark.parametrize("meeting", ["job id", "port"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a6_launcher_mistakes_are_told_to_every_rank(launch: Any, mistake: str, meeting: str) -> None:
    rank_env, words = MISTAKES[mistake]
    port = free_port() if meeting == "port" else 0
    job = launch(4, sum_of_ranks, rank_env=rank_env, env={"HCOMM_INIT_TIMEOUT": "60"}, timeout=20, port=port)
    done = job.wait()
    assert all(o.error is not None and "InitError" in o.error.kinds for o in done), report(done)
    assert max(o.seconds for o in done) < 8.0, report(done)
    for outcome in done:
        assert outcome.error is not None
        for word in words:
            assert word in outcome.error.text, report(done)


def test_a6_a_rank_claimed_twice_names_both_processes(launch: Any) -> None:
    job = launch(4, sum_of_ranks, rank_env={2: {"RANK": "1"}}, env={"HCOMM_INIT_TIMEOUT": "60"}, timeout=20)
    done = job.wait()
    for outcome in done:
        assert outcome.error is not None, report(done)
        assert str(job.pid(1)) in outcome.error.text, report(done)
        assert str(job.pid(2)) in outcome.error.text, report(done)


def test_a6_the_world_sizes_are_named(launch: Any) -> None:
    settings = {"HCOMM_INIT_TIMEOUT": "60"}
    job = launch(
        4, sum_of_ranks, rank_env={3: {"WORLD_SIZE": "5"}}, env=settings, timeout=20, port=free_port()
    )
    done = job.wait()
    for outcome in done:
        assert outcome.error is not None, report(done)
        assert "4" in outcome.error.text, report(done)
        assert "5" in outcome.error.text, report(done)


def test_a6_a_waiting_init_names_the_missing_ranks(launch: Any) -> None:
    """Every 10 s while it waits, and in the error at the end."""
    job = launch(4, sum_of_ranks, ranks=[0, 2], env={"HCOMM_INIT_TIMEOUT": "12"})
    done = job.wait(30)
    for outcome in done:
        assert outcome.error is not None, report(done)
        assert "InitError" in outcome.error.kinds, report(done)
        assert 11.0 < outcome.seconds < 16.0, report(done)
        assert "1" in outcome.error.text, report(done)
        assert "3" in outcome.error.text, report(done)
    told = Path(job.directory / "err-0").read_text()
    waiting = [line for line in told.splitlines() if "1, 3" in line or "[1, 3]" in line]
    assert waiting, report(done)
