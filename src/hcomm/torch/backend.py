"""The backend `hcomm` of torch.distributed: made when torch asks for it."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from typing import Any

import torch.distributed as dist

from hcomm.communicator import Communicator
from hcomm.errors import ForkedProcess, HcommError
from hcomm.torch import joining
from hcomm.torch.errors import translated
from hcomm.torch.movements import Movements
from hcomm.torch.options import checked, settings_for

#: The name for `init_process_group`, `new_group` and `DeviceMesh`.
NAME = "hcomm"


class ProcessGroup(Movements):
    """A process group of torch.distributed whose ranks are joined by an `hcomm.Communicator`.

    Torch makes it; use torch.distributed's functions on it. `communicator` is hcomm's own view of the group.
    """


_living: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()
_registered: list[bool] = []


def create(request: Any, pg_options: object) -> ProcessGroup:
    """Called by torch on every member of a new group.

    Args:
        request: torch's description: store, rank, size, timeout, name and members.
        pg_options: `hcomm.torch.Options`, or None.

    Raises:
        TypeError: `pg_options` is something else.
        ConfigError: a setting does not parse.
        HcommError: the members could not be joined; also a DistBackendError or DistNetworkError.
    """
    options = checked(pg_options)
    settings = settings_for(options, request.timeout)
    members = list(request.global_ranks_in_group)
    parent = _default_group() if members else None
    title = str(request.group_id)
    try:
        if parent is not None:
            membership = joining.split(parent.communicator, members, settings, options, title)
        else:
            name = title if members else ""
            membership = joining.join(
                request.store, request.group_rank, request.group_size, settings, options, name
            )
    except HcommError as error:
        raise translated(error) from None
    group = ProcessGroup(request.group_rank, request.group_size, membership, options, title)
    _living.add(group)
    if not _registered:
        _registered.append(True)
        atexit.register(_at_exit)
    return group


def _default_group() -> ProcessGroup | None:
    """The default group, if it is hcomm's and usable: sub-groups of it need no store."""
    if not dist.is_initialized():
        return None
    group: Any = dist.distributed_c10d._get_default_group()
    return group if isinstance(group, ProcessGroup) and group.communicator._ended is None else None


def communicator(group: dist.ProcessGroup | None = None) -> Communicator:
    """The `hcomm.Communicator` under a process group (default: the default group).

    Raises:
        ValueError: the group's backend is not hcomm.
    """
    found = group if group is not None else dist.distributed_c10d._get_default_group()
    if not isinstance(found, ProcessGroup):
        raise ValueError(f"the backend of this process group is {dist.get_backend(found)}, not {NAME}")
    return found.communicator


def _at_exit() -> None:
    """Python exits and nobody has destroyed the groups: wait for nothing, tell the peers."""
    for group in list(_living):
        if not group._left and not isinstance(group.communicator._ended, ForkedProcess):
            with contextlib.suppress(Exception):
                group._leave(exiting=True)


def register() -> None:
    """Make `hcomm` known to torch.distributed, for CPU tensors; also DeviceMesh's and DTensor's choice for them."""
    if hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
