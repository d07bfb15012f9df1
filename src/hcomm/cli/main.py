"""The command `hcomm`."""

from __future__ import annotations

import click

from hcomm.cli.bench import bench
from hcomm.cli.check import check
from hcomm.cli.explain import explain
from hcomm.cli.simulate import simulate
from hcomm.cli.topology import topology


@click.group()
@click.version_option(package_name="hcomm")
def main() -> None:
    """Collective communication for distributed training."""


main.add_command(check)
main.add_command(bench)
main.add_command(topology)
main.add_command(explain)
main.add_command(simulate)

if __name__ == "__main__":
    main()
