"""What a measurement means: the backend to use, fast paths that are offered but not used, and things worth knowing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hcomm.cli.results import Measurement, Pair
from hcomm.cli.units import bits, size
from hcomm.config import Settings
from hcomm.topology.memory import PTRACE_SCOPES


@dataclass(frozen=True)
class Problem:
    """A fast path that the machine offers and that cannot be used: what, why, what to do."""

    what: str
    cause: str
    cure: str


@dataclass(frozen=True)
class Recommendation:
    """The backend that these hosts can have, and why."""

    backend: str
    why: str


def recommend(measured: Measurement) -> Recommendation:
    """The best backend for these ranks on these hosts, whatever the settings force."""
    hosts = _ranks_by_host(measured)
    several = {host: len(ranks) for host, ranks in hosts.items() if len(ranks) > 1}
    possible = all(_shares_memory(machine) for machine in measured.hosts)
    if len(hosts) == 1:
        if not possible:
            return Recommendation("tcp", "this host grants neither memfd nor files in /dev/shm")
        way = "memfd" if not measured.hosts[0]["memory"]["memfd"] else "files in /dev/shm"
        return Recommendation(
            "shm", f"all {len(measured.ranks)} ranks are on one host that grants shared memory ({way})"
        )
    if several and possible:
        return Recommendation(
            "shm+tcp", f"{len(hosts)} hosts: shared memory inside each, TCP between them{_wire(measured)}"
        )
    return Recommendation("tcp", f"{len(hosts)} hosts with one rank each: TCP between them{_wire(measured)}")


def problems(measured: Measurement, settings: Settings) -> list[Problem]:
    """Every fast path that is offered but cannot be used."""
    found = [*_slow_pairs(measured, settings), *_refused_access(measured)]
    for machine in measured.hosts:
        found += _memory(machine, settings, sum(rank.host == machine["host"] for rank in measured.ranks))
        found += _rdma(machine)
    return found


def notes(measured: Measurement, unknown: Mapping[str, str]) -> list[str]:
    """Worth knowing, but no fault; `unknown`: HCOMM_* variables that mean nothing → the closest known name."""
    found = []
    for machine in measured.hosts:
        ranks = sum(rank.host == machine["host"] for rank in measured.ranks)
        cpus = len(machine["cpus"]["allowed"])
        if machine["devices"]["restricted"] and machine["devices"]["kind"] == "cpu":
            cpus = len(machine["devices"]["visible"])
        if ranks > cpus:
            found.append(
                f"{machine['host']} runs {ranks} ranks on {cpus} CPU(s): figures are lower than with a CPU per rank"
            )
        quota = machine["cpus"]["quota"]
        if quota is not None and quota < ranks:
            found.append(
                f"{machine['host']} has a control group that grants {quota:g} CPUs for {ranks} ranks"
            )
    for name, near in unknown.items():
        found.append(f"{name} is not a setting of hcomm" + (f"; did you mean {near}?" if near else ""))
    return found


def _ranks_by_host(measured: Measurement) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = defaultdict(list)
    for rank in measured.ranks:
        hosts[rank.host].append(rank.rank)
    return hosts


def _shares_memory(machine: Mapping[str, Any]) -> bool:
    memory = machine["memory"]
    return not memory["memfd"] or not memory["shm_error"]


def _wire(measured: Measurement) -> str:
    """`; the fastest pair of hosts moved 117 MB/s (0.94 Gbit/s)`."""
    place = {rank.rank: rank.host for rank in measured.ranks}
    rates = [pair.bandwidth for pair in measured.pairs if place[pair.a] != place[pair.b]]
    return f", measured at up to {bits(8 * max(rates))}" if rates else ""


def _slow_pairs(measured: Measurement, settings: Settings) -> list[Problem]:
    """Pairs on one host that do not share memory although the host grants it, one problem per reason."""
    host = {rank.rank: rank.host for rank in measured.ranks}
    grants = {machine["host"] for machine in measured.hosts if _shares_memory(machine)}
    reasons: dict[str, list[Pair]] = defaultdict(list)
    for pair in measured.pairs:
        if pair.transport != "shm" and host[pair.a] == host[pair.b] and host[pair.a] in grants:
            reasons[pair.reason or "no reason was given"].append(pair)
    forced = settings.text("TRANSPORT") == "tcp"
    found = []
    for reason, pairs in reasons.items():
        names = ", ".join(f"{pair.a}-{pair.b}" for pair in pairs[:8]) + (", …" if len(pairs) > 8 else "")
        if forced:
            variable = settings.source("TRANSPORT") or "HCOMM_TRANSPORT"
            cause = f"{variable}={settings.text('TRANSPORT')} forces TCP"
            cure = f"unset {variable}, or set it to auto"
        else:
            cause = reason
            cure = "start the ranks with one IPC, mount and network namespace (docker: --ipc=host --network=host)"
        found.append(
            Problem(f"ranks {names} are on one host but use TCP instead of shared memory", cause, cure)
        )
    return found


def _refused_access(measured: Measurement) -> list[Problem]:
    """Pairs that share memory but may not read each other's ordinary memory, one problem per answer."""
    answers: dict[str, list[Pair]] = defaultdict(list)
    for pair in measured.pairs:
        if pair.access not in ("", "ok"):
            answers[pair.access].append(pair)
    found = []
    for answer, pairs in answers.items():
        names = ", ".join(f"{pair.a}-{pair.b}" for pair in pairs[:8]) + (", …" if len(pairs) > 8 else "")
        cause, cure = _why_refused(answer, measured.hosts[0]["memory"])
        what = (
            f"ranks {names} cannot read each other's memory: large tensors take one more copy through windows"
        )
        found.append(Problem(what, cause, cure))
    return found


