"""hcomm: collective communication for distributed training, on torch CPU tensors and NumPy arrays.

::

    import hcomm

    hcomm.init()
    hcomm.all_reduce(gradient, op="avg")
    hcomm.finalize()
"""

import importlib
from typing import TYPE_CHECKING, Any

from hcomm.communicator import Communicator, Link, Statistics
from hcomm.errors import (
    AlreadyInitialized,
    AuthenticationError,
    BrokenCommunicator,
    CollectiveMismatch,
    CollectiveTimeout,
    CommunicatorError,
    ConfigError,
    ForkedProcess,
    HcommError,
    InitError,
    LaunchError,
    MappingError,
    MessageMismatch,
    NotInitialized,
    PeerLost,
    RendezvousError,
    TopologyError,
    TransportUnavailable,
    UnknownAlgorithm,
    UnsupportedBuffer,
    UnsupportedOperator,
)
from hcomm.functions import (
    all_gather,
    all_gather_async,
    all_reduce,
    all_reduce_async,
    all_to_all,
    all_to_all_async,
    barrier,
    barrier_async,
    broadcast,
    broadcast_async,
    empty,
    gather,
    gather_async,
    new_group,
    recv,
    recv_async,
    reduce,
    reduce_async,
    reduce_scatter,
    reduce_scatter_async,
    register,
    scatter,
    scatter_async,
    send,
    unregister,
    zeros,
)
from hcomm.fusion import all_reduce_multi
from hcomm.mesh import Mesh
from hcomm.planning.builder import Builder
from hcomm.planning.custom import algorithm
from hcomm.planning.registry import ACCESS, LINKS, SHARED_MEMORY
from hcomm.planning.volume import Volume
from hcomm.work import Work
from hcomm.world import VERSION as __version__
from hcomm.world import (
    default_communicator,
    finalize,
    get_backend_name,
    init,
    is_initialized,
    local_rank,
    local_size,
    node,
    rank,
    world_size,
)

if TYPE_CHECKING:
    from hcomm.compression import set_gradient_compression, topk_sparsify
    from hcomm.torch.bucket import (
        GradientBucket as GradientBucket,
    )  # not in __all__: `import *` needs no torch

__all__ = [
    "ACCESS",
    "LINKS",
    "SHARED_MEMORY",
    "AlreadyInitialized",
    "AuthenticationError",
    "BrokenCommunicator",
    "Builder",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "Communicator",
    "CommunicatorError",
    "ConfigError",
    "ForkedProcess",
    "HcommError",
    "InitError",
    "LaunchError",
    "Link",
    "MappingError",
    "Mesh",
    "MessageMismatch",
    "NotInitialized",
    "PeerLost",
    "RendezvousError",
    "Statistics",
    "TopologyError",
    "TransportUnavailable",
    "UnknownAlgorithm",
    "UnsupportedBuffer",
    "UnsupportedOperator",
    "Volume",
    "Work",
    "__version__",
    "algorithm",
    "all_gather",
    "all_gather_async",
    "all_reduce",
    "all_reduce_async",
    "all_reduce_multi",
    "all_to_all",
    "all_to_all_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "default_communicator",
    "empty",
    "finalize",
    "gather",
    "gather_async",
    "get_backend_name",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "new_group",
    "node",
    "rank",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reduce_scatter",
    "reduce_scatter_async",
    "register",
    "scatter",
    "scatter_async",
    "send",
    "set_gradient_compression",
    "topk_sparsify",
    "unregister",
    "world_size",
    "zeros",
]


#: Loaded when asked for, so that `import hcomm` stays cheap and needs no torch: name → its module.
_LAZY = {
    "GradientBucket": "hcomm.torch.bucket",
    "compression": "hcomm.compression",
    "set_gradient_compression": "hcomm.compression",
    "topk_sparsify": "hcomm.compression",
    "torch": "hcomm.torch",
}


def __getattr__(name: str) -> Any:
    """Load what is loaded late."""
    place = _LAZY.get(name)
    if place is None:
        raise AttributeError(f"module 'hcomm' has no attribute {name!r}")
    module = importlib.import_module(place)
    return module if place == f"hcomm.{name}" else getattr(module, name)
