"""Network interfaces and what is there for RDMA."""

from __future__ import annotations

import ctypes
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from hcomm.topology.cpus import read

_INFINIBAND = "32"  # ARPHRD_INFINIBAND

#: Libraries of RDMA programs: what for → file name.
RDMA_LIBRARIES = {"libibverbs": "libibverbs.so.1", "librdmacm": "librdmacm.so.1", "UCX": "libucp.so.0"}


@dataclass(frozen=True)
class Interface:
    """A network interface.

    Attributes:
        name: `eth0`.
        kind: `loopback`, `ethernet`, `infiniband` or `virtual` (bridges, containers' cables, tunnels).
        up: whether it can be used now.
        speed: bits per second, 0 when the driver does not tell.
        mtu: bytes per packet.
        addresses: IPv4 and IPv6.
        node: the NUMA node it is attached to, -1 when unknown.
    """

    name: str
    kind: str
    up: bool
    speed: int
    mtu: int
    addresses: tuple[str, ...]
    node: int


@dataclass(frozen=True)
class Rdma:
    """What is there for RDMA.

    Attributes:
        devices: `mlx5_0 (active, 100 Gb/sec (4X EDR))`: devices of the kernel with the state of their first port.
        libraries: name → whether it can be loaded.
        accessible: whether this process may open the devices' files.
    """

    devices: tuple[str, ...]
    libraries: dict[str, bool]
    accessible: bool

    def missing(self) -> list[str]:
        """Names of the libraries that cannot be loaded."""
        return [name for name, there in self.libraries.items() if not there]


def probe_interfaces() -> tuple[Interface, ...]:
    """All interfaces, those that are up first."""
    stats = psutil.net_if_stats()
    addresses = psutil.net_if_addrs()
    found = []
    for name in sorted(stats):
        state = stats[name]
        found.append(
            Interface(
                name=name,
                kind=_kind(name),
                up=state.isup,
                speed=_bits(name, state.speed),
                mtu=state.mtu,
                addresses=tuple(
                    entry.address.split("%")[0]
                    for entry in addresses.get(name, [])
                    if entry.family in (socket.AF_INET, socket.AF_INET6)
                ),
                node=_node(name),
            )
        )
    return tuple(sorted(found, key=lambda i: (not i.up, i.kind == "loopback", i.name)))


def _kind(name: str) -> str:
    link = Path("/sys/class/net") / name
    if name == "lo":
        return "loopback"
    if read(link / "type") == _INFINIBAND:
        return "infiniband"
    return "virtual" if "/virtual/" in os.path.realpath(link) else "ethernet"


def _bits(name: str, megabits: int) -> int:
    """Speed in bits per second; drivers that do not know say 0, -1 or 65535 (and virtual cables claim 10 Gbit/s)."""
    known = 0 < megabits < 65535 or megabits > 65535
    return megabits * 1_000_000 if known and _kind(name) in ("ethernet", "infiniband") else 0


def _node(name: str) -> int:
    text = read(Path("/sys/class/net") / name / "device/numa_node")
    return int(text) if text.lstrip("-").isdigit() else -1


def probe_rdma(folder: Path = Path("/sys/class/infiniband")) -> Rdma:
    """RDMA devices and libraries."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        names = []
    devices = []
    for name in names:
        port = folder / name / "ports/1"
        state = read(port / "state").partition(":")[2].strip().lower() or "state unknown"
        devices.append(f"{name} ({state}, {read(port / 'rate') or 'rate unknown'})")
    libraries = {name: _loads(file) for name, file in RDMA_LIBRARIES.items()}
    verbs = list(Path("/dev/infiniband").glob("uverbs*")) if names else []
    accessible = bool(verbs) and all(os.access(entry, os.R_OK | os.W_OK) for entry in verbs)
    return Rdma(tuple(devices), libraries, accessible)


def _loads(file: str) -> bool:
    """Whether the dynamic linker finds a library: what a program would experience, whatever is installed where."""
    try:
        ctypes.CDLL(file)
    except OSError:
        return False
    return True
