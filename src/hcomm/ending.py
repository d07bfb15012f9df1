"""The end of a job on this rank: what still runs is waited for, and what failed unheard is told."""

from __future__ import annotations

import time

from hcomm import _native, core
from hcomm.core import Core
from hcomm.diagnose.callsite import caller
from hcomm.diagnose.report import Call
from hcomm.errors import CollectiveMismatch, HcommError, NotInitialized


def still_open() -> list[Core]:
    """The communicators of the job that `init` joined and that have not ended, the oldest group first."""
    return [comm for comm in list(core._living) if comm._ended is None and not comm._apart]


def wait_for_running(seconds: float) -> list[str]:
    """Wait until the operations that run are over, at most `seconds` for all of them.

    Returns:
        The calls that are not over, or never will be because a peer has finalised, in words.
    """
    deadline = time.monotonic() + seconds
    return [call for comm in still_open() for call in drain(comm, deadline)]


def drain(comm: Core, deadline: float) -> list[str]:
    """Wait until the operations of one communicator are over, at most until `deadline` (`time.monotonic`).

    Returns:
        The calls that are not over, or never will be because a peer has finalised, in words.
    """
    left = []
    for work in list(comm._running.values()):
        over = work._conclude(max(0.0, deadline - time.monotonic()))
        if not over or (work._op.status != _native.OK and _peer_finalised(comm)):
            left.append(str(work._call))
    return left


def _peer_finalised(comm: Core) -> bool:
    """Whether it failed because a peer left in good order: then what was not complete is dropped, not lost."""
    failure = comm._native.failure()
    return failure is not None and failure.kind == _native.PEER_LOST and "finalised" in failure.text


def unheard() -> HcommError | None:
    """A failure of an operation or communicator that nobody has been told about; None if there is none."""
    found = [error for comm in still_open() if (error := untold(comm)) is not None]
    return found[0] if found else None


def untold(comm: Core) -> HcommError | None:
    """The same of one communicator."""
    if comm._broken is not None or _peer_finalised(comm):
        return None
    for work in list(comm._running.values()):
        error = work.exception()
        if error is not None:
            return error
    failure = comm._native.failure()
    if failure is None:
        return None
    # Where no operation of this rank failed, two things concern it: results that came from different calls, and another
    # rank that gave up the job with a reason.
    aborted = failure.kind == _native.ABORTED and comm._rank not in failure.ranks
    if failure.kind != _native.MISMATCH and not aborted:
        return None
    return comm._fail(failure.kind, Call("finalize()", caller(), 0.0))


def stale(communicators: list[Core]) -> HcommError | None:
    """A difference between calls that was only found while a communicator closed; None if there is none.

    Where a rank only sends, as the root of a broadcast between hosts does, nothing is compared before ranks meet again.
    """
    for comm in communicators:
        failure = comm._native.failure()
        if comm._broken is None and failure is not None and failure.kind == _native.MISMATCH:
            return CollectiveMismatch(
                f"rank {comm._rank}: finalize(): operation #{failure.seq} differs between ranks: {failure.text}. "
                "Every rank must make the same calls in the same order.",
                tuple(failure.ranks),
            )
    return None


def close_all(*, exiting: bool = False) -> None:
    """Close every communicator; `exiting`: the process ends, and nobody has called finalize()."""
    for comm in still_open():
        if exiting:
            comm._end(NotInitialized("this process is ending"))
            comm._native.close(exiting=True)
        else:
            comm.close()
