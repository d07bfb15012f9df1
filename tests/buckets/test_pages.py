"""docs/buckets.md and docs/compression.md: their snippets run as they are, one after the other, on two ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.job import clean_env

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["buckets", "compression"])
def test_the_snippets_of_a_page(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    script = tmp_path / f"{page}.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", text, re.S)), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
    ]
    done = subprocess.run(command, env=clean_env(), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    if page == "compression":
        assert "compression 'auto' chose" in done.stdout
