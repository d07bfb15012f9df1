"""What all operations of a process group share: how they are started, coalesced, timed, told apart and ended."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch._C._autograd import _profiler_enabled
from torch.profiler import record_function

from hcomm import ending
from hcomm.communicator import Communicator
from hcomm.errors import HcommError, UnsupportedBuffer
from hcomm.torch.allocate import Pool
from hcomm.torch.errors import translated
from hcomm.torch.joining import Membership, warn
from hcomm.torch.options import Options
from hcomm.torch.work import Completer, Done, Work
from hcomm.work import Work as NativeWork

Tensors = list[torch.Tensor]
Function = TypeVar("Function", bound=Callable[..., Any])

#: What options of torch say when no time limit was given.
_UNSET = dist.AllreduceOptions().timeout
#: Seconds that leaving a group waits for what still runs.
_PATIENCE = 10.0
#: Seconds that the others let rank 0 leave first, and that it may need to close torch's store after that.
_AFTER_YOU, _CLOSING = 1.0, 0.02
#: Element types that can be moved as bytes, though hcomm cannot add them.
_BYTES = {getattr(torch, name) for name in dir(torch) if name.startswith("float8_")}


def operation(name: str) -> Callable[[Function], Function]:
    """A method of a process group: its errors are torch's, too, and torch's profiler shows it as `hcomm:name`."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if _profiler_enabled():
                    return _profiled(name, function, self, *args, **kwargs)
                return function(self, *args, **kwargs)
            except HcommError as error:
                raise _explained(error) from None

        return cast(Function, call)

    return decorate


def _profiled(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    span: Any = record_function(f"hcomm:{name}")
    span.__enter__()
    try:
        work = function(*args, **kwargs)
    except BaseException:
        span.__exit__(None, None, None)
        raise
    if isinstance(work, Work):
        span._call_end_callbacks_on_future(work.get_future())
    else:
        span.__exit__(None, None, None)
    return work


def _explained(error: HcommError) -> HcommError:
    if isinstance(error, UnsupportedBuffer) and "on device" in str(error) and "meta" not in str(error):
        return UnsupportedBuffer(
            f"{error}. For tensors that stay on the device make a group of their own vendor's backend beside this one, "
            "such as torch.distributed.new_group(backend='nccl')"
        )
    explained: HcommError = translated(error)
    return explained


def time_limit(opts: Any, timeout: timedelta | None) -> float | None:
    """Seconds that a call was given; None: the group's. Options of torch that nobody set say -1 ms."""
    if isinstance(opts, timedelta):
        timeout = opts
    limit = timeout if timeout is not None else getattr(opts, "timeout", _UNSET)
    return None if limit == _UNSET or limit <= timedelta(0) else limit.total_seconds()


def listed(tensors: Any) -> Tensors:
    """`[tensor]` of a tensor, a list as it is."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def rooted(opts: Any, root: int | None) -> tuple[int, Any]:
    """The root of a call and its options: torch passes the root by name, in the options, or in their place."""
    if isinstance(opts, int):
        return opts, None
    return root if root is not None else getattr(opts, "rootRank", 0), opts


def single(tensors: Any, what: str) -> torch.Tensor:
    """The only tensor of a list (or the tensor itself). Raises ValueError."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{what} takes one tensor on each rank, found a list of {len(tensors)}")
    return cast(torch.Tensor, tensors[0])


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its bytes when hcomm does not know its element type (8-bit floats)."""
    return tensor.view(torch.uint8) if tensor.dtype in _BYTES else tensor


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in one dimension; shares memory with a contiguous tensor."""
    if tensor.dim() == 1:
        return tensor
    return tensor.detach().reshape(-1)


#: Torch describes its overloads as several functions each; ours take them all in one.
_Base: Any = dist.ProcessGroup


