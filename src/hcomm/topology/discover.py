"""The topology of a job, from the source that is trusted most: a file, hints, or a look at the machine."""

from __future__ import annotations

import os
import re
import socket
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hcomm.errors import TopologyError
from hcomm.topology.model import KINDS, Device, Host, Link, Nic, Node, Topology

FILE = "HCOMM_TOPOLOGY"
NVLINK_MAPS = ("HCOMM_NVLINK_MAP", "HCCL_NVLINK_MAP")
_GROUP = re.compile(r"HC(?:CL|OMM)_GROUP_(\d+)")


def is_hint(name: str) -> bool:
    """Whether an environment variable describes groups or links: HCCL_GROUP_<n>, HCCL_NVLINK_MAP, or with HCOMM_."""
    return name in NVLINK_MAPS or _GROUP.fullmatch(name) is not None


def discover(environ: Mapping[str, str] | None = None) -> Topology:
    """The topology from the first source that there is.

    The file of HCOMM_TOPOLOGY; the hints HCCL_GROUP_<n> and HCCL_NVLINK_MAP; a look at this host. A stronger source
    is believed entirely: hints beside a file are ignored with a warning.

    Raises:
        TopologyError: the file or a hint is wrong.
    """
    environ = os.environ if environ is None else environ
    return described(environ) or probe_topology()


def described(environ: Mapping[str, str], devices: int | None = None) -> Topology | None:
    """The topology that the user describes, by a file or by hints; None where nothing is said.

    Args:
        environ: the environment.
        devices: the least number of devices that hints are about.

    Raises:
        TopologyError: the file or a hint is wrong.
    """
    hints = sorted(name for name in environ if environ[name].strip() and is_hint(name))
    path = environ.get(FILE, "").strip()
    if path:
        from hcomm.topology.files import load_topology

        if hints:
            warnings.warn(
                f"hcomm ignores {', '.join(hints)} because of {FILE}={path}", RuntimeWarning, stacklevel=3
            )
        return load_topology(path)
    return hinted(environ, devices) if hints else None


def hinted(environ: Mapping[str, str], devices: int | None = None) -> Topology:
    """The topology that group hints describe: one host, as many devices as the hints name (at least `devices`).

    Raises:
        TopologyError: a hint does not parse, or hints contradict each other; names the variable.
    """
    groups: dict[int, tuple[int, ...]] = {}
    for name in sorted(environ):
        match = _GROUP.fullmatch(name)
        if match and environ[name].strip():
            number = int(match[1])
            if number in groups:
                raise TopologyError(f"{name}: group {number} is given twice, as HCCL_ and as HCOMM_")
            groups[number] = _ranks(name, environ[name])
    _check_partition(groups)
    maps = {name: environ[name] for name in NVLINK_MAPS if environ.get(name, "").strip()}
    if len(set(maps.values())) > 1:
        raise TopologyError(" and ".join(f"{k}={v!r}" for k, v in maps.items()) + " contradict each other")
    pairs = [pair for name, text in list(maps.items())[:1] for pair in _pairs(name, text)]
    named = [rank for group in groups.values() for rank in group] + [rank for pair in pairs for rank in pair]
    count = max([devices or 0, *(rank + 1 for rank in named)])
    if groups:
        absent = sorted(set(range(count)) - {rank for group in groups.values() for rank in group})
        if absent:
            raise TopologyError(f"HCCL_GROUP_<n>: ranks {absent} are in no group; every rank must be in one")
    source = "hints " + ", ".join(name for name in sorted(environ) if is_hint(name))
    host = Host("host0", devices=tuple(Device(number) for number in range(count)))
    links = tuple(Link(f"host0/gpu{a}", f"host0/gpu{b}", "nvlink", *KINDS["nvlink"]) for a, b in pairs)
    return Topology((host,), links, source, tuple(groups[number] for number in sorted(groups)))


def _ranks(name: str, text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() for word in words):
        raise TopologyError(f"{name}={text!r}: expected ranks such as 0,1,2,3")
    ranks = tuple(map(int, words))
    if len(set(ranks)) != len(ranks):
        raise TopologyError(f"{name}={text!r}: a rank is there twice")
    if max(ranks) >= 1 << 16:
        raise TopologyError(f"{name}={text!r}: {max(ranks)} is no rank of a job of this size")
    return ranks


def _check_partition(groups: Mapping[int, Iterable[int]]) -> None:
    home: dict[int, int] = {}
    for number in sorted(groups):
        for rank in groups[number]:
            if home.setdefault(rank, number) != number:
                raise TopologyError(f"HCCL_GROUP_{number}: rank {rank} is in HCCL_GROUP_{home[rank]} already")


def _pairs(name: str, text: str) -> list[tuple[int, int]]:
    """Pairs of `0:1,1:2`."""
    pairs: list[tuple[int, int]] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d{1,5}):(\d{1,5})", word)
        if match is None:
            raise TopologyError(f"{name}={text!r}: expected pairs such as 0:1,1:2, found {word!r}")
        a, b = sorted((int(match[1]), int(match[2])))
        if a == b:
            raise TopologyError(f"{name}={text!r}: {word} links a device with itself")
        if (a, b) not in pairs:
            pairs.append((a, b))
    return pairs


def probe_topology() -> Topology:
    """What this host shows: NUMA nodes, interfaces that are up, and GPUs with the links of `nvidia-smi topo -m`.

    Without GPUs, the CPUs that this process may use are the devices.

    Raises:
        TopologyError: `nvidia-smi` prints a table that cannot be understood.
    """
    from hcomm.topology import nvidia_smi
    from hcomm.topology.cpus import probe_cpus
    from hcomm.topology.network import probe_interfaces

    cpus = probe_cpus()
    name = socket.gethostname()
    nodes = tuple(Node(node.id, node.id, node.cpus, node.memory) for node in cpus.nodes)
    known = {node.id for node in nodes}
    nics = tuple(
        Nic(i.name, float(i.speed), i.kind, i.node if i.node in known else -1)
        for i in probe_interfaces()
        if i.up and i.kind in ("ethernet", "infiniband")
    )
    table = nvidia_smi.run()
    if table and "GPU0" in table:
        host, links = nvidia_smi.parse_matrix(table, name)
        seen = tuple(replace(d, node=d.node if d.node in known else -1) for d in host.devices)
        return Topology((Host(name, nodes, seen, nics or host.nics),), links, "probed")
    home = {cpu: node.id for node in nodes for cpu in node.cpus}
    devices = tuple(Device(cpu, "cpu", home.get(cpu, -1)) for cpu in cpus.allowed)
    return Topology((Host(name, nodes, devices, nics),), (), "probed")
