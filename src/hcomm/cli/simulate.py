"""`hcomm simulate`: algorithms played on worlds of any size, and held against what this machine does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from hcomm.cli.quantities import OPERATION, Bytes, Rate, read_costs, regular_scene
from hcomm.cli.units import duration, message, rate
from hcomm.errors import HcommError
from hcomm.planning.cost import Costs, LinkCost, Scene
from hcomm.planning.registry import lookup
from hcomm.planning.scenes import scene_of
from hcomm.planning.simulate import Candidate, Point, candidates, point
from hcomm.topology.files import load_topology

#: What a byte of the vector means for each link: nccl-tests' factor of algbw for busbw.
_BUS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "all_gather": lambda p: (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "all_to_all": lambda p: (p - 1) / p,
}


@click.command()
@click.argument("operation", type=OPERATION, required=False)
@click.argument("size", type=Bytes(), required=False)
@click.option("--hosts", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--ranks-per-host", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--topology", type=click.Path(path_type=Path), help="One rank per device of this file instead.")
@click.option("--algorithm", default="all", show_default=True, help="Names, separated by commas, or all.")
@click.option("--inside", type=Rate(), help="Links inside a host, such as 300GB/s, each pair's own.")
@click.option("--between", type=Rate(), help="Links between hosts, such as 100Gbit/s.")
@click.option(
    "--nics", type=click.IntRange(min=1), default=1, help="Interfaces of --between that each host has."
)
@click.option("--latency", type=click.FloatRange(min=0), help="Microseconds of a message between hosts.")
@click.option(
    "--transport", type=click.Choice(["auto", "tcp"]), default="auto", help="tcp: no shared memory."
)
@click.option("--access/--no-access", default=False, help="Ranks of a host reach each other's buffers.")
@click.option("--costs", type=click.Path(path_type=Path), help="Measured costs (JSON, from --save-costs).")
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw time against size and scale (needs matplotlib)."
)
@click.option("--validate", is_flag=True, help="Measure with real processes, and compare.")
@click.option("--ranks", default="2,4", show_default=True, help="Worlds to validate with, on this host.")
@click.option(
    "--save-costs", type=click.Path(path_type=Path), help="With --validate: keep the measured costs."
)
@click.option(
    "--markdown", type=click.Path(path_type=Path), help="With --validate: write the table to this file."
)
def simulate(
    operation: str | None,
    size: int | None,
    hosts: int,
    ranks_per_host: int,
    topology: Path | None,
    algorithm: str,
    inside: float | None,
    between: float | None,
    nics: int,
    latency: float | None,
    transport: str,
    access: bool,
    costs: Path | None,
    plot: Path | None,
    validate: bool,
    ranks: str,
    save_costs: Path | None,
    markdown: Path | None,
) -> None:
    """Predict how long OPERATION of SIZE bytes takes on a world that need not exist.

    With --validate: hold predictions against this machine, or, under torchrun, mpiexec or srun, against that job.
    """
    try:
        if validate:
            from hcomm.cli.validate import validate as run

            sys.exit(run(ranks, save_costs, markdown))
        if operation is None or size is None:
            raise click.UsageError("an operation and a size are needed, such as: all_reduce 100MB")
        if plot is not None:
            from hcomm.cli.plot import need_matplotlib

            need_matplotlib()
        priced = _adapt(read_costs(costs), inside, between, latency, nics)
        if topology is not None:
            scene = scene_of(load_topology(topology), priced)
        else:
            scene = regular_scene(hosts, ranks_per_host, priced, transport)
        names = _names(operation, algorithm)
        points = _simulate(operation, size, scene, names, access)
        _print(operation, scene, points)
        if plot is not None:
            from hcomm.cli.plot import draw

            drawn = [p.algorithm for p in points if p.seconds is not None]
            worlds = [] if topology is not None else _worlds(hosts, ranks_per_host, priced, transport)
            by_size = [p for n in _sizes(size) for p in _simulate(operation, n, scene, drawn, access)]
            by_world = [p for world in worlds for p in _simulate(operation, size, world, drawn, access)]
            draw(plot, operation, by_size, by_world)
            click.echo(f"drawn: {plot}")
    except HcommError as error:
        click.echo(f"hcomm simulate: {error}", err=True)
        sys.exit(2)


def _adapt(
    costs: Costs, inside: float | None, between: float | None, latency: float | None, nics: int = 1
) -> Costs:
    """Costs with the rates of the command line. Links that are faster than a processor copies are driven by devices:
    then no processor is busy with them, and nothing goes through a host's memory.
    """
    shm, tcp = costs.link("shm"), costs.link("tcp")
    if inside is not None:
        free = dict.fromkeys(("memory", "reduce", "fetch", "reach", "access"), 0.0)
        link = LinkCost(shm.alpha, 1 / inside)
        costs = costs.with_links({"shm": link}, copy=1 / inside, far=1.0, **free)
    if between is not None:
        costs = costs.with_links({"tcp": LinkCost(tcp.alpha, 1 / between, 0.0)}, nic=1 / (between * nics))
    if latency is not None:
        tcp = costs.link("tcp")
        costs = costs.with_links({"tcp": LinkCost(latency * 1e-6, tcp.beta, tcp.cpu)})
    return costs


def _names(operation: str, algorithm: str) -> list[str]:
    """Names of the algorithms asked for; [] for all. Raises UnknownAlgorithm."""
    if algorithm.strip().lower() == "all":
        return []
    return [lookup(operation, name.strip()).name for name in algorithm.split(",")]


def _simulate(operation: str, size: int, scene: Scene, names: Sequence[str], access: bool) -> list[Point]:
    found: list[Candidate] = [
        c for c in candidates(operation, scene, size, access=access) if not names or c.name in names
    ]
    points = [point(candidate, scene, operation, size) for candidate in found]
    return sorted(points, key=lambda p: (p.seconds is None, p.seconds, p.algorithm))


def _sizes(size: int) -> list[int]:
    """1 kB and on by tens, up to `size`."""
    return [n for n in (1000 * 10**i for i in range(9)) if n < size] + [size]


def _worlds(hosts: int, ranks_per_host: int, costs: Costs, transport: str) -> list[Scene]:
    """1, 2, 4, … hosts up to `hosts`."""
    counts = [1 << i for i in range(hosts.bit_length()) if 1 << i < hosts] + [hosts]
    return [
        regular_scene(count, ranks_per_host, costs, transport)
        for count in counts
        if count * ranks_per_host > 1
    ]


def _print(operation: str, scene: Scene, points: Sequence[Point]) -> None:
    size = points[0].nbytes if points else 0
    title = f"{operation} of {message(size)} on {len(scene.hosts)} hosts, {scene.size} ranks"
    table = Table(title=title)
    for name in ("algorithm", "time", "algbw", "busbw", "of the best", "messages", "leaves a host", "note"):
        right = name not in ("algorithm", "note")
        table.add_column(name, justify="right" if right else "left", no_wrap=name == "algorithm")
    best = min((p.seconds for p in points if p.seconds), default=0.0)
    for p in points:
        if p.seconds is None or p.played is None:
            table.add_row(p.algorithm, "-", "-", "-", "-", "-", "-", p.note)
            continue
        algbw = size / p.seconds if p.seconds else 0.0
        busbw = algbw * _BUS[operation](scene.size) if operation in _BUS else algbw
        ratio = f"{p.seconds / best:.2f}×" if best else "-"
        cells = (duration(p.seconds), rate(algbw), rate(busbw), ratio, str(p.played.messages))
        table.add_row(p.algorithm, *cells, message(p.played.outside), p.note)
    console = Console(highlight=False)
    console.print(table)
    measured = ", ".join(scene.costs.measured)
    console.print(f"costs: {f'measured ({measured})' if measured else 'assumed, not measured'}")
