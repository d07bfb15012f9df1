"""hcomm's exceptions, so that they are also what users of torch.distributed catch.

`CollectiveMismatch` raised by a process group is both an `hcomm.CollectiveMismatch` and a
`torch.distributed.DistBackendError`; a lost peer, and a meeting point that is out of reach, are
`torch.distributed.DistNetworkError`.
"""

from __future__ import annotations

from functools import cache

import torch.distributed as dist

from hcomm.errors import CommunicatorError, HcommError, InitError, PeerLost, RendezvousError


@cache
def _twin(kind: type[HcommError]) -> type[HcommError]:
    """The class of hcomm's that is one of torch's, too."""
    other = dist.DistNetworkError if issubclass(kind, (PeerLost, RendezvousError)) else dist.DistBackendError
    twin = type(kind.__name__, (kind, other), {"__doc__": kind.__doc__, "__module__": kind.__module__})
    assert issubclass(twin, HcommError)
    return twin


def translated(error: HcommError) -> HcommError:
    """`error` as an exception that torch's users also catch; errors of arguments stay as they are."""
    if isinstance(error, dist.DistError):
        return error
    if isinstance(error, CommunicatorError):
        return _twin(type(error))(str(error), error.ranks)  # type: ignore[call-arg]
    if isinstance(error, InitError):
        return _twin(type(error))(str(error))
    return error
