"""Collectives that add."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp

from hcomm.torch.core import GroupCore, Tensors, flat, listed, operation, rooted, single
from hcomm.torch.core import time_limit as limit_of
from hcomm.torch.operators import NAMES, factor_of, name_of, scaled
from hcomm.torch.work import Done, Work

#: Coalesced tensors of at most this many bytes in all travel as one.
FUSED_BYTES = 1 << 20


def _asked(opts: Any, op: Any) -> tuple[str, Any]:
    """The operator of a call and its ReduceOp: torch gives it in options, or (`allreduce(t, ReduceOp.SUM)`) itself."""
    if op is None and isinstance(opts, (ReduceOp, ReduceOp.RedOpType)):
        op = opts
    if op is None:
        op = getattr(opts, "reduceOp", ReduceOp.SUM)
    return name_of(op), op


class Reductions(GroupCore):
    """all_reduce, reduce, reduce_scatter. Factors of PREMUL_SUM are applied before, in the tensors' type."""

    @operation("all_reduce")
    def allreduce(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None
    ) -> Done | Work:
        """Reduce a tensor over all ranks, in place."""
        tensors = listed(tensors)
        tensor = single(tensors, "all_reduce")
        if opts is not None and timeout is None and op is None and self._batch is None:
            # torch.distributed.all_reduce of an ordinary tensor: nothing is built but what torch asks for.
            name = NAMES.get(hash(opts.reduceOp)) if hasattr(opts, "reduceOp") else None
            if name is not None and not tensor.is_sparse and not getattr(opts, "asyncOp", True):
                self._comm.all_reduce(tensor, name, timeout=limit_of(opts, None))
                return Done(tensors)
        if tensor.is_sparse:
            return self._sparse_all_reduce(tensor, opts, timeout, op)
        word, given = _asked(opts, op)
        if word == "premul_sum":
            tensor.detach().copy_(scaled(tensor, factor_of(given)))
            word = "sum"
        return self._go(self._comm.all_reduce, (tensor, word), tensors, opts, timeout)

    def _sparse_all_reduce(
        self, tensor: torch.Tensor, opts: Any, timeout: timedelta | None, op: Any
    ) -> Done | Work:
        """Sum sparse (COO) tensors: every rank gets all entries, and adds those of the same place."""
        word, _ = _asked(opts, op)
        if word != "sum":
            raise ValueError(f"all_reduce of sparse tensors can only sum, not {word}")
        comm, limit = self._comm, limit_of(opts, timeout)
        mine = tensor.detach().coalesce()
        indices, values = mine.indices().t().contiguous(), mine.values().contiguous()
        counts = comm.all_gather(torch.tensor([len(values)]), timeout=limit).tolist()
        every = comm.all_gather(indices, sizes=counts, timeout=limit)
        added = comm.all_gather(values, sizes=counts, timeout=limit)
        whole = torch.sparse_coo_tensor(every.t(), added, tensor.shape).coalesce()
        with torch.no_grad():
            tensor.copy_(whole)  # not through detach(): a sparse copy replaces the tensor's parts
        return Done([tensor])

    @operation("all_reduce_coalesced")
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Done | Work:
        """Reduce several tensors over all ranks, in place; small ones of one type travel together."""
        word, given = _asked(opts, None)
        if word == "premul_sum":
            for tensor in tensors:
                tensor.detach().copy_(scaled(tensor, factor_of(given)))
            word = "sum"
        limit = limit_of(opts, None)
        comm, alike = self._comm, len({tensor.dtype for tensor in tensors}) == 1
        if len(tensors) > 1 and alike and sum(t.numel() * t.element_size() for t in tensors) <= FUSED_BYTES:
            fused = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])

            def deal_out() -> None:
                pieces = torch.split(fused, [tensor.numel() for tensor in tensors])
                for tensor, piece in zip(tensors, pieces, strict=True):
                    tensor.detach().copy_(piece.view(tensor.shape))

            return self._go(comm.all_reduce, (fused, word), tensors, opts, None, deal_out)
        started = [comm.all_reduce(tensor, word, timeout=limit, async_op=True) for tensor in tensors]
        return self._finished(self._started(started, tensors), opts)

    @operation("reduce")
    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Done | Work:
        """Reduce a tensor over all ranks into that of the root; the others keep theirs."""
        target, opts = rooted(opts, root)
        tensors = listed(tensors)
        tensor = single(tensors, "reduce")
        word, given = _asked(opts, op)
        if word != "premul_sum":
            return self._go(self._comm.reduce, (tensor, target, word), tensors, opts, timeout)
        part = scaled(tensor, factor_of(given))

        def place() -> None:
            if self.rank() == target:
                tensor.detach().copy_(part)

        return self._go(self._comm.reduce, (part, target, "sum"), tensors, opts, timeout, place)

    @operation("reduce_scatter")
    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None
    ) -> Done | Work:
        """Reduce one tensor per rank over all ranks; each rank gets its own. They may differ in size."""
        outputs = listed(outputs)
        output = single(outputs, "reduce_scatter")
        parts: Sequence[torch.Tensor] = inputs
        if len(inputs) == 1 and not isinstance(inputs[0], torch.Tensor):
            parts = inputs[0]
        word, given = _asked(opts, op)
        if word == "premul_sum":
            factor, word = factor_of(given), "sum"
            parts = [scaled(part, factor) for part in parts]
        if any(_overlap(output, part) for part in parts):
            parts = [part.detach().clone() for part in parts]
        return self._go(self._comm.reduce_scatter, (list(parts), output, word), outputs, opts, timeout)

    @operation("_reduce_scatter_base")
    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, timeout: timedelta | None = None
    ) -> Done | Work:
        """Reduce a tensor over all ranks; each rank gets an equal part of it, in rank order."""
        call, args, after = self._scatter_plan(output, input, opts)
        return self._go(call, args, [output], opts, timeout, after)

    _reduce_scatter_base = reduce_scatter_single

    @operation("reduce_scatter_tensor_coalesced")
    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Done | Work:
        """`reduce_scatter_single` of several pairs of tensors."""
        limit = limit_of(opts, None)
        plans = [self._scatter_plan(out, given, opts) for out, given in zip(outputs, inputs, strict=True)]
        started = [call(*args, timeout=limit, async_op=True) for call, args, _ in plans]
        later = [after for _, _, after in plans if after is not None]

        def place() -> None:
            for after in later:
                after()

        return self._finished(self._started(started, outputs, place if later else None), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_plan(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> tuple[Any, Any, Any]:
        """The call of the communicator, its arguments, and what is to be done afterwards."""
        if input.numel() != output.numel() * self.size():
            raise ValueError(
                f"reduce_scatter: the input has {input.numel()} elements, expected {output.numel()} × {self.size()}: "
                "the output's for each rank"
            )
        word, given = _asked(opts, None)
        if word == "premul_sum":
            input, word = scaled(input, factor_of(given)), "sum"
        elif _overlap(output, input):
            input = input.detach().clone()
        if output.is_contiguous():
            return self._comm.reduce_scatter, (flat(input), flat(output), word), None
        packed = torch.empty(output.numel(), dtype=output.dtype)

        def place() -> None:
            output.detach().copy_(packed.view(output.shape))

        return self._comm.reduce_scatter, (flat(input), packed, word), place


def _overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two contiguous tensors share memory; for others, whether their storage is one."""
    if first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr() or not first.numel():
        return False
    if not (first.is_contiguous() and second.is_contiguous()):
        return True
    begin, other = first.data_ptr(), second.data_ptr()
    return (
        begin < other + second.numel() * second.element_size()
        and other < begin + first.numel() * first.element_size()
    )
