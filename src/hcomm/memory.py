"""Memory that the ranks of a host share, so that collectives move bytes straight between users' buffers.

- `empty` and `zeros` make tensors and arrays in it.
- `register` shares the memory of an existing one in place: its address, its content and its owner stay. What holds it
  (the storage of torch, the array of NumPy that owns the data) is kept alive until `unregister`, or `finalize`, so that
  an allocator never finds shared pages in what it hands out.
- Tensors of torch that come back with the same storage are registered by the library itself: see `Automatic`.

A registered buffer is an ordinary one for everybody else. A forked child has its own copy of it, and memory of `empty`
is copied when the child writes to it.
"""

from __future__ import annotations

import math
import operator
import os
import sys
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hcomm import _native, core
from hcomm.buffers import Buffer
from hcomm.codes import DTYPES
from hcomm.core import Core
from hcomm.errors import UnsupportedBuffer

#: Seconds that the other ranks of the host have to map what is shared; their engines answer, not their programs.
_ANSWER = 5.0


@dataclass(slots=True)
class Registration:
    """Memory that was shared in place.

    Attributes:
        segment: the core's handle.
        owner: the storage or array that owns the memory; kept alive.
        engine: whose ranks may reach it.
        times: how often `register` was called for it.
    """

    segment: _native.Segment
    owner: Any
    engine: _native.Engine
    times: int = 1


#: By engine and first address.
_registered: dict[tuple[int, int], Registration] = {}
_watching: list[bool] = []


def empty(comm: Core, engine: _native.Engine, shape: int | Sequence[int], dtype: Any) -> Any:
    """See `hcomm.empty`."""
    comm._check()
    sizes = _sizes(shape)
    library, kind, itemsize = _element_type(dtype)
    count = math.prod(sizes)
    if count * itemsize > sys.maxsize:
        raise ValueError(f"no memory holds an array of shape {sizes} and type {kind}")
    _watch_forks(engine)
    segment = _native.allocate(engine, max(count * itemsize, 1))
    if library.__name__ == "torch":
        flat = library.frombuffer(segment, dtype=kind, count=count) if count else library.empty(0, dtype=kind)
        made = flat.view(sizes)
    else:
        made = library.frombuffer(segment, dtype=kind, count=count).reshape(sizes)
    _tell_peers(comm, segment.ptr, segment.nbytes)
    return made


def _sizes(shape: Any) -> tuple[int, ...]:
    """The lengths that were passed as `shape`. Raises ValueError."""
    try:
        sizes = (operator.index(shape),) if hasattr(shape, "__index__") else tuple(map(operator.index, shape))
    except TypeError:
        raise ValueError(f"a shape is an integer or a sequence of integers, not {shape!r}") from None
    if any(size < 0 for size in sizes):
        raise ValueError(f"a shape has no negative sizes: {sizes}")
    return sizes


def _element_type(dtype: Any) -> tuple[Any, Any, int]:
    """(library, its type, bytes per element) of what was passed as `dtype`. Raises UnsupportedBuffer."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, getattr(torch, "dtype", ())):
        name = str(dtype).removeprefix("torch.")
        if name in DTYPES:
            return torch, dtype, DTYPES[name][1]
        raise UnsupportedBuffer(f"dtype {dtype}; hcomm knows {', '.join(DTYPES)}")
    if isinstance(dtype, str) and torch is not None and dtype in DTYPES and hasattr(torch, dtype):
        return torch, getattr(torch, dtype), DTYPES[dtype][1]
    import numpy

    try:
        kind = numpy.dtype(dtype)
    except TypeError as error:
        raise UnsupportedBuffer(f"dtype {dtype!r} is neither one of torch nor of NumPy") from error
    if kind.name not in DTYPES:
        raise UnsupportedBuffer(f"dtype {kind}; hcomm knows {', '.join(DTYPES)}")
    return numpy, kind, kind.itemsize


def _tell_peers(comm: Core, address: int, nbytes: int) -> None:
    """Let the group's ranks of this host map the memory. One that cannot is warned about: the fast way is lost."""
    reason = comm._native.share(address, nbytes, _ANSWER)
    if reason:
        warnings.warn(
            f"hcomm rank {comm._rank}{comm._in_group()}: {nbytes} bytes of shared memory are not reached by all ranks "
            f"of this host, so operations on it copy through windows: {reason}",
            RuntimeWarning,
            stacklevel=4,
        )