class GroupCore(_Base):  # type: ignore[misc]
    """Life of a process group, and how its operations run."""

    def __init__(self, rank: int, size: int, membership: Membership, options: Options, name: str) -> None:
        """Made by torch: `init_process_group("hcomm")` and `new_group(backend="hcomm")`."""
        super().__init__(rank, size)
        self._membership = membership
        self._comm = membership.communicator
        self._options = options
        self._title = name
        self._batch: list[Work] | None = None
        self._collectives = Completer(f"hcomm-{name}", ordered=True)
        self._messages = Completer(f"hcomm-{name}-messages", ordered=False)
        self._left = False
        self._pool = Pool(self._comm)
        self._group_name, self._group_description = name, ""

    @property
    def communicator(self) -> Communicator:
        """The `hcomm.Communicator` of the group: takes hcomm's own calls, in one order with torch's."""
        return self._comm

    @property
    def options(self) -> Options:
        """What was passed as `pg_options=`."""
        return self._options

    def getBackendName(self) -> str:
        """`hcomm`."""
        return "hcomm"

    def setGroupName(self, name: str) -> None:
        """Called by torch; its own place for the name needs a backend object in C++."""
        self._group_name = name

    def getGroupName(self) -> str:
        """The name by which torch's functional collectives find the group."""
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        """Called by torch."""
        self._group_description = description

    def getGroupDesc(self) -> str:
        """What the user says the group is for."""
        return self._group_description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> GroupCore:
        if device.type != "cpu":
            raise RuntimeError(f"hcomm moves CPU tensors; this process group has no backend for {device}")
        return self

    @property
    def supports_splitting(self) -> bool:
        """False: sub-groups are made by `new_group`."""
        return False

    @property
    def supports_coalescing(self) -> bool:
        """False: each operation of a batch is started on its own, which costs nothing extra on CPUs."""
        return False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether `allocate_tensor` gives memory that all ranks of the group reach: they are on one host."""
        return device.type == "cpu" and self._comm.backend_name == "shm"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A vector in memory that the ranks of a host share, so that collectives on it copy nothing; reused once
        nobody holds it. For FSDP2's `set_allocate_memory_from_process_group_for_comm(True)`.

        Args:
            size: elements.
            dtype: one of hcomm's types.
            device: the CPU.

        Raises:
            UnsupportedBuffer: another type or device.
            OSError: the system gives no such memory.
        """
        if device.type != "cpu":
            raise UnsupportedBuffer(f"hcomm moves CPU tensors and allocates none on {device}")
        return self._pool.take(size, dtype)

    def set_timeout(self, timeout: timedelta) -> None:
        """The time that operations from now on may take when they are not given their own."""
        self._comm._timeout = self._comm._seconds(timeout.total_seconds())

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leave the group: what runs is waited for, at most 10 s.

        Warns of what is not over then and dropped, and of a failure that nobody has been told of.
        """
        if self._left:
            return
        self._left = True
        dropped: list[str] = []
        error = None
        try:
            if self._comm._ended is None:
                if self._comm._broken is None:
                    dropped = ending.drain(self._comm, time.monotonic() + min(_PATIENCE, self._comm.timeout))
                    error = ending.untold(self._comm)
                self._let_the_host_leave()
        finally:
            self._leave(exiting=False)
        if dropped:
            warn(self._title, f"was destroyed with operations that were not complete: {'; '.join(dropped)}")
        if error is not None:
            warn(self._title, f"failed, and nobody has been told: {error}")

    def _let_the_host_leave(self) -> None:
        """Of the default group, let rank 0 leave first: it may host torch's store at a port, and whoever came back to
        that port sooner would meet the old store, which is about to close.
        """
        if self._membership.job is None or self._comm.rank == 0:
            return
        until = time.monotonic() + _AFTER_YOU
        while time.monotonic() < until:
            if 0 in self._comm._native.lost():
                time.sleep(_CLOSING)
                return
            time.sleep(0.001)

    def abort(self) -> None:
        """Break the group on every rank: what runs fails, here and elsewhere. Does not wait."""
        if not self._left and self._comm._ended is None and self._comm._broken is None:
            self._comm.abort("torch.distributed aborted the process group")

    def _leave(self, *, exiting: bool) -> None:
        self._left = True
        self._pool.clear()
        self._membership.leave(exiting=exiting)
        for completer in (self._collectives, self._messages):
            completer.stop(_PATIENCE)

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> Work:
        batch, self._batch = self._batch or [], None
        operations = [operation for work in batch for operation in work._operations]
        tensors = [tensor for work in batch for tensor in work._tensors]

        def settle() -> None:
            for work in batch:
                work._settle()

        return Work(operations, tensors, self._messages, settle)

    def _go(
        self,
        call: Callable[..., Any],
        args: Sequence[Any],
        results: Tensors,
        opts: Any,
        timeout: timedelta | None,
        after: Callable[[], None] | None = None,
    ) -> Done | Work:
        """Run or start one collective.

        Args:
            call: a collective of the communicator.
            args: for it.
            results: the tensors that torch's Future gives.
            opts: torch's options: `asyncOp`, `timeout`.
            timeout: wins over that of the options.
            after: puts the result where it belongs, when that is not where the collective left it.
        """
        limit = time_limit(opts, timeout)
        if self._batch is None and not getattr(opts, "asyncOp", True):
            call(*args, timeout=limit)
            if after is not None:
                after()
            return Done(results)
        return self._started([call(*args, timeout=limit, async_op=True)], results, after)

    def _started(
        self, operations: Sequence[NativeWork], results: Tensors, after: Callable[[], None] | None = None
    ) -> Work:
        work = Work(operations, results, self._collectives, after)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _finished(self, work: Work, opts: Any) -> Done | Work:
        """Wait for work of several operations when torch's call is synchronous."""
        if self._batch is None and not getattr(opts, "asyncOp", True):
            work.wait()
            return Done(work._tensors)
        return work
