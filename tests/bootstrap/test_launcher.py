"""Every launcher's environment, and what is made of it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from hcomm.bootstrap.ancestry import process_manager
from hcomm.bootstrap.hostlist import first_host
from hcomm.bootstrap.launcher import detect
from hcomm.errors import LaunchError

PLAIN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = {
    **PLAIN,
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_RESTART_COUNT": "3",
}
AGENT = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "1291321345",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_JOBID": "j7"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_NODELIST": "gpu[07-09,12],login",
}
KUBERNETES = {
    "JOB_COMPLETION_INDEX": "2",
    "WORLD_SIZE": "3",
    "MASTER_ADDR": "job-0.svc",
    "MASTER_PORT": "2222",
}

# environment → source, rank, size, local rank, local size, node, kind, host, port, job
TABLE: list[tuple[str, dict[str, str], tuple[Any, ...]]] = [
    ("nothing", {}, ("no launcher", 0, 1, None, None, None, "none", "", 0, "")),
    ("plain", PLAIN, ("RANK/WORLD_SIZE", 1, 4, None, None, None, "tcp", "10.0.0.1", 29500, "")),
    (
        "plain, local",
        {**PLAIN, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"},
        ("RANK/WORLD_SIZE", 1, 4, 1, 2, 0, "tcp", "10.0.0.1", 29500, ""),
    ),
    (
        "plain, alone",
        {"RANK": "0", "WORLD_SIZE": "1"},
        ("RANK/WORLD_SIZE", 0, 1, None, None, None, "none", "", 0, ""),
    ),
    (
        "plain, any port",
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "0"},
        ("RANK/WORLD_SIZE", 1, 2, None, None, None, "file", "", 0, ""),
    ),
    ("torchrun", TORCHRUN, ("torchrun", 1, 4, 1, 2, 0, "tcp", "10.0.0.1", 29500, "torchrun abc restart 3")),
    ("its agent", AGENT, ("torchrun", 1, 4, 1, 2, 0, "agent", "10.0.0.1", 29500, "torchrun abc restart 3")),
    (
        "torchrun in Slurm",
        {**AGENT, **SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
        ("torchrun", 1, 4, 1, 2, 0, "agent", "10.0.0.1", 29500, "torchrun abc restart 3"),
    ),
    ("Open MPI", OMPI, ("Open MPI", 2, 4, 2, 4, None, "file", "", 0, "ompi 1291321345")),
    (
        "Open MPI, hosts",
        {**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "5"},
        ("Open MPI", 2, 4, 2, 2, None, "tcp", "a", 5, "ompi 1291321345"),
    ),
    ("Hydra", HYDRA, ("PMI (MPICH, Intel MPI)", 1, 2, 1, 2, None, "file", "", 0, "pmi j7")),
    (
        "Hydra, hosts",
        {**HYDRA, "MASTER_ADDR": "a", "MASTER_PORT": "5"},
        ("PMI (MPICH, Intel MPI)", 1, 2, 1, 2, None, "tcp", "a", 5, ""),
    ),
    (
        "Slurm",
        {**SLURM, "MASTER_PORT": "1234"},
        ("Slurm", 3, 4, 1, None, 1, "tcp", "gpu07", 1234, "slurm 77.0"),
    ),
    (
        "an allocation of Slurm around plain variables",
        {**PLAIN, **SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        ("RANK/WORLD_SIZE", 1, 4, None, None, None, "tcp", "10.0.0.1", 29500, ""),
    ),
    (
        "mpirun in Slurm, whose variables speak of daemons",
        {**SLURM, **OMPI, "SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
        ("Open MPI", 2, 4, 2, 4, None, "file", "", 0, "ompi 1291321345"),
    ),
    (
        "srun with PMI",
        {**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4", "MASTER_PORT": "1234"},
        ("PMI (MPICH, Intel MPI)", 3, 4, 1, None, 1, "tcp", "gpu07", 1234, "slurm 77.0"),
    ),
    (
        "Kubernetes",
        KUBERNETES,
        ("a Kubernetes indexed job", 2, 3, None, None, 2, "tcp", "job-0.svc", 2222, ""),
    ),
]


@pytest.mark.parametrize(("environ", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_environments(environ: dict[str, str], expected: tuple[Any, ...]) -> None:
    found = detect(environ)
    meeting = found.meeting
    assert (
        found.source,
        found.rank,
        found.world_size,
        found.local_rank,
        found.local_size,
        found.node,
        meeting.kind,
        meeting.host,
        meeting.port,
        meeting.job,
    ) == expected


def test_slurm_derives_one_port_per_step() -> None:
    first = detect({**SLURM, "SLURM_STEP_ID": "0"}).meeting.port
    again = detect({**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}).meeting.port
    other = detect({**SLURM, "SLURM_STEP_ID": "1"}).meeting.port
    assert first == again != other
    assert 15000 <= first < 30000


def test_arguments_come_first_and_keep_the_launchers_places() -> None:
    found = detect(OMPI, rank=2, world_size=4, local_rank=0, master_addr="h", master_port=9)
    assert (found.source, found.local_rank, found.local_size) == ("the arguments of init", 0, 4)
    assert (found.meeting.kind, found.meeting.host, found.meeting.port) == ("tcp", "h", 9)
    alone = detect({}, rank=0, world_size=1)
    assert (alone.world_size, alone.meeting.kind) == (1, "none")


CONTRADICTIONS: list[tuple[str, dict[str, str], dict[str, Any], list[str]]] = [
    ("no size", {"RANK": "1"}, {}, ["RANK=1 is set", "WORLD_SIZE is missing"]),
    ("no rank", {"WORLD_SIZE": "2"}, {}, ["RANK is missing"]),
    ("no address", {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, {}, ["MASTER_ADDR is missing"]),
    ("no port", {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, {}, ["MASTER_PORT is missing"]),
    ("neither", {"RANK": "1", "WORLD_SIZE": "2"}, {}, ["MASTER_ADDR and MASTER_PORT are missing"]),
    ("only an address", {"MASTER_ADDR": "a"}, {}, ["RANK and WORLD_SIZE are missing"]),
    ("a word", {**PLAIN, "RANK": "one"}, {}, ["RANK='one' is not a number"]),
    ("negative", {**PLAIN, "RANK": "-1"}, {}, ["RANK=-1 is negative", "must be 0 or more"]),
    ("a port of words", {**PLAIN, "MASTER_PORT": "http"}, {}, ["MASTER_PORT='http'"]),
    ("no such port", {**PLAIN, "MASTER_PORT": "70000"}, {}, ["70000", "0..65535"]),
    ("size zero", {**PLAIN, "WORLD_SIZE": "0"}, {}, ["WORLD_SIZE is 0"]),
    ("outside one", {"RANK": "1", "WORLD_SIZE": "1"}, {}, ["rank 1 of 1", "expected rank 0"]),
    ("two", {**PLAIN, **OMPI}, {}, ["rank 1 of 4 (RANK, WORLD_SIZE)", "rank 2 of 4 (OMPI_COMM_WORLD_RANK"]),
    ("arguments", PLAIN, {"rank": 1, "world_size": 2}, ["rank 1 of 2", "rank 1 of 4"]),
    ("half the arguments", {}, {"rank": 1}, ["world_size is missing"]),
    (
        "hosts",
        {**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        {},
        ["several hosts", "MASTER_ADDR", "MASTER_PORT"],
    ),
    (
        "no nodes",
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
        {},
        ["SLURM_NODELIST", "MASTER_ADDR"],
    ),
    ("half of Slurm", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, {}, ["SLURM_NTASKS is missing"]),
]


@pytest.mark.parametrize(
    ("environ", "arguments", "words"),
    [row[1:] for row in CONTRADICTIONS],
    ids=[row[0] for row in CONTRADICTIONS],
)
def test_contradictions(environ: dict[str, str], arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(LaunchError) as caught:
        detect(environ, **arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("gpu[007-009,12],login", "gpu007"),
        ("rack[2]n[01-04]", "rack2n01"),
        ("n[3,5]-ib", "n3-ib"),
        ("a.b-c_d[1-2].x", "a.b-c_d1.x"),
    ],
)
def test_the_first_host_of_a_slurm_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


@pytest.mark.parametrize("nodes", ["", "n[", "n[]", "n[a]", "n]1", "n[1-]", ";rm"])
def test_a_slurm_list_that_does_not_parse(nodes: str) -> None:
    with pytest.raises(LaunchError, match="does not parse"):
        first_host(nodes)


def test_the_process_manager_is_found_behind_a_shell() -> None:
    """Two levels below the same parent name the same ancestor, or each its own parent where there is no manager."""
    script = "from hcomm.bootstrap.ancestry import process_manager as p; print(p())"
    stub = (
        "import sys,types,importlib.util as u;s=u.find_spec('hcomm');"
        "m=types.ModuleType('hcomm');m.__path__=list(s.submodule_search_locations);sys.modules['hcomm']=m;"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", stub + script], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(answers) == 1
    assert answers.pop().strip() == process_manager(os.getpid())


def test_a_batch_script_without_srun_is_one_process() -> None:
    batch = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}
    launch = detect({**batch, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert (launch.rank, launch.world_size) == (0, 1)
