"""An all_reduce of two ranks on tensors of `hcomm.empty`, beside what its memory traffic must take on this machine.

Each rank reads its half of two buffers and writes it to two: 4 n bytes in all, with both cores at work at once.
Divided by the bandwidth of a copy, or of an addition, on both cores at once, whichever is better, that is the bound.
Beside it, the bare loop: two threads that add two buffers in place, with nothing around it. (An addition in place does
not fetch the lines that it writes, as one into a third buffer may, so the loop can be faster than the bound.)
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.jobs import ROOT
from benchmarks.tables import size as size_text
from hcomm.bench.machine import describe

_ROUNDS = 3
_BYTES_MOVED = 4
_SECONDS = 300.0


class Failed(Exception):
    """A measurement ended without a figure; the message is the end of what was said."""


def report(
    program: Path, sizes: Sequence[int], repetitions: int, file: Path | None, console: Console
) -> None:
    """Measure, print, and write JSON.

    Args:
        program: bench_bound, built.
        sizes: bytes of each buffer.
        repetitions: of each figure of the machine, in each of three rounds; medians are kept.
        file: where everything is written, if anywhere.
        console: where the table goes.

    Raises:
        Failed: a measurement failed.
    """
    rows = [_row(program, nbytes, repetitions) for nbytes in sizes]
    console.print(_table(rows))
    if file is not None:
        file.write_text(json.dumps({"version": 1, "machine": describe(()), "bounds": rows}, indent=1) + "\n")


def _row(program: Path, nbytes: int, repetitions: int) -> dict[str, Any]:
    """Rounds of the machine and of hcomm in turn."""
    machine, calls = [], []
    for _ in range(_ROUNDS):
        machine.append(json.loads(_said([str(program), f"{nbytes / 1024:g}", str(repetitions)])))
        calls.append(_all_reduce(nbytes))
    copy, add, loop = (statistics.median(m[name] for m in machine) for name in ("copy", "add", "in_place"))
    seconds = statistics.median(calls)
    bound = _BYTES_MOVED * nbytes / (max(copy, add) * 1e9)
    return {
        "bytes": nbytes, "copy_GBps": copy, "add_GBps": add, "bound_s": bound, "loop_s": loop,
        "all_reduce_s": seconds, "of_bound": seconds / bound, "of_loop": seconds / loop,
    }  # fmt: skip


def _all_reduce(nbytes: int) -> float:
    """Seconds of one all_reduce in place: the median of a launch."""
    with tempfile.TemporaryDirectory(prefix="hcomm-bound-") as folder:
        file = Path(folder) / "bench.json"
        words = f"-m hcomm.bench all_reduce --zero-copy --ranks 2 -b {nbytes} -e {nbytes} --json"
        _said([sys.executable, *words.split(), str(file)])
        (row,) = json.loads(file.read_text())["rows"]
    return float(row["in_place"]["time_us"]) / 1e6


def _said(command: Sequence[str]) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        words = (done.stdout + done.stderr).strip().splitlines()[-6:]
        raise Failed("\n  ".join([f"{Path(command[0]).name} {' '.join(command[1:4])} … failed", *words]))
    return done.stdout


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    made = Table(
        title="all_reduce of two ranks, tensors of hcomm.empty, beside the bound of its memory traffic",
        caption="copy and add: GB/s of two cores at once; bound: 4 n bytes at the better of the two; bare loop: two "
        "threads add two buffers in place",
    )
    names = ("size", "copy", "add", "bound", "bare loop", "all_reduce", "all_reduce/bound", "all_reduce/loop")
    for name in names:
        made.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(
            size_text(row["bytes"]),
            f"{row['copy_GBps']:.1f}",
            f"{row['add_GBps']:.1f}",
            *(f"{row[name] * 1e6:,.0f} us" for name in ("bound_s", "loop_s", "all_reduce_s")),
            f"{row['of_bound']:.2f}",
            f"{row['of_loop']:.2f}",
        )
    return made
