"""The README says what the code does."""

from __future__ import annotations

from pathlib import Path

from hcomm import config

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_lists_every_setting() -> None:
    readme = (ROOT / "README.md").read_text()
    for setting in config.SETTINGS:
        name = "HCOMM_<OPERATION>_ALGO" if setting.name.endswith("_ALGO") else setting.variable
        assert f"`{name}`" in readme, f"{name} is not in the README's table"


def test_the_first_program_of_the_readme_is_the_example() -> None:
    example = (ROOT / "examples" / "hello.py").read_text()
    program = example[example.index("import torch") :]
    assert program in (ROOT / "README.md").read_text()
