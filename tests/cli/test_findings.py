"""What `hcomm check` concludes from a measurement."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hcomm import config
from hcomm.cli import findings, render
from hcomm.cli.results import Measurement, Pair, RankInfo, Reduction
from hcomm.topology.probe import probe


def _machine(host: str = "a", **memory: Any) -> dict[str, Any]:
    machine = json.loads(json.dumps(probe().as_dict()))
    machine["host"] = host
    machine["memory"].update({"memfd": "", "shm_error": "", "ptrace_scope": None, **memory})
    machine["rdma"] = {"devices": [], "libraries": {"libibverbs": False, "UCX": True}, "accessible": False}
    return machine


def _measured(
    transport: str = "shm",
    reason: str = "",
    access: str = "ok",
    hosts: tuple[str, ...] = ("a", "a"),
    **memory: Any,
) -> Measurement:
    pairs = [(a, b) for a in range(len(hosts)) for b in range(a + 1, len(hosts))]
    return Measurement(
        backend=transport,
        ranks=tuple(RankInfo(rank, host, 0, 100 + rank) for rank, host in enumerate(hosts)),
        pairs=tuple(Pair(a, b, transport, reason, 1e-6, 1e9, access) for a, b in pairs),
        reductions=(Reduction(8, 1e-6, 8e6, 8e6),),
        hosts=tuple(_machine(host, **memory) for host in dict.fromkeys(hosts)),
    )


def _settings(**environment: str) -> config.Settings:
    return config.load(environment)


def test_one_host_with_shared_memory_is_fine() -> None:
    measured = _measured()
    assert findings.recommend(measured).backend == "shm"
    assert findings.problems(measured, _settings()) == []


def test_forced_tcp_is_a_problem_with_its_cure() -> None:
    measured = _measured("tcp", "forced", access="")
    (problem,) = findings.problems(measured, _settings(HCOMM_TRANSPORT="tcp"))
    assert "ranks 0-1 are on one host but use TCP" in problem.what
    assert problem.cause == "HCOMM_TRANSPORT=tcp forces TCP"
    assert problem.cure == "unset HCOMM_TRANSPORT, or set it to auto"
    assert findings.recommend(measured).backend == "shm"


def test_the_reason_of_a_slow_pair_is_the_cause() -> None:
    (problem,) = findings.problems(_measured("tcp", "token not found", access=""), _settings())
    assert problem.cause == "token not found"
    assert "--ipc=host" in problem.cure


def test_hosts_are_joined_by_tcp() -> None:
    measured = _measured("tcp", "another host", access="", hosts=("a", "b"))
    assert findings.recommend(measured).backend == "tcp"
    assert findings.problems(measured, _settings()) == []
    assert findings.recommend(_measured("tcp", hosts=("a", "a", "b"))).backend == "shm+tcp"


@pytest.mark.parametrize(
    ("answer", "scope", "cause", "cure"),
    [
        ("Operation not permitted", 1, "ptrace_scope is 1", "sysctl kernel.yama.ptrace_scope=0"),
        ("Operation not permitted", 0, "seccomp", "--cap-add SYS_PTRACE"),
        ("Function not implemented", None, "not implemented", "CONFIG_CROSS_MEMORY_ATTACH"),
        ("No such process", None, "PID namespaces", "--pid=host"),
    ],
)
def test_refused_memory_access(answer: str, scope: int | None, cause: str, cure: str) -> None:
    (problem,) = findings.problems(_measured(access=answer, ptrace_scope=scope), _settings())
    assert cause in problem.cause
    assert cure in problem.cure


def test_no_room_for_shared_memory() -> None:
    measured = _measured(
        "tcp", access="", memfd="Function not implemented", shm_error="Read-only file system"
    )
    assert findings.recommend(measured).backend == "tcp"
    (problem,) = findings.problems(measured, _settings())
    assert "Read-only file system" in problem.cause
    assert "--shm-size" in problem.cure


def test_a_small_dev_shm_matters_only_without_memfd() -> None:
    small = {"shm_size": 1 << 20, "shm_free": 1 << 20}
    assert findings.problems(_measured(**small), _settings()) == []
    (problem,) = findings.problems(_measured(memfd="refused", **small), _settings())
    assert "1 MiB are free, 32 MiB are needed" in problem.cause


def test_unused_rdma_devices() -> None:
    measured = _measured()
    measured.hosts[0]["rdma"]["devices"] = ["mlx5_0 (active, 100 Gb/sec)"]
    (problem,) = findings.problems(measured, _settings())
    assert "mlx5_0" in problem.what
    assert "libibverbs" in problem.cause


def test_unknown_variables_and_crowded_hosts_are_noted() -> None:
    measured = _measured(hosts=("a",) * 99)
    notes = findings.notes(measured, {"HCOMM_TRANSPROT": "HCOMM_TRANSPORT"})
    assert any("99 ranks on" in note for note in notes)
    assert "HCOMM_TRANSPROT is not a setting of hcomm; did you mean HCOMM_TRANSPORT?" in notes


def test_a_measurement_survives_json() -> None:
    measured = _measured()
    assert Measurement.from_dict(json.loads(json.dumps(measured.as_dict()))) == measured


def test_lines_of_several_hosts_name_them() -> None:
    measured = _measured("tcp", hosts=("a", "b"))
    lines = list(render.result_lines(measured, findings.recommend(measured)))
    assert ("Bandwidth", "ranks 0-1 (a, b) tcp: 1 GB/s, latency 1 µs") in lines
    assert all(text.startswith("b: ") for _, text in render.machine_lines(measured.hosts[1], several=True))
