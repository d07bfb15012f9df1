"""Arguments of commands that mean sizes and worlds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from hcomm.codes import OPERATIONS
from hcomm.planning.cost import Costs, Scene
from hcomm.topology.files import parse_rate

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?")


def parse_bytes(text: str) -> int:
    """Bytes of `8`, `25MB`, `1.5GB` (powers of ten, as all output of the commands) or `4MiB` (powers of two)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"expected a size such as 8, 64kB, 25MB or 4MiB, found {text!r}")
    power = " KMGT".index(match[2].upper()) if match[2] else 0
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


class Bytes(click.ParamType[int]):
    """A size on the command line."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes of a text. Raises BadParameter."""
        return value if isinstance(value, int) else parse_bytes(str(value))


class Rate(click.ParamType[float]):
    """A rate on the command line, in bytes per second: `300GB/s`, `100Gbit/s`."""

    name = "rate"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """B/s of a text. Raises BadParameter."""
        if isinstance(value, float):
            return value
        rate = parse_rate(str(value))
        if not rate:
            raise click.BadParameter(f"expected a rate such as 300GB/s or 100Gbit/s, found {value!r}")
        return rate


OPERATION = click.Choice(sorted(OPERATIONS))


def regular_scene(hosts: int, per_host: int, costs: Costs, transport: str = "auto") -> Scene:
    """A world of equal hosts; `transport` tcp: without shared memory."""
    return Scene.regular(hosts, per_host, costs, shm=transport != "tcp")


def divided(ranks: int, hosts: int) -> int:
    """Ranks per host. Raises UsageError when they do not divide."""
    if ranks % hosts:
        raise click.UsageError(f"{ranks} ranks cannot be spread evenly over {hosts} hosts")
    return ranks // hosts


def read_costs(path: Path | None) -> Costs:
    """The costs in a file (as `hcomm simulate --validate --save-costs` writes it), or the defaults.

    Raises:
        ClickException: the file cannot be read, or holds no costs.
    """
    if path is None:
        return Costs()
    try:
        return Costs.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path}: {error}") from None
