"""Work: what torch gets back for an operation, and the threads that resolve Futures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from hcomm.errors import HcommError
from hcomm.torch.errors import translated
from hcomm.work import Work as NativeWork

#: Seconds between two looks at messages whose order of completion is not known.
_LOOK = 0.002


#: Torch's own class has methods of several signatures each.
_Base: Any = dist._Work  # type: ignore[attr-defined]


class Done(_Base):  # type: ignore[misc]
    """An operation that was over when its call returned."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> None:
        """Return None."""

    def synchronize(self) -> None:
        """Do nothing: results of CPU operations are in place."""

    def result(self) -> list[torch.Tensor]:
        """The tensors of the operation."""
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A Future that holds the tensors."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class Work(_Base):  # type: ignore[misc]
    """One call of torch's that was started: one operation of hcomm's, or several.

    Whoever waits moves the bytes. Once its Future has been asked for, a thread of the group waits as well, so that the
    Future resolves when the operation is over, not when somebody looks.
    """

    def __init__(
        self,
        operations: Sequence[NativeWork],
        tensors: list[torch.Tensor],
        completer: Completer,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Made by a process group.

        Args:
            operations: what runs.
            tensors: the value of its Future.
            completer: resolves its Future.
            after: done once after success, in the thread that notices it; puts results where they belong.
        """
        super().__init__()
        self._operations = operations
        self._tensors = tensors
        self._completer = completer
        self._after = after
        self._lock = threading.Lock()
        self._settled = False
        self._error: Exception | None = None
        self._trigger: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        if after is not None:
            completer.watch(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is over, at most `timeout`; without one (or with 0) until its own deadline.

        Raises:
            CollectiveTimeout: `timeout` passed; the operation goes on.
            HcommError: it failed; see `hcomm.errors`. All of them are also DistBackendError or DistNetworkError.
        """
        if not self._settled:
            seconds = timeout.total_seconds() if timeout else -1.0
            for operation in self._operations:
                if not operation._linger(seconds):
                    try:
                        operation.wait(0.0)
                    except HcommError as error:
                        raise translated(error) from None
            self._settle()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether it is over, well or badly. Never blocks."""
        if not self._settled:
            if not all(operation._over for operation in self._operations):
                return False
            self._settle()
        return True

    def is_success(self) -> bool:
        """Whether it is over and went well."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Why it failed; None while it runs and after success."""
        self.is_completed()
        return self._error

    def synchronize(self) -> None:
        """Wait: results of CPU operations are in place when they are over."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors of the operation; waits for it."""
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """For a receive that is over: the group rank of the sender."""
        return self._operations[0].source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A Future that resolves to the tensors when the operation is over, whether or not anybody waits."""
        with self._lock:
            if self._future is None:
                trigger: torch.futures.Future[None] = torch.futures.Future()
                # DDP reads the Future from C++, where only an error of a callback is one: set_exception() is Python's.
                self._future = trigger.then(self._outcome)
                self._trigger = trigger
                settled = self._settled
            else:
                return self._future
        if settled:
            self._resolve()
        else:
            self._completer.watch(self)
        return self._future

    def _outcome(self, _: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors

    def _over(self) -> bool:
        return self._settled or all(operation._over for operation in self._operations)

    def _drive(self, seconds: float = -1.0) -> None:
        """Wait for it in a completer's thread."""
        for operation in self._operations:
            operation._linger(seconds)

    def _settle(self) -> None:
        """All its operations are over: results in place, Future resolved. Once, whoever comes first."""
        with self._lock:
            if not self._settled:
                try:
                    for operation in self._operations:
                        operation.wait()
                    if self._after is not None:
                        self._after()
                except HcommError as error:
                    self._error = translated(error)
                except (
                    Exception
                ) as error:  # told where the others are; a thread that died of it would tell nobody
                    self._error = error
                self._after = None
                self._settled = True
        self._resolve()

    def _resolve(self) -> None:
        with self._lock:
            trigger, self._trigger = self._trigger, None
        if trigger is not None:
            trigger.set_result(None)


class Completer:
    """Resolves the Futures of one group, in a thread that starts when the first is asked for.

    Args:
        name: of the thread.
        ordered: operations complete in the order in which they were started (collectives); messages do not.
    """

    def __init__(self, name: str, *, ordered: bool) -> None:
        self._name = name
        self._ordered = ordered
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def watch(self, work: Work) -> None:
        """Settle `work` when it is over."""
        if self._thread is threading.current_thread():
            # A callback of ours that may wait for this very Future (PowerSGD's does): nobody else would resolve it.
            work._drive()
            work._settle()
            return
        self._queue.put(work)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    run = self._in_order if self._ordered else self._as_they_come
                    self._thread = threading.Thread(target=run, name=self._name, daemon=True)
                    self._thread.start()

    def stop(self, seconds: float) -> None:
        """After the communicator was closed: settle what is left, then end."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._queue.put(None)
            thread.join(seconds)

    def _in_order(self) -> None:
        while (work := self._queue.get()) is not None:
            work._drive()
            work._settle()
            # An idle thread must not keep the tensors of the last operation alive.
            del work

    def _as_they_come(self) -> None:
        waiting: list[Work] = []
        ending = False
        while waiting or not ending:
            work: Any
            try:
                work = self._queue.get(block=not waiting)
                if work is None:
                    ending = True
                else:
                    waiting.append(work)
                continue
            except Empty:
                pass
            for work in [work for work in waiting if work._over()]:
                waiting.remove(work)
                work._settle()
            if waiting:
                waiting[0]._drive(_LOOK)
            work = None
