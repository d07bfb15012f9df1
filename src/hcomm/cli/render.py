"""The lines of `hcomm check`: each begins with its topic, so that `grep` finds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hcomm import _native
from hcomm.cli.findings import Problem, Recommendation
from hcomm.cli.results import Measurement
from hcomm.cli.units import bits, duration, message, rate, size
from hcomm.config import Changed
from hcomm.topology.cpus import format_cpulist
from hcomm.topology.memory import PTRACE_SCOPES

Line = tuple[str, str]


def machine_lines(machine: Mapping[str, Any], several: bool) -> Iterator[Line]:
    """(topic, text) of one host; `several`: begin with the host's name."""
    host = f"{machine['host']}: " if several else ""
    for topic, text in (*_topology(machine), *_memory(machine["memory"]), *_network(machine)):
        yield topic, host + text


def _topology(machine: Mapping[str, Any]) -> Iterator[Line]:
    cpus = machine["cpus"]
    allowed, present = len(cpus["allowed"]), len(cpus["present"])
    quota = f", control group grants {cpus['quota']:g}" if cpus["quota"] is not None else ""
    yield (
        "Topology",
        (
            f"{cpus['model']} ({cpus['architecture']}): {allowed} of {present} CPUs may be used{quota}, "
            f"{cpus['cores']} core(s), {cpus['sockets']} socket(s), kernels: {_native.simd_level()}"
        ),
    )
    for node in cpus["nodes"]:
        far = f", distances {' '.join(map(str, node['distances']))}" if len(cpus["nodes"]) > 1 else ""
        yield (
            "Topology",
            f"NUMA node {node['id']}: CPUs {format_cpulist(node['cpus'])}, {size(node['memory'])}{far}",
        )
    for accelerator in machine["accelerators"]:
        yield (
            "Topology",
            f"GPU {accelerator['index']}: {accelerator['name']} (moved by its vendor's library, not hcomm)",
        )
    devices = machine["devices"]
    if devices["restricted"]:
        kind, visible = devices["kind"], devices["visible"]
        yield (
            "Topology",
            (
                f"HCOMM_VISIBLE_DEVICES leaves {kind} {format_cpulist(visible)} of {format_cpulist(devices['present'])}"
            ),
        )
    if len(devices["visible"]) == 1:
        cure = (
            "unset HCOMM_VISIBLE_DEVICES to use the others" if devices["restricted"] else "all ranks share it"
        )
        yield "Topology", f"a single device is visible: {devices['kind']} {devices['visible'][0]}; {cure}"


def _memory(memory: Mapping[str, Any]) -> Iterator[Line]:
    memfd = f"refused ({memory['memfd']})" if memory["memfd"] else "works"
    path = memory["shm_path"]
    files = f"unusable ({memory['shm_error']})" if memory["shm_error"] else f"{size(memory['shm_free'])} free"
    locked = "unlimited" if memory["locked_limit"] is None else size(memory["locked_limit"])
    yield (
        "Shared memory",
        f"memfd {memfd}; {path} {size(memory['shm_size'])}, {files}; locked memory: {locked}",
    )
    scope = memory["ptrace_scope"]
    meaning = "no Yama in this kernel" if scope is None else f"{scope}, {PTRACE_SCOPES.get(scope, 'unknown')}"
    more = "; CAP_SYS_PTRACE is there" if memory["privileged"] else ""
    yield "Peer access", f"kernel.yama.ptrace_scope: {meaning}{more}"


def _network(machine: Mapping[str, Any]) -> Iterator[Line]:
    for interface in machine["interfaces"]:
        if not interface["up"] or interface["kind"] == "loopback":
            continue
        speed = bits(interface["speed"]) if interface["speed"] else "speed not told by the driver"
        node = f", NUMA node {interface['node']}" if interface["node"] >= 0 else ""
        addresses = " ".join(interface["addresses"]) or "no address"
        yield (
            "Network",
            f"{interface['name']} ({interface['kind']}): {speed}, MTU {interface['mtu']}{node}, {addresses}",
        )
    rdma = machine["rdma"]
    there = [name for name, found in rdma["libraries"].items() if found]
    missing = [name for name, found in rdma["libraries"].items() if not found]
    parts = ["devices: " + (", ".join(rdma["devices"]) or "none")]
    if there:
        parts.append("libraries: " + ", ".join(there))
    if missing:
        parts.append("missing libraries: " + ", ".join(missing))
    yield "RDMA", "; ".join(parts)


def result_lines(measured: Measurement, recommended: Recommendation) -> Iterator[Line]:
    """(topic, text) of what was measured."""
    yield "Backend", f"recommended: {recommended.backend}, because {recommended.why}"
    used = (
        "as recommended" if measured.backend == recommended.backend else "not the recommended one, see below"
    )
    yield "Backend", f"in use: {measured.backend} ({used})"
    for pair in measured.pairs:
        yield "Backend", f"ranks {pair.a}-{pair.b}: {pair.transport}{_why(pair.reason)}{_access(pair.access)}"
    place = {rank.rank: rank.host for rank in measured.ranks}
    across = len(set(place.values())) > 1
    for pair in measured.pairs:
        where = f" ({place[pair.a]}, {place[pair.b]})" if across else ""
        figures = f"{rate(pair.bandwidth)}, latency {duration(pair.latency)}"
        yield "Bandwidth", f"ranks {pair.a}-{pair.b}{where} {pair.transport}: {figures}"
    for reduction in measured.reductions:
        what = f"all_reduce of {message(reduction.nbytes)} float32, {len(measured.ranks)} ranks"
        figures = f"algbw {rate(reduction.algbw)}, busbw {rate(reduction.busbw)}"
        yield "Bandwidth", f"{what}: {duration(reduction.seconds)}, {figures}"


def _why(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _access(answer: str) -> str:
    if not answer:
        return ""
    return ", read each other's memory" if answer == "ok" else f", cannot read each other's memory ({answer})"


def setting_lines(changed: list[Changed]) -> Iterator[Line]:
    """(topic, text) of every setting that differs from its default."""
    if not changed:
        yield "Setting", "all settings have their defaults"
    for setting in changed:
        default = setting.default or "(empty)"
        yield "Setting", f"{setting.variable}={setting.value} (default {default}): {setting.help}"


def problem_lines(problems: list[Problem]) -> Iterator[Line]:
    """(topic, text) of what is wrong."""
    for problem in problems:
        yield "Problem", problem.what
        yield "Cause", problem.cause
        yield "Cure", problem.cure
    if not problems:
        yield "Result", "every fast path that this machine offers is in use"
