"""A topology as SVG: hosts as frames, devices as boxes on a circle, links as lines as wide as their bandwidth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from hcomm.cli.units import bits, rate
from hcomm.topology.model import Topology

_CELL = 300.0
_COLUMNS = 4
_COLOURS = {
    "nvlink": "#2a9d3a",
    "pci": "#888888",
    "host": "#888888",
    "numa": "#d08020",
    "ethernet": "#3070c0",
}


def draw(topology: Topology) -> str:
    """The whole picture as text of an SVG file."""
    columns = min(_COLUMNS, len(topology.hosts))
    rows = -(-len(topology.hosts) // columns)
    width, height = columns * _CELL, rows * _CELL + 30
    body = "\n".join(_body(topology, columns))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>\n{body}\n</svg>\n'
    )


def _body(topology: Topology, columns: int) -> Iterator[str]:
    places = _places(topology, columns)
    for number, host in enumerate(topology.hosts):
        x, y = number % columns * _CELL, number // columns * _CELL
        nics = ", ".join(f"{n.name} {bits(n.speed)}" if n.speed else n.name for n in host.nics)
        yield (
            f'<rect x="{x + 8:g}" y="{y + 8:g}" width="{_CELL - 16:g}" height="{_CELL - 16:g}" rx="8" '
            'fill="#f6f6f6" stroke="#444"/>'
        )
        yield f'<text x="{x + 18:g}" y="{y + 28:g}" font-weight="bold">{escape(host.name)}</text>'
        yield f'<text x="{x + 18:g}" y="{y + _CELL - 18:g}" fill="#3070c0">{escape(nics)}</text>'
    fastest = max((link.bandwidth for link in topology.links), default=1.0)
    for link in topology.links:
        (ax, ay), (bx, by) = places[link.a], places[link.b]
        wide = max(0.6, 4 * link.bandwidth / fastest)
        yield (
            f'<line x1="{ax:.1f}" y1="{ay:.1f}" x2="{bx:.1f}" y2="{by:.1f}" stroke-width="{wide:.2f}" '
            f'stroke="{_COLOURS.get(link.kind, "#7050a0")}" stroke-opacity="0.7">'
            f"<title>{escape(f'{link.a} - {link.b}: {link.kind}, {rate(link.bandwidth)}')}</title></line>"
        )
    for name, (x, y) in places.items():
        label = escape(name.partition("/")[2])
        yield f'<rect x="{x - 24:.1f}" y="{y - 11:.1f}" width="48" height="22" rx="4" fill="white" stroke="#222"/>'
        yield f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{label}</text>'
    kinds = sorted({link.kind for link in topology.links})
    y = -(-len(topology.hosts) // columns) * _CELL + 18
    for number, kind in enumerate(kinds):
        colour = _COLOURS.get(kind, "#7050a0")
        yield f'<text x="{18 + 90 * number}" y="{y:g}" fill="{colour}" font-weight="bold">— {escape(kind)}</text>'


def _places(topology: Topology, columns: int) -> dict[str, tuple[float, float]]:
    """Centres of the devices' boxes."""
    places = {}
    for number, host in enumerate(topology.hosts):
        x, y = (number % columns + 0.5) * _CELL, (number // columns + 0.5) * _CELL
        radius = _CELL * 0.33 if len(host.devices) > 1 else 0.0
        for index, device in enumerate(host.devices):
            angle = 2 * math.pi * index / len(host.devices) - math.pi / 2
            place = x + radius * math.cos(angle), y + radius * math.sin(angle)
            places[f"{host.name}/{device.name}"] = place
    return places
