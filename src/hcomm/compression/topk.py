"""Top-k sparsification with error feedback (Stich et al., NeurIPS 2018; Lin et al., ICLR 2018).

What is not sent stays in a residual and is added the next time, so nothing is lost: at every step, all that was sent
plus the residual is the sum of all gradients so far.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

from hcomm import buffers
from hcomm.buffers import Buffer
from hcomm.compression.exchange import Plain, copy
from hcomm.compression.quantised import check_quantisable
from hcomm.world import state

if TYPE_CHECKING:
    from hcomm.communicator import Communicator
    from hcomm.work import Work

#: Vectors from this length on are sampled, every so many entries, before the largest are looked for.
_SAMPLED = 1 << 16
_STRIDE = 97


def is_sparse_cheaper(size: int, count: int, k: int) -> bool:
    """Whether k values with indices from each of `size` ranks are fewer bytes than a dense all_reduce.

    An all_gather sends (size - 1) * k entries of 8 bytes, a ring all_reduce 2 (size - 1) / size * count * 4 bytes.
    """
    return k * size < count and count <= 1 << 32


class TopK:
    """An `Exchange` of the entries of largest magnitude, the rest kept for the next time.

    Args:
        communicator: whose ranks take part.
        ratio: share of the entries that is sent, at least one.
        op: sum or avg.

    Attributes:
        residual: float32 NumPy vector of what has not been sent; None before the first exchange.
    """

    def __init__(self, communicator: Communicator, ratio: float, op: str) -> None:
        self._communicator = communicator
        self._ratio = ratio
        self._weight = 1.0 / communicator.size if op == "avg" else 1.0
        self._dense = Plain(communicator, op)
        self._vector: Buffer | None = None
        self._work: Work | None = None
        self.residual: Any = None

    def start(self, vector: Any) -> None:
        """Likewise; see `Exchange`."""
        import numpy as np

        self._vector = packed = buffers.pack(vector, writable=True)
        check_quantisable(packed.dtype, "topk")
        count = packed.count
        if self.residual is None or self.residual.size != count:
            self.residual = np.zeros(count, dtype=np.float32)
        if not count:
            return
        k = min(count, max(1, math.ceil(self._ratio * count)))
        total = self.residual
        total += _float32(packed)
        if not is_sparse_cheaper(self._communicator.size, count, k):
            _store(packed, total)
            total[:] = 0
            self._dense.start(packed.packed)
            return
        block = np.empty(2 * k, dtype=np.uint32)
        chosen = largest(total, k)
        block[:k] = chosen
        block[k:].view(np.float32)[:] = total[chosen]
        total[chosen] = 0  # and not minus what is sent: infinities and NaN would stay for ever
        self._gathered = np.empty((self._communicator.size, 2 * k), dtype=np.uint32)
        self._work = self._communicator.all_gather_async(block, self._gathered.reshape(-1))

    def turn(self) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Likewise; see `Exchange`."""
        vector, self._vector = self._vector, None
        if vector is None or not vector.count:
            return
        if self._work is None:
            self._dense.finish()
            return
        import numpy as np

        work, self._work = self._work, None
        work.wait()
        k = self._gathered.shape[1] // 2
        total = np.zeros(vector.count, dtype=np.float32)
        for block in self._gathered:  # in rank order: the same bits everywhere
            total[block[:k]] += block[k:].view(np.float32) * np.float32(self._weight)
        _store(vector, total)


