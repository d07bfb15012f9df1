"""Many cases in one set of processes: importing torch costs seconds, a case milliseconds."""

from __future__ import annotations

import os
import traceback
from datetime import timedelta
from importlib import import_module
from typing import Any


def case_names(module: str) -> list[str]:
    """The cases of a module, in its order."""
    return [name for name in vars(import_module(f"torch_backend.{module}")) if name.startswith("case_")]


def run(*modules: str) -> dict[str, str]:
    """Run the cases of some modules on this rank, under a process group of the backend `hcomm`.

    Returns:
        Case → '' or the traceback.
    """
    import torch
    import torch.distributed as dist

    import hcomm.torch  # noqa: F401  (registers the backend)

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    init = f"file://{os.environ['JOB_DIR']}/store"
    dist.init_process_group(
        "hcomm", init_method=init, rank=rank, world_size=size, timeout=timedelta(seconds=30)
    )
    found = {}
    for module in modules:
        for name in case_names(module):
            torch.manual_seed(7)
            found[f"{module}:{name}"] = outcome(getattr(import_module(f"torch_backend.{module}"), name))
    dist.destroy_process_group()
    return found


def outcome(case: Any) -> str:
    """'' or the traceback of a case."""
    try:
        case()
    except Exception:
        return traceback.format_exc()
    return ""
