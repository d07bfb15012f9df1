"""Every ```python block of docs/pytorch.md runs as it stands, on two ranks of one set of processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.job import Job, free_port, values
from torch_backend.pair import outcome

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"


def snippets() -> list[tuple[str, str]]:
    """(heading, code) of each block."""
    found, heading = [], ""
    for part in re.split(r"^(#+ .*)$", PAGE.read_text(), flags=re.MULTILINE):
        if part.startswith("#"):
            heading = part.lstrip("# ")
        found += [
            (heading, code) for code in re.findall(r"^```python\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
        ]
    return found


def run_all(ports: list[int]) -> list[str]:
    """One rank: each snippet in a namespace of its own, with a meeting point of its own."""
    import torch.distributed as dist

    found = []
    for heading, code in snippets():
        folder = Path(os.environ["JOB_DIR"], f"snippet-{len(found)}-{os.environ['RANK']}")
        folder.mkdir()
        os.chdir(folder)
        os.environ["MASTER_PORT"] = str(ports[len(found)])
        found.append(outcome(lambda: exec(compile(code, heading, "exec"), {"__name__": "__main__"})))  # noqa: B023
        if dist.is_initialized():
            dist.destroy_process_group()
            found[-1] = found[-1] or "it did not destroy its process group"
    return found


@pytest.fixture(scope="module")
def results() -> Iterator[list[list[str]]]:
    job = Job(2, run_all, args=([free_port() for _ in snippets()],), init=False, timeout=100)
    yield values(job.wait())
    job.discard()


@pytest.mark.parametrize("place", range(len(snippets())), ids=[heading for heading, _ in snippets()])
def test_snippets(results: list[list[str]], place: int) -> None:
    for rank, found in enumerate(results):
        assert not found[place], f"rank {rank}: {found[place]}"


def test_the_readme_links_to_the_page(results: list[Any]) -> None:
    assert "docs/pytorch.md" in (PAGE.parents[1] / "README.md").read_text()
