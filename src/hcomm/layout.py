"""How a big array is dealt out to the ranks: sizes, shapes, and the outputs that users hand in.

A gather-like operation has a big side, the concatenation along dimension 0 of one block per rank. The big
side may be given as

- one array of shape `(sum of sizes, *rest)`, or `(world, *block)` when all blocks are equal,
- a list of `world` arrays, one block each (they may differ in their first dimension).

0-dimensional blocks make a big side of shape `(world,)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hcomm import buffers
from hcomm.buffers import Buffer
from hcomm.plans import agreement

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Blocks:
    """One block per rank along dimension 0.

    Attributes:
        sizes: length of each block along dimension 0.
        rest: the shape of one index of dimension 0.
        scalar: the blocks are 0-dimensional.
    """

    sizes: tuple[int, ...]
    rest: Shape
    scalar: bool = False

    @property
    def row(self) -> int:
        """Elements per index of dimension 0."""
        return math.prod(self.rest)

    @property
    def bounds(self) -> tuple[int, ...]:
        """Where each block begins, in elements, and the end."""
        ends, end, row = [0], 0, self.row
        for size in self.sizes:
            end += size * row
            ends.append(end)
        return tuple(ends)

    @property
    def total(self) -> int:
        """Elements of all blocks."""
        return sum(self.sizes) * self.row

    @property
    def even(self) -> bool:
        """Whether all blocks are equal."""
        return len(set(self.sizes)) < 2

    @property
    def agreed(self) -> int:
        """What ranks must agree on beside the total: the sizes, when they differ."""
        return 0 if self.even else agreement(self.sizes)

    @property
    def shape(self) -> Shape:
        """Of the big side."""
        return (sum(self.sizes), *self.rest)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes that one array may have as the big side."""
        if not self.even or self.scalar:
            return (self.shape,)
        return (self.shape, (len(self.sizes), self.sizes[0], *self.rest))

    def block(self, rank: int) -> Shape:
        """The shape of a rank's block."""
        return () if self.scalar else (self.sizes[rank], *self.rest)


def is_list(value: object) -> bool:
    """Whether the user gave a list (or tuple) of arrays."""
    return isinstance(value, (list, tuple))


def check_sizes(sizes: Sequence[int], world: int, name: str = "sizes") -> tuple[int, ...]:
    """`sizes` as integers, one per rank. Raises ValueError."""
    found = tuple(int(size) for size in sizes)
    if len(found) != world or any(size < 0 for size in found):
        raise ValueError(f"{name} must be {world} lengths along dimension 0, one per rank, not {found}")
    return found


def from_block(shape: Shape, rank: int, world: int, sizes: Sequence[int] | None) -> Blocks:
    """The blocks when this rank's own block has `shape`. Raises ValueError."""
    if not shape:
        if sizes is not None and check_sizes(sizes, world) != (1,) * world:
            raise ValueError(
                f"a 0-dimensional tensor is one element per rank; sizes must be all 1, not {tuple(sizes)}"
            )
        return Blocks((1,) * world, (), scalar=True)
    if sizes is None:
        return Blocks((shape[0],) * world, shape[1:])
    found = check_sizes(sizes, world)
    if found[rank] != shape[0]:
        raise ValueError(
            f"sizes[{rank}] is {found[rank]}, but this rank's tensor has shape {shape}: expected {shape[0]}"
        )
    return Blocks(found, shape[1:])


