"""Run torch's suite on hcomm and on gloo, and write the table of what passes: `compare.py build/torch-suite.md`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from exceptions import EXCEPTIONS

BACKENDS = ("hcomm", "gloo")


def run(backend: str, folder: Path) -> dict[str, dict[str, Any]]:
    """How each test ended on a backend; the log is kept beside the table."""
    results, log = folder / f"torch-suite-{backend}.json", folder / f"torch-suite-{backend}.log"
    results.unlink(missing_ok=True)
    driver = str(Path(__file__).parent / "driver.py")
    with log.open("w") as file, tempfile.TemporaryDirectory() as scratch:
        print(f"torch's suite on {backend}: some minutes; {log}", flush=True)
        subprocess.run(
            [sys.executable, driver, backend, str(results.resolve())], cwd=scratch, stdout=file, stderr=file
        )
    found: dict[str, dict[str, Any]] = json.loads(results.read_text())
    return found


def shortfall(found: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Tests that pass on gloo, do not on hcomm, and are no exceptions; and exceptions that are none any more."""
    passed = {
        backend: {n for n, r in found[backend].items() if r["outcome"] == "passed"} for backend in BACKENDS
    }
    missing = sorted(passed["gloo"] - passed["hcomm"] - EXCEPTIONS.keys())
    return missing + sorted(f"{name} (listed, but passes)" for name in EXCEPTIONS.keys() & passed["hcomm"])


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The Markdown page."""
    lines = [
        "# torch's own tests of a backend, world size 3",
        "",
        "| backend | passed | failed | skipped | seconds |",
    ]
    lines.append("|---|---|---|---|---|")
    for backend in BACKENDS:
        count = Counter(result["outcome"] for result in found[backend].values())
        seconds = sum(result["seconds"] for result in found[backend].values())
        lines.append(
            f"| {backend} | {count['passed']} | {count['failed']} | {count['skipped']} | {seconds:.0f} |"
        )
    lines += ["", "Skipped tests need GPUs, another world size, or a backend by name.", ""]
    lines += ["| test | hcomm | gloo | reason |", "|---|---|---|---|"]
    for name in sorted(found["hcomm"].keys() | found["gloo"].keys()):
        one, other = (found[backend].get(name, {}).get("outcome", "absent") for backend in BACKENDS)
        if (one, other) == ("skipped", "skipped"):
            continue
        lines.append(f"| {name} | {one} | {other} | {EXCEPTIONS.get(name, '')} |")
    return "\n".join(lines) + "\n"


def main(page: Path) -> int:
    """Run both, write the page; 1 if hcomm falls short of gloo."""
    page.parent.mkdir(parents=True, exist_ok=True)
    found = {backend: run(backend, page.parent) for backend in BACKENDS}
    page.write_text(table(found))
    missing = shortfall(found)
    print(table(found).split("\n\nSkipped")[0])
    print(
        "\n".join(["falls short of gloo:", *missing])
        if missing
        else f"as gloo, but for {len(EXCEPTIONS)} exceptions"
    )
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
