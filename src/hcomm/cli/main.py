"""The command `hcomm`."""

from __future__ import annotations

import click

from hcomm.cli.check import check


@click.group()
@click.version_option(package_name="hcomm")
def main() -> None:
    """Collective communication for distributed training."""


main.add_command(check)

if __name__ == "__main__":
    main()
