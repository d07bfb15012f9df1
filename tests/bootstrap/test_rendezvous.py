"""Meeting: late names, foreign servers, secrets, many jobs at once, again and again."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from typing import Any

import pytest
from ranks import Rank, found, free_port, last, run, world


def test_a_name_that_is_known_late() -> None:
    """Field report A3: the master's name resolves after a second, its port answers a second later."""
    now = time.time()
    cases = world(2, host="late.invalid", known_at=now + 1.5, settings={"init_timeout": 15})
    early = Rank(cases[1])
    time.sleep(2.5)
    late = Rank({**cases[0], "host": "127.0.0.1"})
    for rank in (late, early):
        said = rank.lines()
        assert last(said).get("end"), said


def test_a_name_that_never_resolves() -> None:
    cases = world(2, host="never.invalid", known_at=time.time() + 1000, settings={"init_timeout": 2})
    (said,) = run([cases[1]])
    assert last(said)["kind"] == "RendezvousError"
    assert "never.invalid" in last(said)["error"]
    assert 1.5 < last(said)["at"] - said[0]["at"] < 3.5


def test_a_foreign_server_holds_the_port() -> None:
    """Field report A4 (i): it accepts and stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        lines = run(world(2, port=port))
    for said in lines:
        assert last(said)["kind"] == "RendezvousError"
        assert str(port) in last(said)["error"]
        assert last(said)["at"] - said[0]["at"] < 5
    assert "taken by another program" in last(lines[0])["error"]


def test_a_server_that_speaks_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:

        def greet() -> None:
            peer, _ = foreign.accept()
            with peer:
                peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" * 10)
                peer.recv(1000)

        thread = threading.Thread(target=greet)
        thread.start()
        (said,) = run([world(2, port=foreign.getsockname()[1])[1]])
        thread.join()
    assert "is not hcomm" in last(said)["error"]
    assert last(said)["at"] - said[0]["at"] < 5


def test_twenty_jobs_at_once() -> None:
    """Field report A4 (ii): no port is agreed in advance; nobody joins another job."""
    name = uuid.uuid4().hex
    jobs = [
        [Rank({**case, "settings": {"job_id": f"{name}-{job}"}}) for case in world(2, kind="file", port=0)]
        for job in range(20)
    ]
    uids = []
    for job in jobs:
        lines = [rank.lines(100) for rank in job]
        assert all(last(said).get("end") for said in lines), lines
        first, second = (found(said, "wiring")[0]["uid"] for said in lines)
        assert first == second
        uids.append(first)
    assert len(set(uids)) == 20


def test_a_job_without_a_port_needs_a_name() -> None:
    (said,) = run([world(2, kind="file", port=0)[0]])
    assert last(said)["kind"] == "LaunchError"
    assert "HCOMM_JOB_ID" in last(said)["error"]


@pytest.mark.parametrize("setting", ["job_secret", "job_id"])
def test_strangers_are_refused(setting: str) -> None:
    """A rank without the secret, or of another job, is told; the job goes on without it."""
    cases = world(2, settings={setting: "one", "init_timeout": 10})
    stranger = Rank({**cases[1], "settings": {setting: "two", "init_timeout": 10}})
    first = Rank(cases[0])
    said = stranger.lines()
    assert last(said)["kind"] == "AuthenticationError"
    assert ("HCOMM_JOB_SECRET" if setting == "job_secret" else "another job") in last(said)["error"]
    second = Rank(cases[1])
    for rank in (first, second):
        assert last(rank.lines()).get("end")


def test_fifty_cycles_leave_nothing() -> None:
    """Field report F3: init and finalize on one port; descriptors and threads stay what they were."""
    port = free_port()
    few = run(world(2, port=port, cycles=2, quiet=True), 60)
    many = run(world(2, port=port, cycles=50, quiet=True), 60)
    for one, other in zip(few, many, strict=True):
        assert last(one).get("end"), one
        assert last(other).get("end"), other
        assert (last(one)["fds"], last(one)["threads"]) == (last(other)["fds"], last(other)["threads"])


def test_ctrl_c_while_waiting() -> None:
    for place in (0, 1):
        rank = Rank(world(2)[place])
        time.sleep(1.5)
        start = time.monotonic()
        rank.process.send_signal(signal.SIGINT)
        _, err = rank.process.communicate(timeout=10)
        assert time.monotonic() - start < 1
        assert "KeyboardInterrupt" in err


def test_a_dead_rank_zero_is_noticed() -> None:
    cases = world(3)
    ranks = [Rank(case) for case in cases[:2]]
    time.sleep(1.5)
    ranks[0].kill()
    said = ranks[1].lines(10)
    assert last(said)["kind"] == "RendezvousError"
    assert "lost rank 0" in last(said)["error"]


def test_a_forked_child_leaves_the_parents_world_alone() -> None:
    from hcomm import bootstrap

    launch = bootstrap.Launch(0, 1, None, None, None, "test", bootstrap.Meeting("none"))
    probes = bootstrap.Probes(lambda local, nbytes: 4096)
    alone = bootstrap.start(launch, bootstrap.BootstrapSettings(), probes, lambda line: None)
    child = os.fork()
    if child == 0:
        alone.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    contact: Any = alone.contacts[0]
    with socket.create_connection((contact.address, contact.port), 2):
        pass
    wiring = alone.wire_world()
    assert (wiring.cliques, wiring.control) == (((0,),), [-1])
    wiring.close()
    alone.close()
