"""`hcomm explain`: which algorithm would run, what the others would cost, and why each lost."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from hcomm import config
from hcomm.cli.quantities import OPERATION, Bytes, divided, read_costs, regular_scene
from hcomm.codes import DTYPES
from hcomm.errors import HcommError
from hcomm.planning.explain import explain as explained
from hcomm.planning.scenes import scene_of
from hcomm.planning.select import Request
from hcomm.planning.simulate import setting_of
from hcomm.surroundings import described_groups
from hcomm.topology.discover import FILE
from hcomm.topology.files import load_topology


@click.command()
@click.argument("operation", type=OPERATION)
@click.argument("size", type=Bytes())
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks in all.")
@click.option(
    "--hosts", type=click.IntRange(min=1), default=1, show_default=True, help="Hosts they are spread over."
)
@click.option("--topology", type=click.Path(path_type=Path), help="Ranks and links of this file instead.")
@click.option("--dtype", type=click.Choice(sorted(DTYPES)), default="float32", show_default=True)
@click.option("--op", default="sum", show_default=True, help="Operator.")
@click.option(
    "--transport", type=click.Choice(["auto", "tcp"]), default="auto", help="tcp: no shared memory."
)
@click.option("--access/--no-access", default=False, help="Ranks of a host reach each other's buffers.")
@click.option("--costs", type=click.Path(path_type=Path), help="Measured costs (JSON).")
def explain(
    operation: str,
    size: int,
    ranks: int,
    hosts: int,
    topology: Path | None,
    dtype: str,
    op: str,
    transport: str,
    access: bool,
    costs: Path | None,
) -> None:
    """Tell which algorithm OPERATION of SIZE bytes would use, and why.

    Settings such as HCOMM_ALLREDUCE_ALGO, and groups of fast links, count as they would in a job.
    """
    try:
        if topology is not None:
            scene = scene_of(load_topology(topology), read_costs(costs))
        else:
            scene = regular_scene(hosts, divided(ranks, hosts), read_costs(costs), transport)
        options = {key: str(value) for key, value in config.load().items()}
        world = setting_of(scene, access, options)
        environ = dict(os.environ) if topology is None else {FILE: str(topology)}
        if plan := described_groups(environ, scene.size):
            world = replace(world, groups=plan.text, inside="ring" if plan.inside == "ring" else "direct")
        click.echo(str(explained(world, scene, Request(operation, dtype, op, size, 0))))
    except HcommError as error:
        click.echo(f"hcomm explain: {error}", err=True)
        sys.exit(2)
