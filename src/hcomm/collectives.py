"""The collective operations of a communicator: arguments checked, memory found, a program run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hcomm import buffers, layout, operators
from hcomm.buffers import Buffer
from hcomm.codes import OPERATIONS
from hcomm.core import Core
from hcomm.diagnose.callsite import caller
from hcomm.diagnose.report import Call, describe
from hcomm.layout import Blocks, Target
from hcomm.plans import Signature
from hcomm.work import Work

_ALL_REDUCE, _BROADCAST, _REDUCE = OPERATIONS["all_reduce"], OPERATIONS["broadcast"], OPERATIONS["reduce"]
_ALL_GATHER, _REDUCE_SCATTER = OPERATIONS["all_gather"], OPERATIONS["reduce_scatter"]
_BARRIER = OPERATIONS["barrier"]


class Collectives(Core):
    """Collective operations. Every rank of the communicator must make the same calls in the same order.

    Ranks (`src`, `dst`, positions in lists) are ranks of this communicator. `timeout` is in seconds and
    defaults to the communicator's. With `async_op=True`, and in the `_async` forms, a `Work` is returned at
    once and the tensors belong to the operation until it is complete. `algorithm` names one for this call, the same
    on all ranks, and wins over the group's and over HCOMM_*_ALGO, in whose grammar it may be written.

    All of them raise: UnsupportedBuffer, UnsupportedOperator, UnknownAlgorithm and ValueError for arguments (before
    anything is sent); CollectiveMismatch, CollectiveTimeout, PeerLost and BrokenCommunicator when the operation fails.
    """

    def all_reduce(
        self,
        tensor: Any,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce `tensor` over all ranks, in place on every rank. Any shape, the same number of elements
        everywhere.

        Returns:
            `tensor`. Integer `avg` truncates toward zero; 16-bit floats are added in float32 and rounded
            once.
        """
        if algorithm is None and timeout is None and not async_op:
            # The whole cost of a small call is here: one look in the core finds the plan of an ordinary tensor on a
            # usable communicator; everything else takes the general way. The same in the operations below.
            status = self._call(_ALL_REDUCE, tensor, None, op, -1, self._timeout)
            if status == 0:
                return tensor
            if status > 0:
                raise self._short_failed(status, "all_reduce", tensor, op)
        self._check()
        buffer = buffers.pack(tensor, writable=True)
        operators.check(op, buffer.dtype)
        n = buffer.count
        signature = Signature(
            "all_reduce", buffer.dtype, op, -1, n, n, n, buffer.nbytes, algorithm=algorithm or ""
        )
        return self._in_place(signature, buffer, op, timeout, async_op)

    def _in_place(
        self,
        signature: Signature,
        buffer: Buffer,
        detail: str,
        timeout: float | None,
        async_op: bool,
        *,
        receives: bool = True,
    ) -> Any:
        """Run an operation whose input and output are one tensor; the tensor is its result."""

        def complete() -> Any:
            if receives:
                buffer.write_back()
            return buffer.owner

        target = buffer if signature.n_out else None
        if not signature.algorithm:
            self._keep(signature, buffer, target)
        say = self._saying(signature.operation, buffer, detail)
        return self._execute(signature, buffer, target, complete, say, timeout, async_op)

    def _saying(self, operation: str, buffer: Buffer, detail: str) -> Callable[[], str]:
        """The call in words, put together when somebody asks."""
        return lambda: describe(operation, buffer.dtype, buffer.shape, detail)

    def all_reduce_async(
        self, tensor: Any, op: str = "sum", *, algorithm: str | None = None, timeout: float | None = None
    ) -> Work:
        """Start an `all_reduce`; the result of the Work is `tensor`."""
        work: Work = self.all_reduce(tensor, op, algorithm=algorithm, timeout=timeout, async_op=True)
        return work

    def broadcast(
        self,
        tensor: Any,
        src: int = 0,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Copy `tensor` of rank `src` into `tensor` of every other rank. Returns `tensor`."""
        if algorithm is None and timeout is None and not async_op:
            status = self._call(_BROADCAST, tensor, None, None, src, self._timeout)
            if status == 0:
                return tensor
            if status > 0:
                raise self._short_failed(status, "broadcast", tensor, f"root {src}")
        self._check()
        root = self._peer(src, "src")
        receives = root != self._rank
        buffer = buffers.pack(tensor, writable=receives)
        n = buffer.count
        signature = Signature(
            "broadcast", buffer.dtype, None, root, n, n, n, buffer.nbytes, algorithm=algorithm or ""
        )
        return self._in_place(signature, buffer, f"root {root}", timeout, async_op, receives=receives)

    def broadcast_async(
        self, tensor: Any, src: int = 0, *, algorithm: str | None = None, timeout: float | None = None
    ) -> Work:
        """Start a `broadcast`; the result of the Work is `tensor`."""
        work: Work = self.broadcast(tensor, src, algorithm=algorithm, timeout=timeout, async_op=True)
        return work

    def reduce(
        self,
        tensor: Any,
        dst: int = 0,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce `tensor` over all ranks into `tensor` of rank `dst`; the others keep theirs. Returns `tensor`."""
        if algorithm is None and timeout is None and not async_op:
            status = self._call(_REDUCE, tensor, None, op, dst, self._timeout)
            if status == 0:
                return tensor
            if status > 0:
                raise self._short_failed(status, "reduce", tensor, f"{op}, root {dst}")
        self._check()
        root = self._peer(dst, "dst")
        receives = root == self._rank
        buffer = buffers.pack(tensor, writable=receives)
        operators.check(op, buffer.dtype)
        n = buffer.count
        signature = Signature(
            "reduce",
            buffer.dtype,
            op,
            root,
            n,
            n,
            n if receives else 0,
            buffer.nbytes,
            algorithm=algorithm or "",
        )
        return self._in_place(signature, buffer, f"{op}, root {root}", timeout, async_op, receives=receives)

    def reduce_async(
        self,
        tensor: Any,
        dst: int = 0,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Work:
        """Start a `reduce`; the result of the Work is `tensor`."""
        work: Work = self.reduce(tensor, dst, op, algorithm=algorithm, timeout=timeout, async_op=True)
        return work

    def all_gather(
        self,
        tensor: Any,
        out: Any = None,
        *,
        sizes: Sequence[int] | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Collect the tensors of all ranks on all ranks, in rank order.

        Args:
            tensor: this rank's block, shape `(n, *rest)`; 0-dimensional: one element per rank.
            out: where to: shape `(world * n, *rest)` or `(world, n, *rest)`, or a list of one tensor per
                rank. None: a new array `(world * n, *rest)`. `tensor` may be this rank's own block of `out`.
            sizes: for blocks of different length: length along dimension 0 of every rank's block, the same on
                all ranks. With a list as `out` its shapes say so.

        Returns:
            The output.
        """
        if sizes is None and algorithm is None and timeout is None and not async_op:
            status = self._call(_ALL_GATHER, tensor, out, None, -1, self._timeout)
            if status == 0:
                return out
            if status > 0:
                raise self._short_failed(status, "all_gather", tensor, "")
        self._check()
        source = buffers.pack(tensor, writable=False)
        blocks, target = self._gathered(source, out, sizes, "all_gather")
        signature = Signature(
            "all_gather", source.dtype, None, -1, blocks.total, source.count, blocks.total,
            blocks.total * source.itemsize, (), blocks.bounds, blocks.agreed, algorithm or "",
        )  # fmt: skip
        if sizes is None and algorithm is None and not layout.is_list(out):
            self._keep(signature, source, target.buffer, blocks.bounds[self._rank] * source.itemsize)
        say = self._saying("all_gather", source, "")
        return self._execute(signature, source, target.buffer, target.finish, say, timeout, async_op)

    def _gathered(
        self, source: Buffer, out: Any, sizes: Sequence[int] | None, what: str
    ) -> tuple[Blocks, Target]:
        """Blocks and output of all_gather and of gather's root."""
        if layout.is_list(out):
            shapes = [buffer.shape for buffer in layout.pack_list(out, "out", writable=True)]
            blocks = layout.from_list(shapes, self._size, "out")
            if sizes is not None and layout.check_sizes(sizes, self._size) != blocks.sizes:
                raise ValueError(
                    f"sizes {tuple(sizes)} contradict the lengths {blocks.sizes} of the tensors of out"
                )
            if blocks.block(self._rank) != source.shape:
                raise ValueError(
                    f"out[{self._rank}] has shape {blocks.block(self._rank)}, expected {source.shape} like the input"
                )
            return blocks, layout.target_list(source, blocks, out)
        blocks = layout.from_block(source.shape, self._rank, self._size, sizes)
        target = layout.target_for(source, blocks.shapes, out)
        own = target.buffer.address + blocks.bounds[self._rank] * source.itemsize
        if source.is_copy or target.buffer.is_copy or source.address != own:
            layout.refuse_overlap(source, target.buffer, what)
        return blocks, target

    def all_gather_async(
        self,
        tensor: Any,
        out: Any = None,
        *,
        sizes: Sequence[int] | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Work:
        """Start an `all_gather`; the result of the Work is the output."""
        work: Work = self.all_gather(
            tensor, out, sizes=sizes, algorithm=algorithm, timeout=timeout, async_op=True
        )
        return work

    def reduce_scatter(
        self,
        tensor: Any,
        out: Any = None,
        op: str = "sum",
        *,
        sizes: Sequence[int] | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce over all ranks, and give each rank its block of the result.

        Args:
            tensor: shape `(world * n, *rest)`, or a list of one tensor per rank; untouched.
            out: this rank's block: shape `(n, *rest)`, or `rest` when n is 1. None: a new array.
            op: reduction operator.
            sizes: for blocks of different length: length along dimension 0 of every rank's block, the same on
                all ranks.

        Returns:
            The output.
        """
        if sizes is None and algorithm is None and timeout is None and not async_op:
            status = self._call(_REDUCE_SCATTER, tensor, out, op, -1, self._timeout)
            if status == 0:
                return out
            if status > 0:
                raise self._short_failed(status, "reduce_scatter", tensor, op)
        self._check()
        source, blocks = self._divided(tensor, sizes, "tensor")
        operators.check(op, source.dtype)
        target = self._own_block(source, blocks, out)
        layout.refuse_overlap(source, target.buffer, "reduce_scatter")
        signature = Signature(
            "reduce_scatter", source.dtype, op, -1, blocks.total, blocks.total, target.buffer.count,
            blocks.total * source.itemsize, blocks.bounds, (), blocks.agreed, algorithm or "",
        )  # fmt: skip
        if sizes is None and algorithm is None and not layout.is_list(tensor):
            self._keep(signature, source, target.buffer)
        say = self._saying("reduce_scatter", source, op)
        return self._execute(signature, source, target.buffer, target.finish, say, timeout, async_op)

    def _divided(self, tensor: Any, sizes: Sequence[int] | None, argument: str) -> tuple[Buffer, Blocks]:
        """The big side given as an input: one array or a list."""
        if not layout.is_list(tensor):
            source = buffers.pack(tensor, writable=False)
            return source, layout.from_whole(source.shape, self._size, sizes)
        parts = layout.pack_list(tensor, argument, writable=False)
        blocks = layout.from_list([part.shape for part in parts], self._size, argument)
        if sizes is not None and layout.check_sizes(sizes, self._size) != blocks.sizes:
            raise ValueError(
                f"sizes {tuple(sizes)} contradict the lengths {blocks.sizes} of the tensors of {argument}"
            )
        return layout.joined(parts, blocks), blocks

    def _own_block(self, like: Buffer, blocks: Blocks, out: Any) -> Target:
        """The output of an operation that gives this rank its block."""
        shape = blocks.block(self._rank)
        shapes = (shape, blocks.rest) if blocks.sizes[self._rank] == 1 and not blocks.scalar else (shape,)
        return layout.target_for(like, shapes, out)

    def reduce_scatter_async(
        self,
        tensor: Any,
        out: Any = None,
        op: str = "sum",
        *,
        sizes: Sequence[int] | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Work:
        """Start a `reduce_scatter`; the result of the Work is the output."""
        work: Work = self.reduce_scatter(
            tensor, out, op, sizes=sizes, algorithm=algorithm, timeout=timeout, async_op=True
        )
        return work

    def barrier(
        self, *, algorithm: str | None = None, timeout: float | None = None, async_op: bool = False
    ) -> Any:
        """Return (or complete) when every rank has called it. Returns None."""
        if algorithm is None and timeout is None and not async_op:
            status = self._call(_BARRIER, None, None, None, -1, self._timeout)
            if status == 0:
                return None
            if status > 0:
                raise self._fail(status, Call(_barrier(), caller(), self._timeout))
        self._check()
        signature = Signature("barrier", "uint8", None, -1, 0, 0, 0, 0, algorithm=algorithm or "")
        if algorithm is None:
            self._keep(signature, None, None)
        return self._execute(signature, None, None, _nothing, _barrier, timeout, async_op)

    def barrier_async(self, *, algorithm: str | None = None, timeout: float | None = None) -> Work:
        """Start a `barrier`; the Work is complete when every rank has started it."""
        work: Work = self.barrier(algorithm=algorithm, timeout=timeout, async_op=True)
        return work


def _nothing() -> None:
    return None


def _barrier() -> str:
    return "barrier()"
