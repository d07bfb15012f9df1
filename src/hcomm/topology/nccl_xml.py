"""NCCL's topology XML (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE): one host as NCCL sees it.

Read are `system > cpu > pci > gpu > nvlink` and `net`; the PCI tree between them decides the rest.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as Tree
from collections.abc import Iterator
from dataclasses import dataclass

from hcomm.errors import TopologyError
from hcomm.topology.model import KINDS, Device, Host, Link, Nic, Node, Topology

#: B/s and direction of one NVLink by compute capability: NCCL's graph/topo.h.
_NVLINK = {60: 18e9, 70: 20e9, 80: 20e9, 86: 12e9, 90: 20.6e9, 100: 40.1e9}
_SWITCH = "0x0680"  # PCI class of bridges: an NVSwitch
_GENERATION = re.compile(r"([\d.]+)\s*GT/s")


@dataclass
class _Gpu:
    number: int
    node: int
    busid: str
    generation: int  # compute capability, 80 for A100
    pci: float
    links: dict[str, int]


def parse_xml(text: str, where: str) -> Topology:
    """The topology of an XML document; `where` begins every error.

    Raises:
        TopologyError: it is not XML, not NCCL's, or contradicts itself.
    """
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise TopologyError(f"{where}: a topology has no document type and no entities")
    try:
        system = Tree.fromstring(text)
    except Tree.ParseError as error:
        raise TopologyError(f"{where}: not XML: {error}") from None
    if system.tag != "system":
        raise TopologyError(f"{where}: expected <system> as NCCL writes it, found <{system.tag}>")
    nodes: list[Node] = []
    gpus: list[_Gpu] = []
    nics: list[Nic] = []
    for cpu in system.findall("cpu"):
        node = _number(cpu, "numaid", where)
        nodes.append(Node(max(node, 0), max(node, 0), _mask(cpu.get("affinity", ""), where)))
        gpus += list(_gpus(cpu, max(node, 0), where))
        for net in cpu.iter("net"):
            name = net.get("name") or f"net{net.get('dev', len(nics))}"
            kind = "infiniband" if name.startswith(("mlx", "ib")) else "ethernet"
            nics.append(Nic(name, 1e6 * _number(net, "speed", where), kind, max(node, 0)))
    if not gpus:
        raise TopologyError(f"{where}: no <gpu>: a topology of what?")
    gpus.sort(key=lambda gpu: gpu.number)
    devices = tuple(Device(g.number, "gpu", g.node, g.busid) for g in gpus)
    unique = {nic.name: nic for nic in nics}
    host = Host("host0", tuple(nodes), devices, tuple(unique.values()))
    return Topology((host,), tuple(_links(gpus, where)), where)


def _number(element: Tree.Element, name: str, where: str) -> int:
    value = element.get(name)
    place = f"{where}: <{element.tag}{' busid=' + element.get('busid', '') if element.get('busid') else ''}>"
    if value is None:
        raise TopologyError(f"{place}: '{name}' is missing")
    if not re.fullmatch(r"-?\d+", value):
        raise TopologyError(f"{place}: {name}: expected a number, found {value!r}")
    if int(value) < (-1 if name == "numaid" else 0):
        raise TopologyError(f"{place}: {name}: {value} is negative")
    return int(value)


def _mask(text: str, where: str) -> tuple[int, ...]:
    """CPUs of the kernel's mask format, `00ff,ffffffff`."""
    try:
        bits = int("".join(word.rjust(8, "0") for word in text.split(",")) or "0", 16)
    except ValueError:
        raise TopologyError(
            f"{where}: <cpu>: affinity: expected a mask such as ffff, found {text!r}"
        ) from None
    return tuple(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


def _gpus(cpu: Tree.Element, node: int, where: str) -> Iterator[_Gpu]:
    def walk(element: Tree.Element, width: float) -> Iterator[_Gpu]:
        for pci in element.findall("pci"):
            own = _pci_rate(pci)
            here = min(width, own) if own else width
            for gpu in pci.findall("gpu"):
                links: dict[str, int] = {}
                for link in gpu.findall("nvlink"):
                    target = (
                        "switch" if link.get("tclass", "").startswith(_SWITCH) else link.get("target", "")
                    )
                    links[target] = links.get(target, 0) + _number(link, "count", where)
                generation = _number(gpu, "sm", where) if gpu.get("sm") else 80
                yield _Gpu(_number(gpu, "dev", where), node, pci.get("busid", ""), generation, here, links)
            yield from walk(pci, here)

    yield from walk(cpu, float("inf"))


def _pci_rate(pci: Tree.Element) -> float:
    """B/s of a PCI link: 128b/130b coding, and a quarter for packets, as NCCL counts."""
    speed = _GENERATION.match(pci.get("link_speed", ""))
    width = pci.get("link_width", "")
    if speed is None or not width.isdigit() or width == "0":
        return 0.0
    return float(speed[1]) * 1e9 / 8 * int(width) * 0.75


def _links(gpus: list[_Gpu], where: str) -> Iterator[Link]:
    """NVLinks where there are some, PCI inside a NUMA node, the processors' link across."""
    by_bus = {gpu.busid: gpu for gpu in gpus}
    for gpu in gpus:
        for target in gpu.links:
            if target != "switch" and target not in by_bus:
                raise TopologyError(f"{where}: <gpu dev={gpu.number}>: nvlink to unknown device '{target}'")
    for index, a in enumerate(gpus):
        for b in gpus[index + 1 :]:
            there, back = a.links.get(b.busid, 0), b.links.get(a.busid, 0)
            if there != back:
                raise TopologyError(
                    f"{where}: <gpu dev={a.number}> has {there} nvlinks to <gpu dev={b.number}>, which has {back} back"
                )
            count = there or min(a.links.get("switch", 0), b.links.get("switch", 0))
            if count:
                kind, each = "nvlink", _per_link(min(a.generation, b.generation))
                bandwidth, latency = each * count, KINDS["nvlink"][1]
            else:
                kind = "pci" if a.node == b.node else "numa"
                bandwidth = min(a.pci, b.pci, *([KINDS["numa"][0]] if kind == "numa" else []))
                latency = KINDS[kind][1]
                if bandwidth == float("inf"):
                    bandwidth = KINDS[kind][0]
            yield Link(f"host0/gpu{a.number}", f"host0/gpu{b.number}", kind, bandwidth, latency)


def _per_link(generation: int) -> float:
    return _NVLINK[max((known for known in _NVLINK if known <= generation), default=60)]
