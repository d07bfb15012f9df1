"""`hcomm topology`: hosts, devices and links, drawn."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from hcomm.cli.drawing import draw
from hcomm.cli.units import bits, duration, rate, size
from hcomm.errors import HcommError
from hcomm.planning.groups import plan_groups
from hcomm.topology.cpus import format_cpulist
from hcomm.topology.discover import discover
from hcomm.topology.files import load_topology
from hcomm.topology.model import Device, Host, Topology

#: More pairs than this are not listed one by one.
_MOST_PAIRS = 36


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--svg", type=click.Path(path_type=Path), help="Draw into this file as well.")
def topology(file: Path | None, svg: Path | None) -> None:
    """Draw the topology: of FILE, of HCOMM_TOPOLOGY, of hints (HCCL_GROUP_0=0,1, HCCL_NVLINK_MAP=0:1), or of this
    host."""
    try:
        found = load_topology(file) if file is not None else discover()
        if svg is not None:
            svg.write_text(draw(found), encoding="utf-8")
    except (HcommError, OSError) as error:
        click.echo(f"hcomm topology: {error}", err=True)
        sys.exit(2)
    console = Console(highlight=False, soft_wrap=True)
    console.print(tree(found))
    console.print("[bold]Plan[/bold]")
    for line in str(plan_groups(found)).splitlines():
        console.print(f"  {line}")


def tree(found: Topology) -> Tree:
    """The topology as a tree: hosts, NUMA nodes, devices, interfaces, links."""
    rank = {name: number for number, name in enumerate(found.devices)}
    top = Tree(f"[bold]Topology[/bold] ({escape(found.source)})")
    for host in found.hosts:
        branch = top.add(f"[bold]{escape(host.name)}[/bold]")
        for node in host.nodes:
            memory = f", {size(node.memory)}" if node.memory else ""
            cpus = f": CPUs {format_cpulist(node.cpus)}" if node.cpus else ""
            leaf = branch.add(f"NUMA node {node.id}, socket {node.socket}{cpus}{memory}")
            _things(leaf, host, node.id, rank)
        _things(branch, host, -1, rank)
    if found.links:
        listed = top.add("links")
        for link in found.links[:_MOST_PAIRS]:
            listed.add(
                escape(f"{link.a} - {link.b}: {link.kind}")
                + f", {rate(link.bandwidth)}, {duration(link.latency)}"
            )
        if len(found.links) > _MOST_PAIRS:
            listed.add(f"and {len(found.links) - _MOST_PAIRS} more")
    groups = top.add("groups of fast links")
    for group in found.fast_groups():
        groups.add("ranks " + ", ".join(map(str, group)))
    return top


def _things(branch: Tree, host: Host, node: int, rank: dict[str, int]) -> None:
    for device in host.devices:
        if device.node == node:
            branch.add(f"{escape(_name(device))} (rank {rank[f'{host.name}/{device.name}']})")
    for nic in host.nics:
        if nic.node == node:
            branch.add(f"{escape(nic.name)}: {nic.kind}, {bits(nic.speed) if nic.speed else 'speed unknown'}")


def _name(device: Device) -> str:
    return f"{device.name} {device.label}".rstrip()