def largest(values: Any, k: int) -> Any:
    """Indices of the k entries of largest magnitude of a float32 vector, in no order; NaN counts as largest."""
    import numpy as np

    # Without its sign, a float is ordered like the integer of its bits; NaN comes last.
    magnitude = values.view(np.int32) & np.int32(0x7FFFFFFF)
    count = magnitude.size
    if count >= _SAMPLED:
        # A bound that a few more than k entries reach, from a sample: then only those are looked at closely (6.25 M
        # entries: 6 ms, not 66). A sample that misleads is found out.
        sample = magnitude[::_STRIDE]
        reached = min(sample.size, int(1.3 * k / _STRIDE) + 8)
        bound = np.partition(sample, sample.size - reached)[sample.size - reached]
        likely = np.flatnonzero(magnitude >= bound)
        if k <= likely.size < count // 2:
            return likely[np.argpartition(magnitude[likely], likely.size - k)[likely.size - k :]]
    return np.argpartition(magnitude, count - k)[count - k :]


def _float32(buffer: Buffer) -> Any:
    """The elements as a flat float32 NumPy vector, a view where they are one."""
    if buffer.family.name == "torch":
        return buffer.packed.detach().reshape(-1).float().numpy()
    return buffer.packed.reshape(-1).astype("float32", copy=False)


def _store(buffer: Buffer, values: Any) -> None:
    """Round a float32 NumPy vector into a buffer's packed memory."""
    if buffer.family.name == "torch":
        import torch

        values = torch.from_numpy(values)
    copy(buffer.packed, values)


_held: weakref.WeakKeyDictionary[Communicator, dict[str, TopK]] = weakref.WeakKeyDictionary()


def topk_sparsify(
    tensor: Any, ratio: float = 0.01, *, name: str, group: Communicator | None = None, op: str = "avg"
) -> Any:
    """Reduce a gradient over all ranks, sending only its largest entries; the rest is sent later. In place.

    What is not sent is kept under `name` and added at the next call with this name (error feedback). Where the
    entries of all ranks would be more bytes than the tensor itself (ratio * world size >= 1), everything is sent.

    Args:
        tensor: float16, bfloat16, float32 or float64 (kept and added in float32), of any shape. Needs NumPy.
        ratio: share of the entries to send, above 0 and at most 1; at least one entry is sent.
        name: of the parameter; the same calls in the same order on all ranks.
        group: the communicator; residuals are kept for each.
        op: `avg` or `sum`.

    Returns:
        `tensor`, which holds the reduction of what all ranks sent, and zeros elsewhere.

    Raises:
        ValueError: a bad ratio or operator, or `name` was used for a tensor of another size (`forget_residual` it).
        UnsupportedBuffer: not a tensor of floats.
        CommunicatorError: the operation failed.
    """
    if op not in ("avg", "sum"):
        raise ValueError(f"op must be 'avg' or 'sum', not {op!r}")
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio must be above 0 and at most 1, not {ratio!r}")
    communicator = state.of(group)
    communicator._check()
    buffer = buffers.pack(tensor, writable=True)
    held = _held.setdefault(communicator, {})
    exchange = held.get(name)
    if exchange is None:
        exchange = held[name] = TopK(communicator, ratio, op)
    kept = exchange.residual
    if kept is not None and kept.size != buffer.count:
        raise ValueError(
            f"{name!r} was used for a tensor of {kept.size} elements, this one has {buffer.count}: names must be "
            "unique (hcomm.compression.forget_residual drops what is kept)"
        )
    exchange._ratio, exchange._weight = ratio, 1.0 / communicator.size if op == "avg" else 1.0
    exchange._dense = Plain(communicator, op)
    exchange.start(buffer.packed.reshape(-1))
    exchange.finish()
    buffer.write_back()
    return tensor


def residual(name: str, *, group: Communicator | None = None) -> Any:
    """A copy of what `topk_sparsify` has not sent yet of a name: flat float32 NumPy vector; None if nothing is kept."""
    exchange = _held.get(state.of(group), {}).get(name)
    return None if exchange is None or exchange.residual is None else exchange.residual.copy()


def forget_residual(name: str | None = None, *, group: Communicator | None = None) -> None:
    """Drop what is kept under a name (None: under all names), for instance when training starts again."""
    held = _held.get(state.of(group), {})
    if name is None:
        held.clear()
    else:
        held.pop(name, None)
