"""Unit tests of the public face run on a core that only records."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _load_fake() -> ModuleType:
    spec = importlib.util.spec_from_file_location("face_fake", Path(__file__).with_name("fake.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module with the stand-ins."""
    return sys.modules.get("face_fake") or _load_fake()


@pytest.fixture(autouse=True)
def recording_core(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Communicators made in these tests get the recording core."""
    from hcomm import _native

    monkeypatch.setattr(_native, "Comm", fake.Comm)
