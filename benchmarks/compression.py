"""What compression of gradients costs in accuracy and saves in time.

    python -m benchmarks.compression                     # accuracy, on two ranks of this host
    sudo python -m benchmarks.compression --wire 100mbit  # and steps between two hosts made of network namespaces

The hosts need `netlab` (its path in HCOMM_NETLAB, or ../shared/netlab/netlab). Exit code 1: a target was missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.hosts import on_two_hosts
from benchmarks.jobs import run_job

#: Points of accuracy that a scheme may lose against none.
_MAY_LOSE = {"uint8": 0.1, "topk:0.01": 0.5}
_SCHEMES = [None, "uint8", "bf16", "topk:0.01"]
_WIRE_SCHEMES = [None, "bf16", "uint8", "topk:0.01", "auto"]
#: How much less communication in 8 bits must take on a slow link.
_FASTER = 3.0


def _accuracy(console: Console, ranks: int, seeds: int, epochs: int) -> bool:
    arguments = {"seeds": seeds, "epochs": epochs, "schemes": _SCHEMES}
    found = run_job("accuracy", ranks, arguments, seconds=3600).ranks[0]
    table = Table(title=f"Test accuracy in percent: {ranks} ranks, {epochs} epochs, mean of {seeds} seeds")
    for column in ("model", "compression", "accuracy", "against none", "may lose", "each seed"):
        table.add_column(
            column, justify="left" if column in ("model", "compression", "each seed") else "right"
        )
    good = True
    for model, by_scheme in found.items():
        plain = statistics.mean(by_scheme["None"])
        for scheme, values in by_scheme.items():
            mean = statistics.mean(values)
            may_lose = _MAY_LOSE.get(scheme)
            met = may_lose is None or plain - mean <= may_lose
            good &= met
            table.add_row(
                model, "none" if scheme == "None" else scheme, f"{mean:.2f}", f"{mean - plain:+.2f}",
                "" if may_lose is None else f"{may_lose} {'met' if met else 'MISSED'}",
                " ".join(f"{value:.1f}" for value in values),
            )  # fmt: skip
    console.print(table)
    return good


def _wire(console: Console, rate: str, per_host: int, megabytes: float, count: int) -> bool:
    found = on_two_hosts(
        "steps", rate, per_host, {"megabytes": megabytes, "count": count, "schemes": _WIRE_SCHEMES}
    )
    table = Table(
        title=f"A step with {megabytes:g} MB of gradients, 2 hosts of {per_host} rank(s), {rate}, median of {count}"
    )
    for column in ("compression", "step", "communication", "faster", "sent to other hosts", "of none"):
        table.add_column(column, justify="left" if column == "compression" else "right")
    plain = found["None"]
    for scheme, row in found.items():
        table.add_row(
            "none" if scheme == "None" else scheme, f"{row['step'] * 1e3:.0f} ms",
            f"{row['communication'] * 1e3:.0f} ms", f"{plain['communication'] / row['communication']:.2f}×",
            f"{row['sent'] / 1e6:.2f} MB", f"{row['sent'] / plain['sent']:.3f}",
        )  # fmt: skip
    console.print(table)
    faster = plain["communication"] / found["uint8"]["communication"]
    console.print(
        f"uint8: {faster:.2f}× less communication (target {_FASTER}×: {'met' if faster >= _FASTER else 'MISSED'})"
    )
    return faster >= _FASTER


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.compression", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--seeds", type=int, default=4, help="trainings of each model with each scheme; 0: none"
    )
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument(
        "--wire", metavar="RATE", help="also time steps between two hosts, such as 100mbit (needs root)"
    )
    parser.add_argument("--per-host", type=int, default=1, help="ranks of each host for --wire")
    parser.add_argument("--megabytes", type=float, default=8.0, help="of gradients for --wire")
    parser.add_argument("--steps", type=int, default=5, help="timed for --wire")
    options = parser.parse_args()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    good = options.seeds == 0 or _accuracy(console, options.ranks, options.seeds, options.epochs)
    if options.wire:
        good &= _wire(console, options.wire, options.per_host, options.megabytes, options.steps)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
