"""How much of the communication of a training step hides behind backward, between two hosts.

    sudo python -m benchmarks.overlap --rate 1gbit

Exit code: 0 the target is met, 1 it is missed.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.hosts import on_two_hosts

#: Share of the communication that must be hidden.
_HIDDEN = 0.7
_SIZES = [2.0, 5.0, 10.0, 25.0, 50.0, 100.0]


def _scan(found: dict[str, Any]) -> Table:
    table = Table("bucket", "step", title="Sizes of buckets")
    for size, seconds in found["scan"].items():
        mark = " (best)" if float(size) == found["best"] else ""
        table.add_row(f"{float(size):g} MB{mark}", f"{seconds * 1e3:.0f} ms")
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.overlap", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rate", default="1gbit", help="what each host can send")
    parser.add_argument("--megabytes", type=float, default=100.0, help="of gradients")
    parser.add_argument("--bucket", type=float, default=25.0, help="size of a bucket in MB")
    parser.add_argument("--batch", type=int, default=768, help="samples of a step: how long backward takes")
    parser.add_argument("--steps", type=int, default=5, help="timed for each figure")
    parser.add_argument("--scan", action="store_true", help="also try other sizes of buckets")
    options = parser.parse_args()
    arguments = {
        "megabytes": options.megabytes, "batch": options.batch, "count": options.steps,
        "size_mb": options.bucket, "sizes": _SIZES if options.scan else [],
    }  # fmt: skip
    found = on_two_hosts("overlap", options.rate, 1, arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    title = f"A step with {options.megabytes:g} MB of gradients, 2 hosts of 1 rank, {options.rate}"
    table = Table("communication", "step", title=f"{title}, buckets of {options.bucket:g} MB")
    for name in ("alone", "after", "meanwhile"):
        words = {"alone": "none", "after": "after backward", "meanwhile": "during backward"}[name]
        table.add_row(words, f"{found[name] * 1e3:.0f} ms")
    console.print(table)
    if options.scan:
        console.print(_scan(found))
    hidden = 1 - (found["meanwhile"] - found["alone"]) / (found["after"] - found["alone"])
    met = hidden >= _HIDDEN
    console.print(
        f"hidden: {hidden:.0%} of the communication (target {_HIDDEN:.0%}: {'met' if met else 'MISSED'})"
    )
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
