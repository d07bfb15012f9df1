"""Everything hcomm raises.

::

    HcommError (RuntimeError)
    ├── NotInitialized          init() has not been called, or finalize() has
    ├── AlreadyInitialized      init() called twice
    ├── ForkedProcess           used in a child forked after init()
    ├── InitError               the job could not be brought up
    │   ├── LaunchError         the environment or the arguments contradict themselves or each other
    │   ├── MappingError        ranks are duplicated, missing, or disagree about the world
    │   ├── RendezvousError     the master could not be reached, or is not hcomm
    │   ├── AuthenticationError a peer does not know the job secret
    │   └── TransportUnavailable a forced transport is impossible
    ├── UnsupportedBuffer (also TypeError)   a tensor or array hcomm cannot serve
    ├── UnsupportedOperator (also ValueError) an operator unknown, or undefined for the element type
    ├── UnknownAlgorithm (also ValueError)
    ├── ConfigError (also ValueError)        a setting that does not parse
    ├── TopologyError (also ValueError)      a topology file or hint that does not parse or contradicts itself
    └── CommunicatorError       an operation of a communicator failed
        ├── CollectiveMismatch  ranks called different operations
        ├── MessageMismatch     a received message does not fit the tensor given to recv
        ├── CollectiveTimeout (also TimeoutError)
        ├── PeerLost (also ConnectionError)
        └── BrokenCommunicator  used after one of the above
"""

from __future__ import annotations


class HcommError(RuntimeError):
    """Base of everything hcomm raises."""


class NotInitialized(HcommError):
    """`init()` has not been called in this process, or `finalize()` has been."""


class AlreadyInitialized(HcommError):
    """`init()` was called a second time without `finalize()` between."""


class ForkedProcess(HcommError):
    """A communicator was used in a child that was forked after `init()`."""


class InitError(HcommError):
    """The job could not be brought up."""


class LaunchError(InitError, ValueError):
    """The environment or the arguments contradict themselves or each other."""


class MappingError(InitError):
    """Ranks are claimed twice, missing, out of range, or disagree about the world."""


class RendezvousError(InitError, ConnectionError):
    """The meeting point of the job could not be reached in time, or is not hcomm."""


class AuthenticationError(InitError, PermissionError):
    """A peer does not know the job secret, or belongs to another job."""


class TransportUnavailable(InitError):
    """A transport that was forced cannot be used; the message says why."""


class UnsupportedBuffer(HcommError, TypeError):
    """A tensor or array that hcomm cannot serve: its type, device, layout or element type."""


class UnsupportedOperator(HcommError, ValueError):
    """An operator that is unknown, or that has no meaning for the element type."""


class UnknownAlgorithm(HcommError, ValueError):
    """An algorithm name that is not registered; the message lists those that are."""


class ConfigError(HcommError, ValueError):
    """A setting whose value does not parse; the message names the variable."""


class TopologyError(HcommError, ValueError):
    """A description of the topology that does not parse, or contradicts itself; names the file and the place."""


class CommunicatorError(HcommError):
    """An operation of a communicator failed.

    Attributes:
        ranks: the ranks at fault (missing, lost, or in disagreement), ascending; may be empty.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class CollectiveMismatch(CommunicatorError):
    """Ranks called different operations, types, counts, roots or operators in the same place."""


class MessageMismatch(CommunicatorError):
    """A received message has another element type or count than the tensor given to `recv`."""


class CollectiveTimeout(CommunicatorError, TimeoutError):
    """An operation did not finish in time; `ranks` are those that did not come."""


class PeerLost(CommunicatorError, ConnectionError):
    """A rank died or left; `ranks` names the one that did so first."""


class BrokenCommunicator(CommunicatorError):
    """The communicator failed earlier and must be rebuilt."""
