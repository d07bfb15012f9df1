"""Where it is measured: processor, kernel, versions, settings."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version
from typing import Any

from hcomm import _native
from hcomm.topology.cpus import probe_cpus


def describe() -> dict[str, Any]:
    """This machine and what runs on it, as plain data."""
    cpus = probe_cpus()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpus.model,
        "architecture": cpus.architecture,
        "cpus": len(cpus.allowed),
        "cores": cpus.cores,
        "sockets": cpus.sockets,
        "memory_bytes": pages,
        "kernel": f"{platform.system()} {platform.release()}",
        "simd": _native.simd_level(),
        "versions": {
            "hcomm": version("hcomm"),
            "torch": version("torch"),
            "python": platform.python_version(),
        },
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith("HCOMM_")},
        "load": os.getloadavg()[0],
        "date": datetime.date.today().isoformat(),
    }
