"""A barrier that says who is missing."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from hcomm.errors import HcommError
from hcomm.torch.backend import communicator
from hcomm.torch.errors import translated
from hcomm.torch.options import seconds


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: float | timedelta | None = None
) -> None:
    """Return when every rank of the group has called it; torch's own accepts only gloo.

    Args:
        group: of the hcomm backend; default: the default group.
        timeout: seconds (or a timedelta) to wait; default: the group's.

    Raises:
        CollectiveTimeout: somebody did not come; the message and `ranks` say who, on every rank that waited, and what
            they were doing. The group is broken then. Also a `torch.distributed.DistBackendError`.
        ValueError: the group's backend is not hcomm.
    """
    try:
        communicator(group).barrier(timeout=None if timeout is None else seconds(timeout))
    except HcommError as error:
        raise translated(error) from None