def from_whole(shape: Shape, world: int, sizes: Sequence[int] | None, name: str = "sizes") -> Blocks:
    """The blocks when the big side is one array of `shape`. Raises ValueError."""
    if not shape:
        raise ValueError(f"a 0-dimensional tensor cannot be divided among {world} ranks; give it a dimension")
    if sizes is None:
        if shape[0] % world:
            raise ValueError(
                f"dimension 0 of shape {shape} does not divide evenly by the {world} ranks; "
                f"pad it, or give {name}= (one per rank)"
            )
        return Blocks((shape[0] // world,) * world, shape[1:])
    found = check_sizes(sizes, world, name)
    if sum(found) != shape[0]:
        raise ValueError(
            f"{name} {found} add up to {sum(found)}, but dimension 0 of shape {shape} is {shape[0]}"
        )
    return Blocks(found, shape[1:])


def from_list(shapes: Sequence[Shape], world: int, argument: str) -> Blocks:
    """The blocks when the big side is a list of arrays. Raises ValueError."""
    if len(shapes) != world:
        raise ValueError(f"{argument} has {len(shapes)} tensors, expected {world}: one per rank")
    if all(not shape for shape in shapes):
        return Blocks((1,) * world, (), scalar=True)
    rests = {shape[1:] for shape in shapes}
    if not all(shapes) or len(rests) > 1:
        raise ValueError(
            f"the tensors of {argument} may differ only in dimension 0, found shapes {', '.join(map(str, shapes))}"
        )
    return Blocks(tuple(shape[0] for shape in shapes), shapes[0][1:])


def pack_list(tensors: Sequence[Any], argument: str, *, writable: bool) -> list[Buffer]:
    """Pack each tensor of a list; they must have one element type. Raises ValueError, UnsupportedBuffer."""
    if not tensors:
        raise ValueError(f"{argument} is empty, expected one tensor per rank")
    found = [buffers.pack(tensor, writable=writable) for tensor in tensors]
    if len({buffer.dtype for buffer in found}) > 1:
        raise ValueError(
            f"the tensors of {argument} have different element types: {', '.join(b.dtype for b in found)}"
        )
    return found


def joined(parts: Sequence[Buffer], blocks: Blocks) -> Buffer:
    """A new contiguous array with the parts of a list one after the other."""
    whole = buffers.empty((blocks.total,), parts[0])
    for part, begin, end in zip(parts, blocks.bounds, blocks.bounds[1:], strict=False):
        parts[0].family.copy(whole[begin:end].reshape(part.shape), _as_family(part.array, parts[0]))
    return buffers.pack(whole, writable=True)


@dataclass(frozen=True)
class Target:
    """Where a result goes: the memory for the core, and how it reaches the user's arrays."""

    buffer: Buffer
    finish: Callable[[], Any]


def target_for(like: Buffer, shapes: Sequence[Shape], out: Any, argument: str = "out") -> Target:
    """One output array: a new one of `shapes[0]` when `out` is None, else `out`, which must have one of the
    shapes.

    Raises:
        ValueError: shape or element type is not the expected one.
        UnsupportedBuffer: not an array hcomm can write.
    """
    if out is None:
        fresh = buffers.empty(shapes[0], like)
        return Target(buffers.pack(fresh, writable=True), lambda: fresh)
    buffer = buffers.pack(out, writable=True)
    _expect(buffer, like.dtype, shapes, argument)

    def finish() -> Any:
        buffer.write_back()
        return out

    return Target(buffer, finish)


def target_list(like: Buffer, blocks: Blocks, out: Sequence[Any], argument: str = "out") -> Target:
    """A list of outputs, one block each, received into one array and dealt out afterwards. Raises as `target_for`."""
    parts = pack_list(out, argument, writable=True)
    for rank, part in enumerate(parts):
        _expect(part, like.dtype, (blocks.block(rank),), f"{argument}[{rank}]")
    for i, part in enumerate(parts):
        for j in range(i):
            if buffers.overlap(part, parts[j]):
                raise ValueError(
                    f"{argument}[{j}] and {argument}[{i}] share memory: each output needs its own"
                )
    whole = buffers.empty((blocks.total,), like)
    bounds = blocks.bounds

    def finish() -> Any:
        for rank, part in enumerate(parts):
            piece = whole[bounds[rank] : bounds[rank + 1]].reshape(part.shape)
            part.family.copy(part.array, _as_family(piece, part))
        return out

    return Target(buffers.pack(whole, writable=True), finish)


def _as_family(array: Any, part: Buffer) -> Any:
    """`array` in the library of `part` (a torch list filled from NumPy input, or the reverse)."""
    if part.family.name == "torch" and type(array).__module__.startswith("numpy"):
        import torch

        return torch.from_numpy(array)
    return array.numpy() if part.family.name == "numpy" and hasattr(array, "numpy") else array


def _expect(buffer: Buffer, dtype: str, shapes: Sequence[Shape], argument: str) -> None:
    if buffer.dtype != dtype:
        raise ValueError(
            f"{argument} has element type {buffer.dtype}, expected {dtype} like the input; hcomm never casts"
        )
    if tuple(buffer.shape) not in shapes:
        raise ValueError(
            f"{argument} has shape {tuple(buffer.shape)}, expected {' or '.join(map(str, shapes))}"
        )


def refuse_overlap(source: Buffer, target: Buffer, what: str) -> None:
    """Raise ValueError when input and output share memory."""
    if buffers.overlap(source, target):
        raise ValueError(f"{what}: out shares memory with the input; pass an out of its own, or none")
