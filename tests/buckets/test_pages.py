"""Pages whose snippets run as they are, one after the other, on two ranks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from support.command import TORCHRUN
from support.job import clean_env

ROOT = Path(__file__).resolve().parents[2]


def test_the_snippets_of_the_pages(tmp_path: Path) -> None:
    snippets = []
    for page in ("buckets", "compression", "parallelism"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        snippets += re.findall(
            r"```python\n(.*?)```", text.partition("## Mesh")[0], re.S
        )  # tests/mesh runs that one
    script = tmp_path / "pages.py"
    script.write_text("\n".join(snippets), encoding="utf-8")
    command = [*TORCHRUN, "2", str(script)]
    done = subprocess.run(command, env=clean_env(), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ms a step" in done.stdout
    assert "compression 'auto' chose" in done.stdout
