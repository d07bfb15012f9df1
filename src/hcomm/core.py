"""What every operation of a communicator goes through: checks, plans, running, failing, ending."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from hcomm import _native
from hcomm.buffers import Buffer, pack
from hcomm.codes import DTYPES, NO_OPERATOR, OPERATIONS, OPERATORS
from hcomm.diagnose import telling
from hcomm.diagnose.callsite import caller
from hcomm.diagnose.report import Call, Reporter, describe
from hcomm.errors import (
    BrokenCommunicator,
    CommunicatorError,
    ForkedProcess,
    HcommError,
    MessageMismatch,
    NotInitialized,
)
from hcomm.plans import PlanCache, Signature
from hcomm.work import Work

#: Finished works looked at whenever one is started, so that dropped ones do not pile up.
_SWEEP = 4


class Choice(Protocol):
    """What the planner answers; see `planning.planner.Choice`."""

    @property
    def algorithm(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def program(self) -> bytes: ...
    @property
    def fallback(self) -> bytes: ...
    @property
    def hash(self) -> int: ...
    @property
    def tile_bytes(self) -> int: ...
    @property
    def reaches_input(self) -> Sequence[bool]: ...
    @property
    def reaches_output(self) -> Sequence[bool]: ...
    @property
    def through_process(self) -> bool: ...


class Planner(Protocol):
    """What chooses programs; see `planning.planner.Planner`."""

    def choose(
        self,
        operation: str,
        dtype: str,
        op: str | None,
        nbytes: int,
        root: int | None,
        algorithm: str | None = None,
    ) -> Choice:
        """The program of this rank; a pure function of what all ranks agree on."""


class Core:
    """The part of a communicator that all its operations share."""

    #: HCOMM_DEBUG=info and trace: every new plan is told, by `_who`; trace: every call.
    _telling = False
    _tracing = False
    _who = ""
    #: It belongs to a job that was not joined by `init` (a process group of torch): `finalize` leaves it alone.
    _apart = False

    def __init__(
        self,
        native: _native.Comm,
        planner: Planner,
        *,
        rank: int,
        ranks: tuple[int, ...],
        pids: Sequence[int],
        name: str,
        timeout: float,
        algorithms: Mapping[str, str],
    ) -> None:
        self._native = native
        self._run = native.run
        self._planner = planner
        self._rank = rank
        self._size = len(ranks)
        self._ranks = ranks
        self._name = name
        self._timeout = timeout
        self._algorithms = dict(algorithms)
        self._reporter = Reporter(native, rank, ranks, pids, name)
        self._plans: PlanCache[Signature, _native.Plan] = PlanCache()
        # The core remembers plans of blocking calls on ordinary tensors. Whatever ends the communicator makes it
        # forget them, so a hit proves that the communicator is usable.
        self._call = native.call
        self._remember = native.remember
        # The same for messages: tensors that it can read itself.
        self._send_tensor = native.send_tensor
        self._recv_tensor = native.recv_tensor
        # Large tensors of torch are taken note of, so that those that come back can be shared.
        self._noted_bytes = sys.maxsize
        self._running: dict[int, Work] = {}
        self._sweep_at = 16
        self._broken: CommunicatorError | None = None
        self._ended: HcommError | None = None
        _living.add(self)
        _watch_forks()

    def _check_alive(self) -> None:
        """Raise when it was closed, or this process is a forked child."""
        if self._ended is not None:
            raise type(self._ended)(str(self._ended))

    def _check(self) -> None:
        """Raise unless operations can be started."""
        self._check_alive()
        if self._broken is not None:
            raise BrokenCommunicator(
                f"this communicator{self._in_group()} is broken and must be rebuilt; "
                f"the first failure was: {self._broken}",
                self._broken.ranks,
            )

    def _in_group(self) -> str:
        return f" ({self._name})" if self._name else ""

    def _seconds(self, timeout: float | None) -> float:
        """The time an operation may take. Raises ValueError for what is not a positive number."""
        if timeout is None:
            return self._timeout
        try:
            positive = timeout > 0
        except TypeError:
            positive = False
        if not positive:
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
        return float(timeout)

    def _trace(self, what: str) -> None:
        """Tell of one call, under HCOMM_DEBUG=trace."""
        telling.tell(f"{self._who}: {what} at {caller()}")

    def _peer(self, rank: int, argument: str) -> int:
        """A group rank given as an argument. Raises ValueError when it is out of range."""
        try:
            number = rank.__index__()
        except AttributeError:
            raise ValueError(f"{argument} must be a rank (an integer), not {rank!r}") from None
        if not 0 <= number < self._size:
            raise ValueError(
                f"{argument}={number} is not a rank of this communicator{self._in_group()}: 0..{self._size - 1}"
            )
        return number

    def _plan(self, signature: Signature) -> _native.Plan:
        """The bound program for a call, built on its first use."""
        try:
            return self._plans[signature]
        except KeyError:
            pass
        s = signature
        choice = self._planner.choose(
            s.operation,
            s.dtype,
            s.op,
            s.nbytes,
            None if s.root < 0 else s.root,
            s.algorithm or self._algorithms.get(s.operation),
        )
        if self._telling:
            what = telling.call(s.operation, s.dtype, s.op, s.nbytes // DTYPES[s.dtype][1], s.root)
            telling.tell(f"{self._who}: new plan: {what}: {choice.algorithm} ({choice.why})")
        plan = self._native.plan(
            choice.program,
            choice.fallback,
            operation=OPERATIONS[s.operation],
            dtype=DTYPES[s.dtype][0],
            op=NO_OPERATOR if s.op is None else OPERATORS[s.op],
            root=s.root,
            count=s.elements,
            n_in=s.n_in,
            n_out=s.n_out,
            bounds_in=list(s.bounds_in),
            bounds_out=list(s.bounds_out),
            algorithm=choice.hash,
            agreed=s.agreed,
            tile_bytes=choice.tile_bytes,
            reaches_input=list(choice.reaches_input),
            reaches_output=list(choice.reaches_output),
            through_process=choice.through_process,
        )
        self._plans[signature] = plan
        return plan

    def _keep(
        self, signature: Signature, source: Buffer | None, target: Buffer | None, inside: int | None = None
    ) -> None:
        """Let the core find the plan of calls like this one, which has been checked, by their tensors alone.

        To be called only where nothing but operation, operator, root, and shapes and element types of tensors
        decided what is valid. What may differ between calls whose shapes are alike is not kept: strided tensors;
        complex ones, which may be lazily conjugated; NumPy's, which may be read-only.

        Args:
            signature: of the call.
            source, target: its input and output, None where there is none; the same for operations in place.
            inside: bytes into the output where the input may lie; None: they must not overlap.
        """
        for buffer in (source, target):
            if buffer is not None and (
                buffer.is_copy
                or buffer.owner is not buffer.array
                or buffer.family.name != "torch"
                or buffer.dtype.startswith("complex")
            ):
                return
        self._remember(
            OPERATIONS[signature.operation],
            None if source is None else source.array,
            None if target is None or target is source else target.array,
            signature.op,
            signature.root,
            self._plan(signature),
            inside,
        )

    def _short_failed(
        self, status: int, operation: str, tensor: Any, detail: str, shape: Sequence[int] | None = None
    ) -> HcommError:
        """The exception for a call whose plan the core had found; `shape` if it is not that of `tensor`."""
        buffer = pack(tensor, writable=False)
        what = describe(operation, buffer.dtype, shape or buffer.shape, detail)
        return self._fail(status, Call(what, caller(), self._timeout))

    def _execute(
        self,
        signature: Signature,
        source: Buffer | None,
        target: Buffer | None,
        complete: Callable[[], Any],
        describe: Callable[[], str],
        timeout: float | None,
        async_op: bool,
    ) -> Any:
        """Run or start a collective whose arguments have been checked.

        Args:
            signature: of the call.
            source: the input; None if this rank has none.
            target: the output; the same as `source` for operations in place.
            complete: run after success; its value is the result.
            describe: the call in words; only asked when needed.
            timeout: seconds, or None for the communicator's.
            async_op: return a Work.
        """
        if self._tracing:
            self._trace(describe())
        seconds = self._seconds(timeout)
        plan = self._plan(signature)
        if signature.nbytes >= self._noted_bytes:
            self._note(source, target)
        in_address = source.address if source is not None else 0
        out_address = target.address if target is not None else 0
        if async_op:
            call = Call(_said(describe, signature), caller(), seconds)
            op = self._native.start(plan, in_address, out_address, seconds, call.where)
            return self._track(op, call, (source, target), complete)
        status = self._run(plan, in_address, out_address, seconds)
        if status:
            raise self._fail(status, Call(_said(describe, signature), caller(), seconds))
        return complete()

    def _note(self, source: Buffer | None, target: Buffer | None) -> None:
        """Large tensors are about to be used; see `Communicator._note`."""

    def _track(self, op: _native.Op, call: Call, kept: Any, complete: Callable[[], Any]) -> Work:
        """A Work that this communicator keeps alive, with its buffers, until the operation is complete."""
        running = self._running
        if len(running) >= self._sweep_at:
            self._sweep(len(running))
            self._sweep_at = max(16, 2 * len(running))
        elif running:
            self._sweep(_SWEEP)
        work = Work(op, call, kept, complete, self)
        running[id(work)] = work
        return work

    def _sweep(self, limit: int) -> None:
        """Let go of works among the oldest `limit` that are complete and that nobody waited for."""
        for work in list(islice(self._running.values(), limit)):
            work._reap()

    def _forget(self, work: Work) -> None:
        """The work is complete: its buffers need no keeping."""
        self._running.pop(id(work), None)

    def _fail(self, status: int, call: Call, text: str = "") -> HcommError:
        """The exception for a status; the first that breaks the communicator is remembered."""
        if self._ended is not None:
            return type(self._ended)(str(self._ended))
        if self._broken is not None:
            kind = BrokenCommunicator if call.what not in str(self._broken) else type(self._broken)
            return kind(
                f"{call}: failed with its communicator; the first failure was: {self._broken}",
                self._broken.ranks,
            )
        error = self._reporter.error(status, call, text)
        if not isinstance(error, MessageMismatch) or self._native.failure() is not None:
            self._broken = error
            self._native.forget()
            self._plans.clear()
        return error

    def _still_running(self, call: Call, seconds: float) -> HcommError:
        """The exception for a wait that gave up on a running operation."""
        return self._reporter.still_running(call, seconds)

    def _end(self, reason: HcommError) -> None:
        """Every later use raises `reason`."""
        self._ended = reason
        self._native.forget()
        self._plans.clear()

    def close(self) -> None:
        """Leave the communicator. Does not wait: operations still running fail here; other ranks are told."""
        if self._ended is None:
            self._end(NotInitialized(f"this communicator{self._in_group()} was closed"))
            self._native.close()

    def abort(self, reason: str = "aborted by the user") -> None:
        """Break the communicator on every rank: what runs fails with `BrokenCommunicator` and this reason."""
        self._check()
        self._native.abort(reason)

    def _held(self) -> list[object]:
        """Objects of the core that a forked child must not destroy."""
        works = (work._op for work in self._running.values())
        return [self._native, *self._plans.values(), *works]

    def _forked(self) -> None:
        """In a forked child: this process has no part in the job any more, and must not disturb it."""
        if self._ended is not None:
            return
        _immortal(*self._held())
        reason = ForkedProcess(
            f"hcomm was initialised in the parent (pid {os.getppid()}) and cannot be used in a forked child; "
            "call it in the parent, or start processes with the 'spawn' method and call init() there"
        )
        for work in self._running.values():
            work._abandon(reason)
        self._running.clear()
        self._end(reason)


def _said(describe: Callable[[], str], signature: Signature) -> str:
    """The call in words, with what it asks for."""
    return describe() + (f" with algorithm {signature.algorithm!r}" if signature.algorithm else "")


_living: weakref.WeakSet[Core] = weakref.WeakSet()
_watching: list[bool] = []


def _watch_forks() -> None:
    """From the first communicator on, children of a fork learn that theirs are not usable."""
    if not _watching:
        _watching.append(True)
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    for communicator in list(_living):
        communicator._forked()


def _immortal(*objects: object) -> None:
    """Never destroy these: in a forked child, destructors would wait for threads that are not there."""
    import ctypes

    for item in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))
