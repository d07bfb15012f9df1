"""Collectives and messages that move tensors without adding any."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from hcomm.torch.core import Tensors, flat, listed, movable, operation, rooted, single
from hcomm.torch.core import time_limit as limit_of
from hcomm.torch.reductions import Reductions, _overlap
from hcomm.torch.work import Done, Work


class Movements(Reductions):
    """broadcast, gathers, scatters, all_to_all, barrier, messages."""

    @operation("broadcast")
    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int | None = None
    ) -> Done | Work:
        """Copy the root's tensor into everybody's."""
        source, opts = rooted(opts, root)
        tensors = listed(tensors)
        tensor = movable(single(tensors, "broadcast"))
        return self._go(self._comm.broadcast, (tensor, source), tensors, opts, timeout)

    @operation("all_gather")
    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Done | Work:
        """Collect everybody's tensor in a list, in rank order; they may differ along dimension 0."""
        if outputs and not isinstance(outputs[0], torch.Tensor):
            outputs = single(outputs, "all_gather")
        tensor = movable(single(inputs, "all_gather"))
        targets = [movable(output) for output in outputs]
        return self._go(self._comm.all_gather, (tensor, targets), list(outputs), opts, timeout)

    @operation("_all_gather_base")
    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, timeout: timedelta | None = None
    ) -> Done | Work:
        """Collect everybody's tensor in one, in rank order. Only the number of elements of `output` matters."""
        args, after = self._gather_plan(output, input)
        return self._go(self._comm.all_gather, args, [output], opts, timeout, after)

    _allgather_base = all_gather_single

    @operation("all_gather_into_tensor_coalesced")
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Done | Work:
        """`all_gather_single` of several pairs of tensors."""
        limit = limit_of(opts, None)
        plans = [self._gather_plan(out, given) for out, given in zip(outputs, inputs, strict=True)]
        started = [self._comm.all_gather(*args, timeout=limit, async_op=True) for args, _ in plans]
        later = [after for _, after in plans if after is not None]

        def place() -> None:
            for after in later:
                after()

        return self._finished(self._started(started, outputs, place if later else None), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @operation("all_gather_coalesced")
    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Done | Work:
        """`allgather` of several tensors: `output_lists[r][i]` becomes `inputs[i]` of rank r."""
        limit = limit_of(opts, None)
        if len(output_lists) != self.size() or any(len(row) != len(inputs) for row in output_lists):
            raise ValueError(
                f"all_gather_coalesced needs {self.size()} lists of {len(inputs)} outputs, one list per rank"
            )
        started = [
            self._comm.all_gather(
                movable(tensor), [movable(row[place]) for row in output_lists], timeout=limit, async_op=True
            )
            for place, tensor in enumerate(inputs)
        ]
        results = [tensor for row in output_lists for tensor in row]
        return self._finished(self._started(started, results), opts)

    def _gather_plan(self, output: torch.Tensor, input: torch.Tensor) -> tuple[Any, Any]:
        """Arguments of the communicator's all_gather, and what is to be done afterwards."""
        if output.numel() != input.numel() * self.size():
            raise ValueError(
                f"all_gather: the output has {output.numel()} elements, expected {input.numel()} × {self.size()}: "
                "the input's for each rank"
            )
        output, input = movable(output), movable(input)
        if output.is_contiguous():
            return (flat(input), flat(output)), None
        packed = torch.empty(output.numel(), dtype=output.dtype)

        def place() -> None:
            output.detach().copy_(packed.view(output.shape))

        return (flat(input), packed), place

    @operation("gather")
    def gather(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Done | Work:
        """Collect everybody's tensor in a list on the root."""
        target, opts = rooted(opts, root)
        tensor = movable(single(inputs, "gather"))
        if outputs and not isinstance(outputs[0], torch.Tensor):
            outputs = single(outputs, "gather")
        out = [movable(output) for output in outputs] if self.rank() == target else None

        def call(**how: Any) -> Any:
            return self._comm.gather(tensor, target, out=out, **how)

        return self._go(call, (), list(outputs), opts, timeout)

    @operation("scatter")
    def scatter(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Done | Work:
        """Give each rank its tensor of the root's list."""
        source, opts = rooted(opts, root)
        outputs = listed(outputs)
        output = movable(single(outputs, "scatter"))
        parts: Tensors | None = None
        if self.rank() == source:
            if inputs and not isinstance(inputs[0], torch.Tensor):
                inputs = single(inputs, "scatter")
            parts = [movable(part) for part in inputs]
            if any(_overlap(output, part) for part in parts):
                parts = [part.detach().clone() for part in parts]

        def call(**how: Any) -> Any:
            return self._comm.scatter(parts, source, out=output, **how)

        return self._go(call, (), outputs, opts, timeout)

    @operation("all_to_all")
    def alltoall(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> Done | Work:
        """Send `inputs[r]` to rank r; `outputs[r]` comes from rank r. They may differ in size."""
        # Only numbers of elements matter to torch, so shapes are laid aside.
        sent = [flat(movable(tensor)) for tensor in inputs]
        packed = [_flat_target(movable(tensor)) for tensor in outputs]
        after = _placing([movable(tensor) for tensor in outputs], packed)
        return self._go(self._comm.all_to_all, (sent, packed), outputs, opts, timeout, after)

    @operation("all_to_all")
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_sizes: Sequence[int] = (),
        input_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Done | Work:
        """Send block r of `input` to rank r; block r of `output` comes from rank r.

        Sizes are lengths along dimension 0, one per rank; without them blocks are equal.
        """
        results = [output]
        output, input = movable(output), movable(input)
        if _overlap(output, input):
            input = input.detach().clone()
        packed = _flat_target(output)
        after = _placing([output], [packed])
        if not output_sizes and not input_sizes:
            return self._go(self._comm.all_to_all, (flat(input), packed), results, opts, timeout, after)
        sent = self._lengths(input, input_sizes, "input")
        received = self._lengths(output, output_sizes, "output")

        def call(**how: Any) -> Any:
            return self._comm.all_to_all(flat(input), packed, input_sizes=sent, output_sizes=received, **how)

        return self._go(call, (), results, opts, timeout, after)

    alltoall_base = all_to_all_single

    def _lengths(self, tensor: torch.Tensor, sizes: Sequence[int], what: str) -> list[int]:
        """Elements of each block. Raises ValueError."""
        length = tensor.size(0) if tensor.dim() else 0
        if not sizes:
            if length % self.size():
                raise ValueError(
                    f"all_to_all: dimension 0 of the {what} ({length}) does not divide by {self.size()} ranks"
                )
            sizes = [length // self.size()] * self.size()
        if len(sizes) != self.size() or sum(sizes) != length:
            raise ValueError(
                f"all_to_all: {what} split sizes {list(sizes)} must be {self.size()} lengths that add up to {length}, "
                "dimension 0"
            )
        row = tensor.numel() // length if length else 0
        return [size * row for size in sizes]

    @operation("barrier")
    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Done | Work:
        """Complete when every rank has called it."""
        return self._go(self._comm.barrier, (), [], opts, timeout)

    @operation("send")
    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        """Start sending a tensor to a rank of the group."""
        tensor = single(tensors, "send")
        return self._message(self._comm.send(movable(tensor), dst, tag), listed(tensors))

    @operation("recv")
    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        """Start receiving a tensor from a rank of the group."""
        tensor = single(tensors, "recv")
        return self._message(self._comm.recv_async(movable(tensor), src, tag), listed(tensors))

    @operation("recv_any_source")
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Start receiving a tensor from whoever sends first with this tag."""
        tensor = single(tensors, "recv")
        return self._message(self._comm.recv_async(movable(tensor), None, tag), listed(tensors))

    def _message(self, operation: Any, tensors: Tensors) -> Work:
        work = Work([operation], tensors, self._messages)
        if self._batch is not None:
            self._batch.append(work)
        return work


def _flat_target(tensor: torch.Tensor) -> torch.Tensor:
    """Where the elements of a tensor can be received in one dimension: itself if it is contiguous."""
    if tensor.is_contiguous():
        return flat(tensor)
    return torch.empty(tensor.numel(), dtype=tensor.dtype)


def _placing(targets: Tensors, packed: Tensors) -> Any:
    """What puts received elements into tensors that are not contiguous; None if there are none."""
    apart = [
        (target, piece)
        for target, piece in zip(targets, packed, strict=True)
        if piece.data_ptr() != target.data_ptr()
    ]
    if not apart:
        return None

    def place() -> None:
        for target, piece in apart:
            target.detach().copy_(piece.view(target.shape))

    return place
