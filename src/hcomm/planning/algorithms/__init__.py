"""The built-in algorithms: one folder per operation, one file per algorithm.

A new file is found by itself; nothing else needs to know of it.
"""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every algorithm, so that it registers itself. Cheap when repeated."""
    for module in pkgutil.walk_packages(__path__, __name__ + "."):
        importlib.import_module(module.name)
