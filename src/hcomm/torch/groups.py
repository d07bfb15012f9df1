"""Which communicator a `group=` means."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from hcomm.communicator import Communicator
from hcomm.world import state


def communicator_of(group: Any) -> Communicator:
    """A communicator, that of a process group whose backend is hcomm, or (None) the default one.

    Without `hcomm.init()`, the default is that of torch's default process group, if its backend is hcomm.

    Raises:
        ValueError: something else, or a process group of another backend.
        NotInitialized: None, and there is no default.
    """
    if isinstance(group, Communicator):
        return group
    if group is not None:
        found = under_torch(group)
        if found is None:
            raise ValueError(
                f"group must be an hcomm.Communicator, or a process group whose backend is hcomm, not {group!r}"
            )
        return found
    if not state.present and dist.is_available() and dist.is_initialized():
        found = under_torch(dist.group.WORLD)
        if found is not None:
            return found
    return state.communicator


def under_torch(group: Any) -> Communicator | None:
    """The communicator under a process group of torch; None if its backend is another."""
    found = getattr(group, "communicator", None)
    return found if isinstance(found, Communicator) else None