def _is_a(obj: Any, library: str, name: str) -> bool:
    """Whether `obj` is of a class of a library, which is not imported for the question."""
    return isinstance(obj, getattr(sys.modules.get(library), name, ()))


def _owner(obj: Any) -> tuple[Any, int, int]:
    """(what owns the memory of `obj`, its first address, its bytes). Raises UnsupportedBuffer."""
    if _is_a(obj, "torch", "Tensor"):
        if obj.device.type != "cpu":
            raise UnsupportedBuffer(
                f"a tensor on device {obj.device} cannot be registered: pass one on the CPU"
            )
        if str(obj.layout) != "torch.strided":
            raise UnsupportedBuffer(
                f"a tensor with layout {obj.layout} cannot be registered: pass a dense one"
            )
        storage = obj.untyped_storage()
        return storage, storage.data_ptr(), storage.nbytes()
    if _is_a(obj, "numpy", "ndarray"):
        root = obj
        while _is_a(root.base, "numpy", "ndarray"):
            root = root.base
        if _is_a(root.base, "torch", "Tensor"):
            return _owner(root.base)  # `tensor.numpy()` makes another array each time
        if not root.flags.c_contiguous and not root.flags.f_contiguous:
            raise UnsupportedBuffer("an array whose memory has holes cannot be registered; pass its base")
        return root, root.__array_interface__["data"][0], root.nbytes
    raise UnsupportedBuffer(
        f"a {type(obj).__qualname__} cannot be registered: pass a tensor of torch or an array of NumPy"
    )


def register(comm: Core, engine: _native.Engine, obj: Any) -> Any:
    """See `hcomm.register`."""
    comm._check()
    owner, address, nbytes = _owner(obj)
    known = _registered.get((id(engine), address))
    shared = engine.is_shared(address, nbytes)
    if known is not None and known.owner is owner and shared:
        known.times += 1
    elif not shared:
        _adopt(engine, owner, address, nbytes)
    _tell_peers(comm, address, nbytes)
    return obj


def _adopt(engine: _native.Engine, owner: Any, address: int, nbytes: int) -> None:
    _watch_forks(engine)
    try:
        segment = _native.adopt(engine, address, nbytes)
    except ValueError as error:
        raise UnsupportedBuffer(f"memory of {nbytes} bytes cannot be shared in place: {error}") from error
    _registered[id(engine), address] = Registration(segment, owner, engine)


def unregister(comm: Core, engine: _native.Engine, obj: Any) -> None:
    """See `hcomm.unregister`."""
    comm._check_alive()
    owner, address, nbytes = _owner(obj)
    known = _registered.get((id(engine), address))
    if known is None or known.owner is not owner:
        raise ValueError(f"this memory ({nbytes} bytes) is not registered")
    known.times -= 1
    if known.times > 0:
        return
    if _is_busy(address, nbytes) or not known.segment.release():
        known.times += 1
        raise ValueError("an operation on this memory is not complete: wait() for it first")
    del _registered[id(engine), address]


def release_all(engine: _native.Engine) -> None:
    """The end of a job: what was registered becomes private again."""
    for key, known in list(_registered.items()):
        if known.engine is engine:
            known.segment.release()
            del _registered[key]


#: Engines that have shared memory, for forked children.
_engines: list[_native.Engine] = []


def _watch_forks(engine: _native.Engine) -> None:
    if not any(known is engine for known in _engines):
        _engines.append(engine)
    if not _watching:
        _watching.append(True)
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    for engine in _engines:
        engine.part_from_parent()


