"""docs/algorithms.md: every snippet runs, and says what the page says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.command import TORCHRUN
from support.job import clean_env

from hcomm.planning import registry
from hcomm.planning.registry import algorithms

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def run(ranks: int, script: Path, *, code: int = 0, **env: str) -> str:
    done = subprocess.run(
        [*TORCHRUN, str(ranks), str(script)], env=clean_env(env), capture_output=True, text=True, timeout=110
    )
    assert (done.returncode == 0) == (code == 0), f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_first_snippet_is_a_job(tmp_path: Path) -> None:
    script = tmp_path / "chain.py"
    script.write_text(SNIPPETS[0], encoding="utf-8")
    assert sorted(run(3, script).splitlines()) == [f"rank {rank}: 6" for rank in range(3)]


def test_all_snippets_together() -> None:
    """What they register is proved, and can be chosen as the page says."""
    algorithms()
    before = dict(registry._algorithms)
    try:
        names: dict[str, object] = {"__name__": "algorithms_page"}
        for snippet in SNIPPETS:
            exec(compile(snippet, "docs/algorithms.md", "exec"), names)
        from hcomm.planning.override import parse

        (text,) = re.findall(r'HCOMM_ALLREDUCE_ALGO="(.*?)"', PAGE)
        rules = parse("all_reduce", text, "HCOMM_ALLREDUCE_ALGO").rules
        assert [(r.entry.name, r.options, r.low, r.high) for r in rules] == [
            ("chain", (), 0, 64 << 10),
            ("flowing_chain", (("chunk", 1 << 20), ("lag", 4)), 64 << 10, None),
        ]
    finally:
        registry._algorithms.clear()
        registry._algorithms.update(before)


def test_the_mistake_on_the_page_reads_as_printed() -> None:
    from hcomm.planning.verify import VerificationError

    broken = SNIPPETS[0].replace("    else:\n        p.finish(p.output())\n", "")
    with pytest.raises(VerificationError) as raised:
        exec(compile(broken, "docs/algorithms.md", "exec"), {"__name__": "algorithms_page"})
    printed = " ".join(re.search(r"VerificationError: (.*?)\n\n", PAGE, re.S)[1].split())  # type: ignore[index]
    assert str(raised.value) == printed


def test_the_page_lists_every_all_reduce() -> None:
    table = PAGE[PAGE.index("| all_reduce |") :]
    assert [a.name for a in algorithms("all_reduce") if f"`{a.name}" not in table] == []


@pytest.mark.parametrize(("ranks", "transport"), [(4, "shm"), (2, "tcp")])
def test_swing_runs(ranks: int, transport: str) -> None:
    text = run(ranks, ROOT / "examples" / "custom_algorithm.py", HCOMM_TRANSPORT=transport)
    assert f"swing on {ranks} ranks over {transport}: right" in text
    assert "ring" in text


def test_swing_refuses_three_ranks() -> None:
    text = run(3, ROOT / "examples" / "custom_algorithm.py", code=1)
    assert "this version of Swing is for 2, 4, 8, … ranks, not 3" in text
