"""Processors and NUMA nodes, from sysfs and the affinity of this process."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node: number, the CPUs of it that this process may use, bytes of memory, distances to all nodes."""

    id: int
    cpus: tuple[int, ...]
    memory: int
    distances: tuple[int, ...]


@dataclass(frozen=True)
class Cpus:
    """The processors of this machine.

    Attributes:
        model: as the kernel names it.
        architecture: `x86_64`, `aarch64`, …
        present: CPUs that are online.
        allowed: those that this process may run on (affinity, cpusets).
        quota: CPUs' worth of time per second that the control group grants, or None without a limit.
        sockets: physical packages among the allowed CPUs.
        cores: physical cores among the allowed CPUs.
        nodes: NUMA nodes with allowed CPUs or memory.
    """

    model: str
    architecture: str
    present: tuple[int, ...]
    allowed: tuple[int, ...]
    quota: float | None
    sockets: int
    cores: int
    nodes: tuple[NumaNode, ...]


def parse_cpulist(text: str) -> tuple[int, ...]:
    """CPU numbers of the kernel's list format, `0-3,8,10-11`. Raises ValueError."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def format_cpulist(cpus: Sequence[int]) -> str:
    """The kernel's list format of CPU numbers: the inverse of `parse_cpulist`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def read(path: Path) -> str:
    """A small file of sysfs or procfs without surrounding blanks; '' where it does not exist or may not be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def probe_cpus(root: Path = Path("/")) -> Cpus:
    """The processors of this machine; `root` is the folder that holds sys and proc."""
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    devices = root / "sys/devices/system"
    present = parse_cpulist(read(devices / "cpu/online")) or allowed
    packages = set()
    cores = set()
    for cpu in allowed:
        topology = devices / f"cpu/cpu{cpu}/topology"
        package = read(topology / "physical_package_id") or "0"
        packages.add(package)
        cores.add((package, read(topology / "core_id") or str(cpu)))
    return Cpus(
        model=_model(root),
        architecture=platform.machine(),
        present=present,
        allowed=allowed,
        quota=_quota(root),
        sockets=len(packages),
        cores=len(cores),
        nodes=_nodes(devices / "node", allowed),
    )


def _model(root: Path) -> str:
    for line in read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.split())
    return platform.processor() or platform.machine()


def _quota(root: Path) -> float | None:
    """CPUs' worth of time that the control group grants (version 2, then version 1); None: no limit."""
    limit, _, period = read(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if not limit:
        limit = read(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = read(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if not limit.isdigit() or not period.isdigit():  # "max", -1, or no control group
        return None
    return int(limit) / int(period)


def _nodes(folder: Path, allowed: tuple[int, ...]) -> tuple[NumaNode, ...]:
    nodes = []
    for number in parse_cpulist(read(folder / "online")):
        here = folder / f"node{number}"
        cpus = tuple(cpu for cpu in parse_cpulist(read(here / "cpulist")) if cpu in allowed)
        distances = tuple(int(word) for word in read(here / "distance").split())
        nodes.append(NumaNode(number, cpus, _memory(here), distances))
    if not nodes:  # kernels without NUMA, and containers that hide it
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        nodes.append(NumaNode(0, allowed, memory, (10,)))
    return tuple(nodes)


def _memory(node: Path) -> int:
    """Bytes of memory of a node."""
    for line in read(node / "meminfo").splitlines():
        words = line.split()
        if "MemTotal:" in words:
            return int(words[-2]) * 1024
    return 0
