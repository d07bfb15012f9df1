"""Work: an operation on its way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from hcomm import _native
from hcomm.diagnose.report import Call
from hcomm.errors import HcommError

_RUNNING = -1


class Owner(Protocol):
    """What a Work needs from its communicator."""

    def _fail(self, status: int, call: Call, text: str = "") -> HcommError: ...
    def _still_running(self, call: Call, seconds: float) -> HcommError: ...
    def _forget(self, work: Work) -> None: ...


def _check_seconds(timeout: object) -> None:
    if isinstance(timeout, (str, bytes)) or not hasattr(timeout, "__float__") or not float(timeout) >= 0:
        raise ValueError(f"timeout must be a number of seconds, 0 or more, not {timeout!r}")


class Work:
    """An operation that was started and may still be running.

    It keeps every tensor of the operation alive until the operation is complete, also when the Work itself is
    dropped. The tensors must not be written (and results not be read) before it is complete. Progress does
    not depend on `wait`.
    """

    __slots__ = ("__weakref__", "_call", "_complete", "_error", "_kept", "_lock", "_op", "_owner", "_result")

    def __init__(
        self,
        op: _native.Op,
        call: Call,
        kept: Any,
        complete: Callable[[], Any],
        owner: Owner,
    ) -> None:
        """Made by a communicator.

        Args:
            op: the operation in the core.
            call: for messages.
            kept: whatever must stay alive while the operation runs.
            complete: runs once after success, in the thread that notices it; its value is the result.
            owner: the communicator.
        """
        self._op = op
        self._call = call
        self._kept = kept
        self._complete: Callable[[], Any] | None = complete
        self._owner = owner
        # Two threads may notice the end at once; nobody sees it before results are in place.
        self._lock = threading.Lock()
        self._result: Any = None
        self._error: HcommError | None = None

    @classmethod
    def finished(cls, call: Call) -> Work:
        """One of an operation that was complete at once and has no result: the core is not asked again."""
        work = cls.__new__(cls)
        work._call = call
        work._complete = work._kept = work._result = work._error = None
        return work

    def is_completed(self) -> bool:
        """Whether it is over, well or badly. Never blocks; after success the result is in place."""
        if self._complete is None:
            return True
        if not self._op.done:
            return False
        self._settle(self._op.status)
        return True

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until it is complete.

        Args:
            timeout: seconds to wait at most, from 0; None: until the operation's own deadline.

        Returns:
            The result: the tensor of an in-place operation or receive, the output of others, None for `send`
                and `barrier`.

        Raises:
            CollectiveTimeout: `timeout` passed (the operation goes on, wait again), or the operation's own
                deadline did.
            CommunicatorError: the operation failed; see `hcomm.errors`.
            ValueError: `timeout` is not a number of seconds, or negative.
        """
        if timeout is not None:
            _check_seconds(timeout)
        if self._complete is not None:
            status = self._op.wait(-1.0 if timeout is None else timeout)
            if status == _RUNNING:
                raise self._owner._still_running(self._call, timeout or 0.0)
            self._settle(status)
        if self._error is not None:
            raise self._error
        return self._result

    def result(self) -> Any:
        """The result; waits for it. Raises what `wait` raises."""
        return self.wait()

    def exception(self) -> HcommError | None:
        """Why it failed; None while it runs and after success. Never blocks."""
        self.is_completed()
        return self._error

    @property
    def source(self) -> int:
        """For a receive that is complete: the group rank the message came from. Raises ValueError before."""
        if not self.is_completed() or self._error is not None or self._call.peers is None:
            raise ValueError("the source is known when the receive is complete")
        return self._op.source

    def _settle(self, status: int) -> None:
        """Take the outcome once: results in place, tensors let go."""
        with self._lock:
            if self._complete is None:
                return
            if status == _native.OK:
                self._result = self._complete()
            else:
                self._error = self._owner._fail(status, self._call, self._op.text)
            self._kept = self._complete = None
            self._owner._forget(self)

    def _reap(self) -> None:
        """Let go of the tensors if it is complete; a failure is reported when somebody asks for it."""
        if self._complete is None or not self._op.over:
            return
        if self._op.status == _native.OK:
            self._settle(_native.OK)
        else:
            self._kept = None
            self._owner._forget(self)

    @property
    def _over(self) -> bool:
        """Whether it is over, its outcome taken or not. Never blocks."""
        return self._complete is None or self._op.done

    def _linger(self, seconds: float) -> bool:
        """Wait `seconds` (negative: until its own deadline) and leave the outcome to others; whether it is over."""
        return self._complete is None or self._op.wait(seconds) != _RUNNING

    def _conclude(self, seconds: float) -> bool:
        """Wait `seconds`; whether it is over. A failure is left for `exception`."""
        if self._complete is None:
            return True
        status = self._op.wait(seconds)
        if status == _native.OK:
            self._settle(status)
        return status != _RUNNING

    def _abandon(self, error: HcommError) -> None:
        """The process has no part in the operation any more (it was forked): never ask the core again."""
        self._complete = None
        self._error = error

    def __repr__(self) -> str:
        if self._error is not None:
            state = "failed"
        elif self._complete is None:
            state = "complete"
        else:
            state = (
                "running" if not self._op.done else "complete" if self._op.status == _native.OK else "failed"
            )
        return f"<hcomm.Work {self._call.what}: {state}>"
