"""Scenes of a topology: what a description of machines means for the cost of programs."""

from __future__ import annotations

from ..topology.model import Topology
from .cost import Costs, LinkCost, Scene


def scene_of(topology: Topology, costs: Costs | None = None) -> Scene:
    """One rank per device of a topology, with the costs of its links.

    Every direct link is a class of its own cost; what has none goes through the host's memory or the network. The
    ranks of a host share memory. The slowest interface that is any host's fastest bounds what hosts exchange.
    """
    costs = costs or Costs()
    names = topology.devices
    place = {name: rank for rank, name in enumerate(names)}
    hosts = tuple(
        tuple(place[f"{host.name}/{device.name}"] for device in host.devices)
        for host in topology.hosts
        if host.devices
    )
    classes: dict[tuple[int, int], str] = {}
    links: dict[str, LinkCost] = {}
    for link in topology.links:
        name = f"{link.kind} {link.bandwidth:g} B/s"
        links[name] = LinkCost(link.latency, 1 / link.bandwidth)
        a, b = sorted((place[link.a], place[link.b]))
        classes[a, b] = name
    speeds = [max((nic.speed for nic in host.nics), default=0.0) for host in topology.hosts]
    known = [speed for speed in speeds if speed]
    if len(topology.hosts) > 1 and known:
        nic = 8 / min(known)
        tcp = costs.link("tcp")
        costs = costs.with_links({"tcp": LinkCost(tcp.alpha, max(tcp.beta, nic), tcp.cpu)}, nic=nic)
    return Scene(hosts, hosts, costs.with_links(links), classes)
