"""The operations on the default communicator, or on `group=`; `Communicator` documents each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hcomm.communicator import Communicator
from hcomm.work import Work
from hcomm.world import state

Group = Communicator | None


def all_reduce(
    tensor: Any,
    op: str = "sum",
    *,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce `tensor` over all ranks, in place. Returns it. See `Communicator.all_reduce`."""
    if group is None and algorithm is None and timeout is None and not async_op:
        return state.communicator.all_reduce(tensor, op)
    return state.of(group).all_reduce(tensor, op, algorithm=algorithm, timeout=timeout, async_op=async_op)


def all_reduce_async(
    tensor: Any,
    op: str = "sum",
    *,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Start an `all_reduce`. See `Communicator.all_reduce`."""
    return state.of(group).all_reduce_async(tensor, op, algorithm=algorithm, timeout=timeout)


def broadcast(
    tensor: Any,
    src: int = 0,
    *,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Copy `tensor` of rank `src` to every rank, in place. Returns it. See `Communicator.broadcast`."""
    if group is None and algorithm is None and timeout is None and not async_op:
        return state.communicator.broadcast(tensor, src)
    return state.of(group).broadcast(tensor, src, algorithm=algorithm, timeout=timeout, async_op=async_op)


def broadcast_async(
    tensor: Any,
    src: int = 0,
    *,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Start a `broadcast`. See `Communicator.broadcast`."""
    return state.of(group).broadcast_async(tensor, src, algorithm=algorithm, timeout=timeout)


def reduce(
    tensor: Any,
    dst: int = 0,
    op: str = "sum",
    *,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce `tensor` over all ranks into that of rank `dst`. Returns it. See `Communicator.reduce`."""
    if group is None and algorithm is None and timeout is None and not async_op:
        return state.communicator.reduce(tensor, dst, op)
    return state.of(group).reduce(tensor, dst, op, algorithm=algorithm, timeout=timeout, async_op=async_op)


def reduce_async(
    tensor: Any,
    dst: int = 0,
    op: str = "sum",
    *,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Start a `reduce`. See `Communicator.reduce`."""
    return state.of(group).reduce_async(tensor, dst, op, algorithm=algorithm, timeout=timeout)


def all_gather(
    tensor: Any,
    out: Any = None,
    *,
    sizes: Sequence[int] | None = None,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """The tensors of all ranks, concatenated along dimension 0, or in `out`. See `Communicator.all_gather`."""
    if sizes is None and group is None and algorithm is None and timeout is None and not async_op:
        return state.communicator.all_gather(tensor, out)
    comm = state.of(group)
    return comm.all_gather(tensor, out, sizes=sizes, algorithm=algorithm, timeout=timeout, async_op=async_op)


def all_gather_async(
    tensor: Any,
    out: Any = None,
    *,
    sizes: Sequence[int] | None = None,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Start an `all_gather`. See `Communicator.all_gather`."""
    return state.of(group).all_gather_async(tensor, out, sizes=sizes, algorithm=algorithm, timeout=timeout)


def reduce_scatter(
    tensor: Any,
    out: Any = None,
    op: str = "sum",
    *,
    sizes: Sequence[int] | None = None,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """This rank's block of the reduction of `tensor` over all ranks. See `Communicator.reduce_scatter`."""
    if sizes is None and group is None and algorithm is None and timeout is None and not async_op:
        return state.communicator.reduce_scatter(tensor, out, op)
    comm = state.of(group)
    return comm.reduce_scatter(
        tensor, out, op, sizes=sizes, algorithm=algorithm, timeout=timeout, async_op=async_op
    )


def reduce_scatter_async(
    tensor: Any,
    out: Any = None,
    op: str = "sum",
    *,
    sizes: Sequence[int] | None = None,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Start a `reduce_scatter`. See `Communicator.reduce_scatter`."""
    return state.of(group).reduce_scatter_async(
        tensor, out, op, sizes=sizes, algorithm=algorithm, timeout=timeout
    )


def all_to_all(
    tensor: Any,
    out: Any = None,
    *,
    input_sizes: Sequence[int] | None = None,
    output_sizes: Sequence[int] | None = None,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Block r of `tensor` goes to rank r, block r of the output comes from rank r. See `Communicator.all_to_all`."""
    comm = state.of(group)
    return comm.all_to_all(
        tensor,
        out,
        input_sizes=input_sizes,
        output_sizes=output_sizes,
        algorithm=algorithm,
        timeout=timeout,
        async_op=async_op,
    )


def all_to_all_async(
    tensor: Any,
    out: Any = None,
    *,
    input_sizes: Sequence[int] | None = None,
    output_sizes: Sequence[int] | None = None,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Start an `all_to_all`. See `Communicator.all_to_all`."""
    comm = state.of(group)
    return comm.all_to_all_async(
        tensor, out, input_sizes=input_sizes, output_sizes=output_sizes, algorithm=algorithm, timeout=timeout
    )


def gather(
    tensor: Any,
    dst: int = 0,
    *,
    out: Any = None,
    sizes: Sequence[int] | None = None,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """The tensors of all ranks, concatenated, on rank `dst`; None elsewhere. See `Communicator.gather`."""
    comm = state.of(group)
    return comm.gather(
        tensor, dst, out=out, sizes=sizes, algorithm=algorithm, timeout=timeout, async_op=async_op
    )


def gather_async(
    tensor: Any,
    dst: int = 0,
    *,
    out: Any = None,
    sizes: Sequence[int] | None = None,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Start a `gather`. See `Communicator.gather`."""
    return state.of(group).gather_async(
        tensor, dst, out=out, sizes=sizes, algorithm=algorithm, timeout=timeout
    )


def scatter(
    tensor: Any = None,
    src: int = 0,
    *,
    out: Any = None,
    sizes: Sequence[int] | None = None,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """This rank's block of `tensor` of rank `src`. See `Communicator.scatter`."""
    comm = state.of(group)
    return comm.scatter(
        tensor, src, out=out, sizes=sizes, algorithm=algorithm, timeout=timeout, async_op=async_op
    )


def scatter_async(
    tensor: Any = None,
    src: int = 0,
    *,
    out: Any = None,
    sizes: Sequence[int] | None = None,
    group: Group = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> Work:
    """Start a `scatter`. See `Communicator.scatter`."""
    return state.of(group).scatter_async(
        tensor, src, out=out, sizes=sizes, algorithm=algorithm, timeout=timeout
    )


def barrier(
    *, group: Group = None, algorithm: str | None = None, timeout: float | None = None, async_op: bool = False
) -> Any:
    """Return when every rank has called it. See `Communicator.barrier`."""
    if group is None and algorithm is None and timeout is None and not async_op:
        return state.communicator.barrier()
    return state.of(group).barrier(algorithm=algorithm, timeout=timeout, async_op=async_op)


def barrier_async(*, group: Group = None, algorithm: str | None = None, timeout: float | None = None) -> Work:
    """Start a `barrier`. See `Communicator.barrier`."""
    return state.of(group).barrier_async(algorithm=algorithm, timeout=timeout)


def send(tensor: Any, dst: int, tag: int = 0, *, group: Group = None, timeout: float | None = None) -> Work:
    """Start sending `tensor` to rank `dst`; wait on the Work before reusing it. See `Communicator.send`."""
    if group is None and timeout is None:
        return state.communicator._send_now(tensor, dst, tag)
    return state.of(group).send(tensor, dst, tag, timeout=timeout)


def recv(
    tensor: Any,
    src: int | None = None,
    tag: int = 0,
    *,
    group: Group = None,
    timeout: float | None = None,
    async_op: bool = False,
) -> Any:
    """Receive into `tensor` from rank `src` (None: from anyone). Returns it. See `Communicator.recv`."""
    if group is None and timeout is None and not async_op:
        return state.communicator._recv_now(tensor, src, tag)
    return state.of(group).recv(tensor, src, tag, timeout=timeout, async_op=async_op)


def recv_async(
    tensor: Any, src: int | None = None, tag: int = 0, *, group: Group = None, timeout: float | None = None
) -> Work:
    """Start a `recv`. See `Communicator.recv`."""
    return state.of(group).recv_async(tensor, src, tag, timeout=timeout)


def new_group(
    ranks: Sequence[int],
    *,
    transport: str | None = None,
    algorithm: str | Mapping[str, str] | None = None,
    timeout: float | None = None,
    buffer_size: int | str | None = None,
    name: str | None = None,
    priority: int = 0,
    group: Group = None,
) -> Communicator:
    """A communicator of some ranks; only its members call this. See `Communicator.new_group`."""
    comm = state.of(group)
    return comm.new_group(
        ranks,
        transport=transport,
        algorithm=algorithm,
        timeout=timeout,
        buffer_size=buffer_size,
        name=name,
        priority=priority,
    )


def empty(shape: int | Sequence[int], dtype: Any = "float32", *, group: Group = None) -> Any:
    """A tensor or array in memory that the ranks of a host share: collectives on it, or on slices of it, move bytes
    straight between the ranks' buffers, if it is so on every rank.

    It is an ordinary tensor in every other respect, and lives as long as any view of it. Not a collective: every rank
    makes its own. A forked child sees it copied on write.

    Args:
        shape: as of torch.empty; an integer is the length of a vector.
        dtype: of torch: a tensor; of NumPy (or what NumPy takes for one): an array; a name such as "bfloat16": a
            tensor if torch is loaded, else an array.
        group: whose ranks map it at once (default: all); the ranks of other groups do so at the first operation.

    Returns:
        The tensor or array; its content is zero.

    Raises:
        UnsupportedBuffer: the element type is not one of hcomm's.
        OSError: the system gives no such memory.
    """
    return state.of(group).empty(shape, dtype)


def zeros(shape: int | Sequence[int], dtype: Any = "float32", *, group: Group = None) -> Any:
    """Like `empty`, filled with zeros."""
    return state.of(group).zeros(shape, dtype)


def register(tensor: Any, *, group: Group = None) -> Any:
    """Share the memory of an existing tensor in place, so that collectives on it are as fast as on one of `empty`.

    All of its storage is shared (of NumPy: the array that owns the data), so that views and slices count, too. Address
    and content stay; nothing may write to it during the call. It is kept alive, and shared, until `unregister` was
    called as often, or until `finalize`. It must not be resized meanwhile. A forked child has its own copy.

    Args:
        tensor: of torch on the CPU, or an array of NumPy.
        group: as of `empty`.

    Returns:
        `tensor`.

    Raises:
        UnsupportedBuffer: the memory cannot be shared in place: it is mapped from a file, shared already by somebody
            else, read-only, or holds no whole page (4 KiB).
        OSError: the system gives no memory.
    """
    return state.of(group).register(tensor)


def unregister(tensor: Any, *, group: Group = None) -> None:
    """Undo one `register`: the memory is private again, with the content that it has.

    Raises:
        ValueError: it is not registered, or an operation on it is not complete.
    """
    state.of(group).unregister(tensor)
