"""Topology files: hcomm's JSON (`docs/topology.md`), and the first look at NCCL's XML.

Nothing is guessed from a file that is wrong: every unknown field, missing end and contradiction is an error that names
the file and the place in it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hcomm.errors import TopologyError
from hcomm.topology.cpus import parse_cpulist
from hcomm.topology.model import KINDS, Device, Host, Link, Nic, Node, Topology

#: Version of the JSON document.
VERSION = 1
_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(bit|b|B)/s", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|ms|us|µs|ns)")
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def load_topology(path: str | Path) -> Topology:
    """The topology that a file describes.

    Raises:
        TopologyError: it cannot be read, is neither JSON nor XML, or is wrong; names the file and the place.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"topology file {path}: cannot be read: {error}") from None
    where = f"topology file {path}"
    if text.lstrip().startswith("<"):
        from hcomm.topology.nccl_xml import parse_xml

        return parse_xml(text, where)
    return parse_json(text, where)


def parse_json(text: str, where: str) -> Topology:
    """The topology of a JSON document; `where` begins every error."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise TopologyError(f"{where}: neither JSON nor XML: {error}") from None
    top = _Place(where, document)
    if top.take("hcomm_topology", int) != VERSION:
        raise TopologyError(f"{where}: hcomm_topology: this hcomm reads version {VERSION}")
    hosts = tuple(_host(place) for place in top.items("hosts"))
    links = tuple(_link(place) for place in top.items("links", optional=True))
    groups = tuple(tuple(place.ranks()) for place in top.items("groups", optional=True))
    top.done()
    topology = Topology(hosts, links, where, groups)
    check_complete(topology)
    return topology


def check_complete(topology: Topology) -> None:
    """What a file says of some devices of a host it must say of all; hosts must reach each other.

    Raises:
        TopologyError: a device has no link although others of its host have, or a host has no way to the others.
    """
    ends = {end for link in topology.links for end in link.pair}
    crossing = {
        end.partition("/")[0]
        for link in topology.links
        for end in link.pair
        if link.a.partition("/")[0] != link.b.partition("/")[0]
    }
    for host in topology.hosts:
        names = [f"{host.name}/{device.name}" for device in host.devices]
        missing = [name for name in names if name not in ends]
        if missing and len(missing) < len(names):
            raise TopologyError(
                f"{topology.source}: links: {', '.join(missing)} has no link, but other devices of host "
                f"'{host.name}' have; list its links, or none of this host"
            )
        if len(topology.hosts) > 1 and not host.nics and host.name not in crossing:
            raise TopologyError(
                f"{topology.source}: host '{host.name}' has neither nics nor links to other hosts: "
                "there is no way to it"
            )


class _Place:
    """A value in a document, with the words to say where it is."""

    def __init__(self, where: str, value: Any) -> None:
        self.where = where
        self.value = value
        self._taken: set[str] = set()

    def fail(self, problem: str) -> TopologyError:
        return TopologyError(f"{self.where}: {problem}")

    def _fields(self) -> Mapping[str, Any]:
        if not isinstance(self.value, dict):
            raise self.fail(f"expected an object {{…}}, found {self.value!r:.60}")
        return self.value

    def take(self, name: str, kind: type, default: Any = None) -> Any:
        """A field of a type; required without a default."""
        self._taken.add(name)
        value = self._fields().get(name, default)
        if value is None:
            raise self.fail(f"'{name}' is missing")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.fail(f"{name}: expected {kind.__name__}, found {value!r:.60}")
        if isinstance(value, int) and value < -1:
            raise self.fail(f"{name}: {value} is negative")
        return value

    def items(self, name: str, optional: bool = False) -> list[_Place]:
        """The elements of a list in a field."""
        values = self.take(name, list, [] if optional else None)
        return [_Place(f"{self.where}: {name}[{index}]", value) for index, value in enumerate(values)]

    def quantity(self, name: str, pattern: re.Pattern[str], default: float | None, example: str) -> float:
        """A number in base units, or with a unit."""
        value = self._fields().get(name, default)
        self._taken.add(name)
        if value is None:
            raise self.fail(f"'{name}' is missing")
        match = pattern.fullmatch(value) if isinstance(value, str) else None
        if match is not None:
            value = _scaled(match)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(f"{name}: expected a number or a text such as '{example}', found {value!r:.60}")
        if value < 0 or not math.isfinite(value):
            raise self.fail(f"{name}: {value} is negative or infinite")
        return float(value)

    def ranks(self) -> list[int]:
        """The value itself as a list of ranks."""
        if not isinstance(self.value, list) or not all(type(rank) is int for rank in self.value):
            raise self.fail(f"expected a list of ranks, found {self.value!r:.60}")
        return self.value

    def done(self) -> None:
        """Every field was taken."""
        unknown = sorted(set(self._fields()) - self._taken)
        if unknown:
            raise self.fail(f"unknown field '{unknown[0]}'; known: {', '.join(sorted(self._taken))}")


def parse_rate(text: str) -> float:
    """B/s of `300GB/s` or `100Gbit/s`; 0 for what is no rate."""
    match = _RATE.fullmatch(text.strip())
    return _scaled(match) if match else 0.0


def _scaled(match: re.Match[str]) -> float:
    if match.re is _TIME:
        return float(match[1]) * _TIMES[match[2]]
    number = float(match[1]) * _SCALES[match[2].upper()]
    return number / 8 if match[3].lower() == "bit" or match[3] == "b" else number


def _host(place: _Place) -> Host:
    nodes = []
    for item in place.items("nodes", optional=True):
        text = item.take("cpus", str, "")
        try:
            cpus = parse_cpulist(text)
        except ValueError:
            raise item.fail(f"cpus: expected a list such as 0-3,8, found {text!r}") from None
        nodes.append(
            Node(item.take("id", int), item.take("socket", int, 0), cpus, item.take("memory", int, 0))
        )
        item.done()
    devices = []
    for item in place.items("devices"):
        kind, label = item.take("kind", str, "gpu"), item.take("label", str, "")
        devices.append(Device(item.take("id", int), kind, item.take("node", int, -1), label))
        item.done()
    nics = []
    for item in place.items("nics", optional=True):
        speed = 8 * item.quantity("speed", _RATE, 0.0, "100Gbit/s") if "speed" in item.value else 0.0
        kind = item.take("kind", str, "ethernet")
        if kind not in ("ethernet", "infiniband"):
            raise item.fail(f"kind: expected ethernet or infiniband, found {kind!r}")
        nics.append(Nic(item.take("name", str), speed, kind, item.take("node", int, -1)))
        item.done()
    host = Host(place.take("name", str), tuple(nodes), tuple(devices), tuple(nics))
    place.done()
    if not devices:
        raise place.fail("devices: a host needs at least one")
    return host


def _link(place: _Place) -> Link:
    between = place.take("between", list)
    if len(between) != 2 or not all(isinstance(end, str) for end in between):
        raise place.fail(f"between: expected two devices such as 'h0/gpu0', found {between!r:.60}")
    kind = place.take("kind", str)
    bandwidth, latency = KINDS.get(kind, (None, None))
    link = Link(
        between[0],
        between[1],
        kind,
        place.quantity("bandwidth", _RATE, bandwidth, "300GB/s"),
        place.quantity("latency", _TIME, latency, "1us"),
    )
    place.done()
    return link
