"""A model of the machines of a job: hosts, NUMA nodes, devices, and the links that join devices.

A `Topology` is checked when it is made: afterwards every name that a link or device mentions exists, and no pair has
two stories. Bandwidths are in bytes per second and each direction, latencies in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hcomm.errors import TopologyError

#: Kind of link → (bandwidth in B/s, latency in s) where a source names only the kind. PCI and processor links as in
#: NCCL's table (topo.h), Ethernet as 10 Gbit/s.
KINDS: Mapping[str, tuple[float, float]] = {
    "nvlink": (20e9, 1e-6),
    "shm": (8e9, 0.6e-6),
    "pci": (12e9, 3e-6),
    "host": (10e9, 4e-6),
    "numa": (10e9, 4e-6),
    "ethernet": (1.25e9, 25e-6),
    "infiniband": (12.5e9, 3e-6),
}


@dataclass(frozen=True)
class Node:
    """A NUMA node: its number on the host, its socket, the CPUs it has, its memory in bytes (0: unknown)."""

    id: int
    socket: int = 0
    cpus: tuple[int, ...] = ()
    memory: int = 0


@dataclass(frozen=True)
class Device:
    """What a rank can run on.

    Attributes:
        id: its number on the host.
        kind: `gpu`, `cpu` or what the source calls it.
        node: number of the NUMA node it hangs on; -1: unknown.
        label: for people; may be empty.
    """

    id: int
    kind: str = "gpu"
    node: int = -1
    label: str = ""

    @property
    def name(self) -> str:
        """`gpu0`."""
        return f"{self.kind}{self.id}"


@dataclass(frozen=True)
class Nic:
    """A network interface: name, bits per second (0: unknown), kind and NUMA node (-1: unknown)."""

    name: str
    speed: float = 0.0
    kind: str = "ethernet"
    node: int = -1


@dataclass(frozen=True)
class Host:
    """One host with all that is in it."""

    name: str
    nodes: tuple[Node, ...] = ()
    devices: tuple[Device, ...] = ()
    nics: tuple[Nic, ...] = ()


@dataclass(frozen=True)
class Link:
    """A direct link between two devices, alike in both directions.

    Attributes:
        a, b: names of devices, `host/gpu0`.
        kind: `nvlink`, `pci`, `numa`, `ethernet`, …
        bandwidth: bytes per second.
        latency: seconds.
    """

    a: str
    b: str
    kind: str
    bandwidth: float
    latency: float

    @property
    def pair(self) -> tuple[str, str]:
        """Both ends, in alphabetical order."""
        return (self.a, self.b) if self.a <= self.b else (self.b, self.a)


@dataclass(frozen=True)
class Topology:
    """All hosts and links. Rank r of a job that has one rank per device runs on the r-th device.

    Attributes:
        hosts: in the order of ranks.
        links: direct links; a pair without one goes through its hosts, or the network.
        source: where it is from, for messages.
        groups: groups of ranks that the user named as fast; empty: found by the links.

    Raises:
        TopologyError: when made from parts that contradict each other; names `source` and the part.
    """

    hosts: tuple[Host, ...]
    links: tuple[Link, ...] = ()
    source: str = "given"
    groups: tuple[tuple[int, ...], ...] = ()
    _by_pair: dict[tuple[str, str], Link] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.hosts:
            raise TopologyError(f"{self.source}: no hosts")
        _unique(self.source, "hosts", (host.name for host in self.hosts))
        for host in self.hosts:
            where = f"{self.source}: host '{host.name}'"
            _unique(where, "NUMA nodes", (str(node.id) for node in host.nodes))
            _unique(where, "devices", (device.name for device in host.devices))
            nodes = {node.id for node in host.nodes}
            things: tuple[Device | Nic, ...] = (*host.devices, *host.nics)
            for thing in things:
                if thing.node != -1 and thing.node not in nodes:
                    raise TopologyError(
                        f"{where}, {thing.name}: NUMA node {thing.node} does not exist; there are {sorted(nodes)}"
                    )
        known = set(self.devices)
        for number, link in enumerate(self.links):
            self._check_link(f"{self.source}: links[{number}] ({link.a} - {link.b})", link, known)
        self._check_groups()

    def _check_link(self, where: str, link: Link, known: set[str]) -> None:
        for end in (link.a, link.b):
            if end not in known:
                raise TopologyError(f"{where}: unknown device '{end}'; there are {', '.join(sorted(known))}")
        if link.a == link.b:
            raise TopologyError(f"{where}: a link joins two devices, not one with itself")
        if not 0 < link.bandwidth < float("inf"):
            raise TopologyError(
                f"{where}: bandwidth must be a positive number of B/s, found {link.bandwidth}"
            )
        if not 0 <= link.latency < float("inf"):
            raise TopologyError(f"{where}: latency must be a number of seconds from 0, found {link.latency}")
        other = self._by_pair.setdefault(link.pair, link)
        if (other.kind, other.bandwidth, other.latency) != (link.kind, link.bandwidth, link.latency):
            raise TopologyError(
                f"{where}: contradicts an earlier link of the same pair: {_says(other)}, now {_says(link)}"
            )

    def _check_groups(self) -> None:
        size = len(self.devices)
        for number, group in enumerate(self.groups):
            foreign = [rank for rank in group if not 0 <= rank < size]
            if foreign:
                raise TopologyError(
                    f"{self.source}: group {number}: ranks {foreign} do not exist; there are {size} devices"
                )
        _unique(self.source, "ranks of groups", (str(r) for group in self.groups for r in group))

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of all devices, `host/gpu0`, in the order of ranks."""
        return tuple(f"{host.name}/{device.name}" for host in self.hosts for device in host.devices)

    def host_of(self, device: str) -> Host:
        """The host of a device."""
        return next(host for host in self.hosts if host.name == device.partition("/")[0])

    def link(self, a: str, b: str) -> Link:
        """How two devices reach each other: their direct link, or the way through their hosts."""
        direct = self._by_pair.get((a, b) if a <= b else (b, a))
        if direct is not None:
            return direct
        first, second = self.host_of(a), self.host_of(b)
        if first.name != second.name:
            speeds = [
                (nic.speed / 8 or KINDS[nic.kind][0], KINDS[nic.kind][1], nic.kind)
                for nic in (_best_nic(first), _best_nic(second))
            ]
            bandwidth, latency, kind = min(speeds)
            return Link(a, b, kind, bandwidth, latency)
        kind = "host" if _device(first, a).node == _device(second, b).node else "numa"
        return Link(a, b, kind, *KINDS[kind])

    def has_link(self, a: str, b: str) -> bool:
        """Whether a direct link joins two devices."""
        return ((a, b) if a <= b else (b, a)) in self._by_pair

    def pairs(self) -> Iterator[Link]:
        """The ways of all pairs of devices."""
        names = self.devices
        for index, a in enumerate(names):
            for b in names[index + 1 :]:
                yield self.link(a, b)

    def fast_groups(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that share fast links: a partition of all ranks, by smallest rank.

        The named groups, if there are any. Otherwise two ranks are together when links of at least half the fastest
        one's bandwidth lead from one to the other. Without direct links, the ranks of a host are together.
        """
        names = self.devices
        parent = list(range(len(names)))

        def root(rank: int) -> int:
            while parent[rank] != rank:
                rank = parent[rank]
            return rank

        if self.groups:
            for group in self.groups:
                for rank in group[1:]:
                    parent[root(rank)] = root(group[0])
        elif self.links:
            fast = max(link.bandwidth for link in self.links) / 2
            place = {name: rank for rank, name in enumerate(names)}
            for link in self.links:
                if link.bandwidth >= fast:
                    parent[root(place[link.a])] = root(place[link.b])
        else:
            first: dict[str, int] = {}
            for rank, name in enumerate(names):
                parent[rank] = first.setdefault(name.partition("/")[0], rank)
        groups: dict[int, list[int]] = {}
        for rank in range(len(names)):
            groups.setdefault(root(rank), []).append(rank)
        return tuple(sorted(map(tuple, groups.values())))


def _unique(where: str, what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise TopologyError(f"{where}: {what}: '{name}' is there twice")
        seen.add(name)


def _says(link: Link) -> str:
    return f"{link.kind} of {link.bandwidth:g} B/s, {link.latency:g} s"


def _best_nic(host: Host) -> Nic:
    return max(host.nics, key=lambda nic: nic.speed, default=Nic("unknown"))


def _device(host: Host, name: str) -> Device:
    return next(device for device in host.devices if f"{host.name}/{device.name}" == name)
