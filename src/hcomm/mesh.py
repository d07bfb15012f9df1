"""A grid of ranks with named axes, and a group for each: data, pipeline and tensor parallelism at once."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping

from hcomm import _native
from hcomm.communicator import Communicator
from hcomm.diagnose.callsite import caller
from hcomm.diagnose.report import Call
from hcomm.plans import Signature
from hcomm.world import state

#: Bytes in which a rank tells the others what mesh it makes.
_TOLD = 512


class Mesh:
    """The ranks of a communicator as a grid: `Mesh(dp=2, pp=2, tp=2)` of 8 ranks. Every rank makes it.

    Ranks are laid out with the last axis fastest, as in a C array: rank = ((dp · PP) + pp) · TP + tp. Put the axis that
    communicates most last, so that its groups are neighbouring ranks, which launchers place on one host.

    `mesh["tp"]` is the communicator of the ranks that differ from this one in their tp coordinate only, in the order of
    that coordinate: `mesh["tp"].rank` is this rank's. Its name in messages is such as `tp of dp=0,pp=1`.

    Attributes:
        axes: name → size, in the order given.
        coordinates: name → place of this rank on the axis, from 0.

    Args:
        group: the ranks that become a mesh (default: all).
        axes: name=size; one size may be -1: whatever is left.

    Raises:
        ValueError: no axis, a size that is not a positive number, sizes that do not multiply to the number of ranks, or
            ranks that make different meshes; on every rank.
        NotInitialized: `init` has not been called.
        InitError, PeerLost: a group could not be made; see `Communicator.new_group`.
    """

    def __init__(self, *, group: Communicator | None = None, **axes: int) -> None:
        world = state.of(group)
        told = _exchange(world, ", ".join(f"{name}={size!r}" for name, size in axes.items()))
        if len(set(told)) > 1:
            listed = "; ".join(f"rank {rank}: Mesh({text})" for rank, text in enumerate(told))
            raise ValueError(f"the ranks make different meshes: {listed}")
        self.axes: Mapping[str, int] = _sizes(axes, world.size)
        self._world = world
        self.coordinates: Mapping[str, int] = self.coordinates_of(world.rank)
        self._groups: dict[tuple[str, ...], Communicator] = {}
        for name in self.axes:
            self.group(name)

    @property
    def rank(self) -> int:
        """This rank in the communicator that became the mesh."""
        return self._world.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._world.size

    def __getitem__(self, axis: str) -> Communicator:
        """The group of one axis. Raises KeyError."""
        return self._groups[self._known(axis)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.axes)

    def group(self, *axes: str) -> Communicator:
        """The group of the ranks that differ from this one on these axes only, in rank order.

        Several axes together make a group when they are first asked for; then every rank asks, in the same order. For
        example `mesh.group("dp", "tp")`, over which a stage of a pipeline averages its loss.

        Raises:
            KeyError: there is no such axis.
            ValueError: no axis, or one twice.
            InitError, PeerLost: see `Communicator.new_group`.
        """
        for axis in axes:
            self._known(axis)
        key = tuple(name for name in self.axes if name in axes)
        if not axes or len(key) != len(axes):
            raise ValueError(f"name one or several different axes of {', '.join(self.axes)}, found {axes}")
        if key not in self._groups:
            fixed = {name: place for name, place in self.coordinates.items() if name not in key}
            members = [
                rank for rank in range(self.size) if fixed.items() <= self.coordinates_of(rank).items()
            ]
            where = ",".join(f"{name}={place}" for name, place in fixed.items())
            self._groups[key] = self._world.new_group(
                members, name="+".join(key) + (f" of {where}" if where else "")
            )
        return self._groups[key]

    def coordinates_of(self, rank: int) -> dict[str, int]:
        """Where a rank is in the grid. Raises ValueError."""
        if not 0 <= operator.index(rank) < self._world.size:
            raise ValueError(f"rank must be in 0..{self._world.size - 1}, not {rank}")
        places = {}
        for name, size in reversed(list(self.axes.items())):
            rank, places[name] = divmod(rank, size)
        return {name: places[name] for name in self.axes}

    def rank_of(self, **coordinates: int) -> int:
        """The rank at coordinates; axes that are not given are those of this rank.

        Raises:
            KeyError: there is no such axis.
            ValueError: a coordinate is not on its axis.
        """
        rank = 0
        for axis in coordinates:
            self._known(axis)
        for name, size in self.axes.items():
            place = operator.index(coordinates.get(name, self.coordinates[name]))
            if not 0 <= place < size:
                raise ValueError(f"{name} must be in 0..{size - 1}, not {place}")
            rank = rank * size + place
        return rank

    def neighbour(self, axis: str, step: int) -> int | None:
        """The rank in `mesh[axis]` that is `step` places on, or None beyond an end: `neighbour("pp", 1)` is the next
        stage. Raises KeyError."""
        place = self.coordinates[self._known(axis)[0]] + operator.index(step)
        return place if 0 <= place < self.axes[axis] else None

    def close(self) -> None:
        """Close the groups of the mesh. Every rank calls it; see `Communicator.close`."""
        for group in self._groups.values():
            group.close()

    def _known(self, axis: str) -> tuple[str]:
        if axis not in self.axes:
            raise KeyError(f"no axis {axis!r}; there are {', '.join(self.axes)}")
        return (axis,)

    def __repr__(self) -> str:
        shape = ", ".join(f"{name}={size}" for name, size in self.axes.items())
        where = ", ".join(f"{name} {place}" for name, place in self.coordinates.items())
        return f"<hcomm.Mesh({shape}): rank {self.rank} is {where}>"


def _sizes(axes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Sizes of all axes. Raises ValueError."""
    if not axes:
        raise ValueError("a mesh needs at least one axis: Mesh(dp=2, tp=4)")
    found = {}
    for name, size in axes.items():
        if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != -1):
            raise ValueError(
                f"{name} must be a positive number of ranks, or -1 for what is left, not {size!r}"
            )
        found[name] = size
    shape = ", ".join(f"{name}={size}" for name, size in found.items())
    product = math.prod(size for size in found.values() if size != -1)
    free = [name for name, size in found.items() if size == -1]
    if len(free) > 1:
        raise ValueError(f"Mesh({shape}): only one axis may be -1")
    if free and ranks % product == 0:
        found[free[0]] = ranks // product
    elif product != ranks:
        needed = f"a multiple of {product}" if free else str(product)
        raise ValueError(f"Mesh({shape}) needs {needed} ranks, and there are {ranks}")
    return found


def _exchange(world: Communicator, text: str) -> list[str]:
    """What every rank said, on every rank; neither torch nor NumPy is needed for it."""
    mine = text.encode()[: _TOLD - 1]
    cells = bytearray(_TOLD * world.size)
    cells[_TOLD * world.rank : _TOLD * world.rank + len(mine)] = mine
    count = len(cells)
    plan = world._plan(Signature("all_reduce", "uint8", "max", -1, count, count, count, count))
    address = _native.address_of(cells, True)[0]
    status = world._native.run(plan, address, address, world.timeout)
    if status:
        raise world._fail(status, Call("agreeing on a mesh", caller(), world.timeout))
    return [
        bytes(cells[at : at + _TOLD]).rstrip(b"\0").decode(errors="replace") for at in range(0, count, _TOLD)
    ]