def _why_refused(answer: str, memory: Mapping[str, Any]) -> tuple[str, str]:
    scope = memory["ptrace_scope"]
    cause = f"process_vm_readv: {answer}"
    if scope:
        return (
            f"{cause}; kernel.yama.ptrace_scope is {scope}: {PTRACE_SCOPES.get(scope, 'unknown')}",
            "sysctl kernel.yama.ptrace_scope=0 (as root), or grant CAP_SYS_PTRACE (docker: --cap-add SYS_PTRACE)",
        )
    if "not implemented" in answer:
        return cause, "use a kernel with CONFIG_CROSS_MEMORY_ATTACH and a sandbox that passes the call on"
    if "pid" in answer or "No such process" in answer:
        return (
            f"{cause}; the ranks are in different PID namespaces",
            "start them in one PID namespace (docker: --pid=host)",
        )
    return (
        f"{cause}; a seccomp filter, or a process that is not dumpable (PR_SET_DUMPABLE, set-user-id)",
        "allow the call (docker: --cap-add SYS_PTRACE, or a seccomp profile that has process_vm_readv)",
    )


def _memory(machine: Mapping[str, Any], settings: Settings, ranks: int) -> list[Problem]:
    """memfd and /dev/shm."""
    memory = machine["memory"]
    if not memory["memfd"]:
        return []
    needed = ranks * settings.size("BUFFER_SIZE")
    cause = f"memfd_create: {memory['memfd']}; {memory['shm_path']}: " + (
        memory["shm_error"]
        or f"{size(memory['shm_free'])} are free, {size(needed)} are needed per communicator"
    )
    if memory["shm_error"] or memory["shm_free"] < needed:
        cure = f"allow memfd_create, or make {memory['shm_path']} larger (docker: --shm-size=1g)"
        return [Problem(f"{machine['host']} has no room for shared memory", cause, cure)]
    return []


def _rdma(machine: Mapping[str, Any]) -> list[Problem]:
    """RDMA devices that are there for nothing."""
    devices = machine["rdma"]["devices"]
    if not devices:
        return []
    missing = [name for name, there in machine["rdma"]["libraries"].items() if not there]
    cause = "this version of hcomm has no RDMA transport"
    if missing:
        cause += f"; libraries that cannot be loaded: {', '.join(missing)}"
    return [
        Problem(
            f"{machine['host']} has RDMA devices that are not used: {', '.join(devices)}",
            cause,
            "let TCP use the same wire: HCOMM_SOCKET_IFNAME with the name of its IP interface",
        )
    ]
