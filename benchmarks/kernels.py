"""Every reduce kernel against what this machine's memory can do.

    python -m benchmarks.kernels
    python -m benchmarks.kernels --sizes 256K,25M --filter "bfloat16 sum" --levels all --json kernels.json
    python -m benchmarks.kernels --bound --sizes 1M,25M,100M

For each type and operator, and for several numbers of sources and destinations of one pass: GB/s (each source read
once, each destination written once), and its share of what an addition of two arrays of floats reaches on this core,
measured between the repetitions of the kernel. Builds native/kernels/bench_kernels.cpp where it is not built yet.

With --bound instead: an all_reduce of two ranks in shared memory beside what its traffic must take (bound.py).

Exit code: 0 measured, 1 it could not be built or run, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import bound
from benchmarks.jobs import ROOT
from benchmarks.tables import size as size_text
from hcomm.bench.machine import describe
from hcomm.cli.bench import PowerSize

_SIZES = "256K,25M"
_REPETITIONS = 7
_RUN_SECONDS = 1800.0
#: Supported pairs of type and operator: what a run without a filter measures at each size and level.
_KERNELS = 97


class Failed(Exception):
    """The benchmark could not be built or run; the message is the end of what was said."""


def build(name: str = "bench_kernels") -> Path:
    """A program of native/kernels, built.

    Raises:
        Failed: there is no cmake, or it does not compile.
    """
    cmake = _tool("cmake")
    if cmake is None:
        raise Failed("cmake is not installed, and bench_kernels must be built: pip install cmake ninja")
    # The C++ tests have compiled the kernels already; what is left to do there is a second's work.
    folder = ROOT / "build" / "native-tests"
    if not (folder / "CMakeCache.txt").exists():
        folder = ROOT / "build" / "kernels"
        configure = [cmake, "-S", str(ROOT), "-B", str(folder), "-DHCOMM_PYTHON=OFF"]
        if ninja := _tool("ninja"):
            configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        _run(configure)
    _run([cmake, "--build", str(folder), "--target", name])
    return folder / "native" / "kernels" / name


def _tool(name: str) -> str | None:
    """A program beside this Python, or in PATH."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stdout + done.stderr).strip().splitlines()[-12:]
        raise Failed("\n  ".join([f"{' '.join(command[:3])} … failed", *words]))


def measure(program: Path, nbytes: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the program at one size: the machine's limits, then a kernel each.

    Raises:
        Failed: it failed.
    """
    command = [str(program), f"{nbytes / 1024:g}", str(options.repetitions), options.levels, options.filter]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            yield json.loads(line)
        words = process.stderr.read().strip()
    if process.returncode:
        raise Failed(f"{program.name} ended with exit code {process.returncode}: {words}")


def table(limits: dict[str, Any], kernels: Sequence[dict[str, Any]]) -> Table:
    """All kernels at one size."""
    caption = (
        f"the machine at this size, one core: memcpy {limits['memcpy']:.1f}, hcomm's copy {limits['copy_bytes']:.1f}, "
        f"streaming copy {limits['copy_streaming']:.1f}, addition of two float arrays {limits['add']:.1f}, "
        f"with streaming stores {limits['add_streaming']:.1f} GB/s"
    )
    made = Table(
        title=f"{size_text(limits['bytes'])} per buffer, GB/s (× the addition beside it)", caption=caption
    )
    for name in ("level", "type", "operator"):
        made.add_column(name)
    shapes = list(kernels[0]["shapes"]) if kernels else []
    for name in ("copy", "add", *(shape.replace(">", " → ") for shape in shapes)):
        made.add_column(name, justify="right", no_wrap=True)
    for kernel in kernels:
        cells = [f"{speed:.1f} ({speed / kernel['add']:.2f})" for speed in kernel["shapes"].values()]
        made.add_row(
            kernel["level"],
            kernel["dtype"],
            kernel["op"],
            f"{kernel['copy']:.1f}",
            f"{kernel['add']:.1f}",
            *cells,
        )
    return made


def _sizes(text: str) -> list[int]:
    found = [PowerSize().convert(word, None, None) for word in text.split(",")]
    if min(found) < 4096:
        raise argparse.ArgumentTypeError("a size is at least 4K")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.kernels", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--sizes", type=_sizes, default=_SIZES, help=f"of each buffer (default {_SIZES})")
    parser.add_argument("--repetitions", type=int, default=_REPETITIONS, help=f"(default {_REPETITIONS})")
    parser.add_argument(
        "--levels", choices=["best", "all"], default="best", help="instruction sets (default: best)"
    )
    parser.add_argument("--filter", default="", help="a type, an operator, or both: 'bfloat16 sum'")
    parser.add_argument(
        "--bound", action="store_true", help="all_reduce beside the bound of its memory traffic"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, measure, print, write; returns the exit code."""
    options = _parser().parse_args(arguments)
    console, progress = Console(), _progress()
    document: dict[str, Any] = {"version": 1, "machine": describe(()), "sizes": []}
    try:
        if options.bound:
            bound.report(build("bench_bound"), options.sizes, options.repetitions, options.json, console)
            return 0
        program = build()
        with progress:
            known = _KERNELS * len(options.sizes) if not options.filter and options.levels == "best" else None
            bar = progress.add_task("kernels", total=known)
            for nbytes in options.sizes:
                limits, *kernels = (
                    _advanced(entry, progress, bar) for entry in measure(program, nbytes, options)
                )
                document["sizes"].append({**limits, "kernels": kernels})
    except (Failed, bound.Failed) as failure:
        print(f"benchmarks.kernels: {failure}", file=sys.stderr)
        return 1
    machine = document["machine"]
    console.print(f"{machine['cpu']} ({machine['architecture']}), {machine['kernel']}, kernels: {machine['simd']}, "
                  f"load average {machine['load']:.1f} before the start", highlight=False)  # fmt: skip
    for entry in document["sizes"]:
        console.print(table(entry, entry["kernels"]))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    shown = sys.stderr.isatty()
    return Progress(
        *columns, console=Console(stderr=True), auto_refresh=False, transient=True, disable=not shown
    )


def _advanced(entry: dict[str, Any], progress: Progress, bar: Any) -> dict[str, Any]:
    progress.update(bar, advance="bytes" not in entry, refresh=True)
    return entry


if __name__ == "__main__":
    sys.exit(main())
