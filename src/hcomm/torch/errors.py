"""hcomm's exceptions, so that they are also what users of torch.distributed catch.

`CollectiveMismatch` raised by a process group is both an `hcomm.CollectiveMismatch` and a
`torch.distributed.DistBackendError`; a lost peer, and a meeting point that is out of reach, are
`torch.distributed.DistNetworkError`.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from hcomm.errors import CommunicatorError, HcommError, InitError, PeerLost, RendezvousError

_twins: dict[type[HcommError], Any] = {}


def _twin(kind: type[HcommError]) -> Any:
    """The class of hcomm's that is one of torch's, too."""
    if kind not in _twins:
        network = issubclass(kind, (PeerLost, RendezvousError))
        other = dist.DistNetworkError if network else dist.DistBackendError
        _twins[kind] = type(
            kind.__name__, (kind, other), {"__doc__": kind.__doc__, "__module__": kind.__module__}
        )
    return _twins[kind]


def translated(error: HcommError) -> Any:
    """`error` as an exception that torch's users also catch; errors of arguments stay as they are."""
    if isinstance(error, dist.DistError):
        return error
    if isinstance(error, CommunicatorError):
        return _twin(type(error))(str(error), error.ranks)
    if isinstance(error, InitError):
        return _twin(type(error))(str(error))
    return error
