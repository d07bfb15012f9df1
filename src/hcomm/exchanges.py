"""Collectives in which every rank, or one root, deals out different blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hcomm import buffers, layout
from hcomm.buffers import Buffer
from hcomm.codes import OPERATIONS
from hcomm.collectives import Collectives
from hcomm.diagnose.report import describe
from hcomm.layout import Blocks, Target
from hcomm.plans import Signature, agreement
from hcomm.work import Work

_ALL_TO_ALL, _GATHER, _SCATTER = OPERATIONS["all_to_all"], OPERATIONS["gather"], OPERATIONS["scatter"]


class Exchanges(Collectives):
    """The rest of the collective operations; see `Collectives` for what they share."""

    def all_to_all(
        self,
        tensor: Any,
        out: Any = None,
        *,
        input_sizes: Sequence[int] | None = None,
        output_sizes: Sequence[int] | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send block r of `tensor` to rank r; block r of the output comes from rank r.

        Args:
            tensor: shape `(world * n, *rest)`, or a list of one tensor per rank.
            out: of the same shape (a list if `tensor` is one). None: new; for lists, tensors shaped like the
                inputs.
            input_sizes: lengths along dimension 0 of the blocks sent, when they differ.
            output_sizes: lengths along dimension 0 of the blocks received. Both or neither, and on every rank
                or on none. A list as input or output counts as giving sizes.

        Returns:
            The output.
        """
        if (
            input_sizes is None
            and output_sizes is None
            and algorithm is None
            and timeout is None
            and not async_op
        ):
            status = self._call(_ALL_TO_ALL, tensor, out, None, -1, self._timeout)
            if status == 0:
                return out
            if status > 0:
                raise self._short_failed(status, "all_to_all", tensor, "")
        self._check()
        if (input_sizes is None) != (output_sizes is None):
            raise ValueError("all_to_all needs both input_sizes and output_sizes, or neither")
        source, sent = self._divided(tensor, input_sizes, "tensor")
        uneven = input_sizes is not None or layout.is_list(tensor) or layout.is_list(out)
        target, received = self._all_to_all_target(tensor, source, sent, out, output_sizes)
        layout.refuse_overlap(source, target.buffer, "all_to_all")
        count = 0 if uneven else source.count
        signature = Signature(
            "all_to_all", source.dtype, None, -1, count, source.count, target.buffer.count, count * source.itemsize,
            sent.bounds, received.bounds, agreement("uneven") if uneven else 0, algorithm or "",
        )  # fmt: skip
        if not uneven and algorithm is None:
            self._keep(signature, source, target.buffer)
        say = self._saying("all_to_all", source, f"sizes {sent.sizes} to {received.sizes}" if uneven else "")
        return self._execute(signature, source, target.buffer, target.finish, say, timeout, async_op)

    def _all_to_all_target(
        self, tensor: Any, source: Buffer, sent: Blocks, out: Any, output_sizes: Sequence[int] | None
    ) -> tuple[Target, Blocks]:
        if layout.is_list(tensor) and out is None:
            if not sent.even:
                raise ValueError(
                    "all_to_all of a list of different lengths needs out=: a list with what each rank sends here"
                )
            out = [buffers.empty(sent.block(rank), source) for rank in range(self._size)]
        if layout.is_list(out):
            shapes = [buffer.shape for buffer in layout.pack_list(out, "out", writable=True)]
            received = layout.from_list(shapes, self._size, "out")
            if output_sizes is not None and layout.check_sizes(output_sizes, self._size) != received.sizes:
                raise ValueError(
                    f"output_sizes {tuple(output_sizes)} contradict the lengths {received.sizes} of out"
                )
            return layout.target_list(source, received, out), received
        sizes = (
            sent.sizes
            if output_sizes is None
            else layout.check_sizes(output_sizes, self._size, "output_sizes")
        )
        received = Blocks(sizes, sent.rest, sent.scalar)
        return layout.target_for(source, (received.shape,), out), received

    def all_to_all_async(
        self,
        tensor: Any,
        out: Any = None,
        *,
        input_sizes: Sequence[int] | None = None,
        output_sizes: Sequence[int] | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Work:
        """Start an `all_to_all`; the result of the Work is the output."""
        work: Work = self.all_to_all(
            tensor,
            out,
            input_sizes=input_sizes,
            output_sizes=output_sizes,
            algorithm=algorithm,
            timeout=timeout,
            async_op=True,
        )
        return work

    def gather(
        self,
        tensor: Any,
        dst: int = 0,
        *,
        out: Any = None,
        sizes: Sequence[int] | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Collect the tensors of all ranks on rank `dst`, in rank order.

        Args:
            tensor: this rank's block.
            dst: the root.
            out: on the root, as for `all_gather`; must be None elsewhere.
            sizes: as for `all_gather`, on every rank, for blocks of different length.

        Returns:
            The output on the root, None elsewhere.
        """
        if sizes is None and algorithm is None and timeout is None and not async_op:
            status = self._call(_GATHER, tensor, out, None, dst, self._timeout)
            if status == 0:
                return out
            if status > 0:
                raise self._short_failed(status, "gather", tensor, f"root {dst}")
        self._check()
        root = self._peer(dst, "dst")
        source = buffers.pack(tensor, writable=False)
        target: Target | None = None
        if root == self._rank:
            blocks, target = self._gathered(source, out, sizes, "gather")
            if not blocks.even and sizes is None:
                raise ValueError("gather of blocks of different length needs sizes= on every rank")
        elif out is not None:
            raise ValueError(f"out is for the root (rank {root}) only; this is rank {self._rank}")
        else:
            blocks = layout.from_block(source.shape, self._rank, self._size, sizes)
        signature = Signature(
            "gather", source.dtype, None, root, blocks.total, source.count, blocks.total if target else 0,
            blocks.total * source.itemsize, (), blocks.bounds, blocks.agreed, algorithm or "",
        )  # fmt: skip
        if sizes is None and algorithm is None and not layout.is_list(out):
            own = blocks.bounds[self._rank] * source.itemsize
            self._keep(signature, source, target.buffer if target else None, own)
        say = self._saying("gather", source, f"root {root}")
        finish = target.finish if target else _nothing
        return self._execute(
            signature, source, target.buffer if target else None, finish, say, timeout, async_op
        )

    def gather_async(
        self,
        tensor: Any,
        dst: int = 0,
        *,
        out: Any = None,
        sizes: Sequence[int] | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Work:
        """Start a `gather`; the result of the Work is the output on the root, None elsewhere."""
        work: Work = self.gather(
            tensor, dst, out=out, sizes=sizes, algorithm=algorithm, timeout=timeout, async_op=True
        )
        return work

    def scatter(
        self,
        tensor: Any = None,
        src: int = 0,
        *,
        out: Any = None,
        sizes: Sequence[int] | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Give each rank its block of `tensor` of rank `src`.

        Args:
            tensor: on the root: shape `(world * n, *rest)`, or a list of one tensor per rank. On the others:
                None (then `out` is needed), or a tensor of the root's shape, as for `broadcast`; its values
                are not used.
            src: the root.
            out: this rank's block, shape `(n, *rest)`. None: a new array.
            sizes: for blocks of different length, on every rank: length along dimension 0 of every rank's
                block.

        Returns:
            The output.
        """
        if sizes is None and algorithm is None and timeout is None and not async_op:
            status = self._call(_SCATTER, tensor, out, None, src, self._timeout)
            if status == 0:
                return out
            if status > 0:
                shape = layout.from_block(out.shape, self._rank, self._size, None).shape
                raise self._short_failed(status, "scatter", out, f"root {src}", shape)
        self._check()
        root = self._peer(src, "src")
        source: Buffer | None = None
        if tensor is not None:
            source, blocks = self._divided(tensor, sizes, "tensor")
            if root == self._rank and not blocks.even and sizes is None:
                raise ValueError("scatter of blocks of different length needs sizes= on every rank")
            target = self._own_block(source, blocks, out)
        elif root == self._rank or out is None:
            raise ValueError("scatter needs the tensor on the root, and the tensor or out= on the others")
        else:
            piece = buffers.pack(out, writable=True)
            blocks = layout.from_block(piece.shape, self._rank, self._size, sizes)
            target = self._own_block(piece, blocks, out)
        if root != self._rank:
            source = None
        if source is not None:
            layout.refuse_overlap(source, target.buffer, "scatter")
        signature = Signature(
            "scatter", target.buffer.dtype, None, root, blocks.total, source.count if source else 0,
            target.buffer.count, blocks.total * target.buffer.itemsize, blocks.bounds, (), blocks.agreed,
            algorithm or "",
        )  # fmt: skip
        if sizes is None and algorithm is None and not layout.is_list(tensor):
            self._keep(signature, source, target.buffer)
        shape = blocks.shape if not blocks.scalar else (self._size,)
        say = lambda: describe("scatter", target.buffer.dtype, shape, f"root {root}")  # noqa: E731
        return self._execute(signature, source, target.buffer, target.finish, say, timeout, async_op)

    def scatter_async(
        self,
        tensor: Any = None,
        src: int = 0,
        *,
        out: Any = None,
        sizes: Sequence[int] | None = None,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Work:
        """Start a `scatter`; the result of the Work is the output."""
        work: Work = self.scatter(
            tensor, src, out=out, sizes=sizes, algorithm=algorithm, timeout=timeout, async_op=True
        )
        return work


def _nothing() -> None:
    return None