@dataclass(slots=True)
class _Candidate:
    storage: weakref.ref[Any]
    address: int
    seen: int = 0


def _is_busy(address: int, nbytes: int) -> bool:
    """Whether an operation that is not complete uses this memory, which must not change under it."""
    for comm in list(core._living):
        for work in list(comm._running.values()):
            kept = work._kept if isinstance(work._kept, tuple) else (work._kept,)
            if any(isinstance(b, Buffer) and address <= b.address < address + nbytes for b in kept):
                return True
    return False


class Automatic:
    """Registers tensors of torch that come back with the same storage, such as gradients.

    A tensor counts that is large, contiguous, and all of its storage. It is registered when it is seen for the third
    time. The storage is then kept alive; it is let go when nobody else holds it any more, which is looked at whenever
    a tensor is new, and when the limits are reached the one used longest ago is let go. NumPy arrays are left alone:
    NumPy refuses to resize an array that somebody else holds.
    """

    #: Tensors below this size are copied through windows (bytes).
    LEAST = 256 << 10
    #: Times a storage is seen before it is registered.
    TIMES = 3
    #: At most this many storages, and as many that have been seen and not registered.
    MOST = 64
    #: At most this many bytes altogether.
    MOST_BYTES = 4 << 30

    def __init__(self, comm: Core, engine: _native.Engine) -> None:
        self._comm = weakref.ref(comm)
        self._engine = engine
        self._candidates: OrderedDict[int, _Candidate] = OrderedDict()
        self._own: OrderedDict[tuple[int, int], int] = OrderedDict()

    def note(self, tensor: Any) -> None:
        """A large tensor of torch is about to be used in a blocking operation."""
        storage = tensor.untyped_storage()
        address, nbytes = storage.data_ptr(), storage.nbytes()
        key = (id(self._engine), address)
        if key in self._own:
            if self._engine.is_shared(address, nbytes):
                self._own.move_to_end(key)
                return
            self._let_go(key)  # its storage was resized
        if address != tensor.data_ptr() or nbytes != tensor.numel() * tensor.element_size():
            return
        known = self._candidates.get(address)
        if known is None or known.storage() is not storage:
            self.sweep()
            known = self._candidates[address] = _Candidate(weakref.ref(storage), address)
            while len(self._candidates) > self.MOST:
                self._candidates.popitem(last=False)
        known.seen += 1
        if known.seen >= self.TIMES:
            self._register(known, storage, nbytes)

    def _register(self, known: _Candidate, storage: Any, nbytes: int) -> None:
        address = known.address
        comm = self._comm()
        shared = self._engine.is_shared(address, nbytes)
        if comm is None or shared or nbytes > self.MOST_BYTES or _is_busy(address, nbytes):
            return
        while self._own and (
            len(self._own) >= self.MOST or sum(self._own.values()) + nbytes > self.MOST_BYTES
        ):
            self._let_go(next(iter(self._own)))
        try:
            _adopt(self._engine, storage, address, nbytes)
        except (UnsupportedBuffer, OSError):
            known.seen = -sys.maxsize  # it stays an ordinary tensor, which is served as before
            return
        self._own[id(self._engine), address] = nbytes
        del self._candidates[address]
        _tell_peers(comm, address, nbytes)

    def sweep(self) -> None:
        """Let go of storages that nobody else holds, or that were resized."""
        torch = sys.modules["torch"]
        for key in list(self._own):
            known = _registered.get(key)
            # One holder is Python's own wrapper.
            if (
                known is None
                or torch._C._storage_Use_Count(known.owner._cdata) <= 1
                or known.owner.data_ptr() != key[1]
                or known.owner.nbytes() != self._own[key]
            ):
                self._let_go(key)

    def _let_go(self, key: tuple[int, int]) -> None:
        self._own.pop(key)
        known = _registered.get(key)
        if known is not None and known.segment.release():
            del _registered[key]
