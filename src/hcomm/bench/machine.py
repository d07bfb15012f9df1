"""Where it is measured: processor, kernel, versions, settings."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hcomm import _native
from hcomm.topology.cpus import probe_cpus

#: Settings that say nothing about speed: a secret, and what whoever starts the ranks gives them.
_UNTOLD = ("HCOMM_JOB_SECRET", "HCOMM_JOB_ID", "HCOMM_INIT_TIMEOUT")


def busy_seconds() -> float:
    """What all processes of this machine have used of its processors since it started."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split(maxsplit=4)[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def describe(packages: Sequence[str]) -> dict[str, Any]:
    """This machine and what runs on it, as plain data.

    Args:
        packages: distributions whose version is told, where they are installed, beside those of hcomm and Python.
    """
    cpus = probe_cpus()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    versions = {"hcomm": version("hcomm")}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": cpus.model,
        "architecture": cpus.architecture,
        "cpus": len(cpus.allowed),
        "cores": cpus.cores,
        "sockets": cpus.sockets,
        "memory_bytes": pages,
        "kernel": f"{platform.system()} {platform.release()}",
        "simd": _native.simd_level(),
        "versions": versions | {"python": platform.python_version()},
        "settings": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("HCOMM_", "HCCL_")) and name not in _UNTOLD
        },
        "load": os.getloadavg()[0],
        "date": datetime.date.today().isoformat(),
    }
