"""The schemes by name, the default for gradients, and a compressed all_reduce of one tensor."""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Any

from hcomm import buffers
from hcomm.compression import auto
from hcomm.compression.exchange import Cast, Exchange, Plain
from hcomm.compression.hierarchical import Hierarchical, is_hierarchical
from hcomm.compression.quantised import Quantised, check_quantisable
from hcomm.compression.topk import TopK
from hcomm.world import state

if TYPE_CHECKING:
    from hcomm.communicator import Communicator

#: What gradients can be compressed to; `topk` may carry a ratio, as in `topk:0.001`.
SCHEMES = ("fp16", "bf16", "uint8", "topk", "auto")

_TYPES = {"fp16": "float16", "bf16": "bfloat16"}
_TOPK = re.compile(r"topk(?::(.+))?")


class _Defaults:
    """What `set_gradient_compression` was told."""

    def __init__(self) -> None:
        self.scheme: str | None = None
        self.of_group: weakref.WeakKeyDictionary[Communicator, str | None] = weakref.WeakKeyDictionary()


_defaults = _Defaults()


def check_scheme(scheme: str | None) -> str | None:
    """The scheme itself.

    Raises:
        ValueError: there is no such scheme; lists those that there are.
    """
    if scheme is None or scheme in SCHEMES:
        return scheme
    if isinstance(scheme, str) and _TOPK.fullmatch(scheme):
        _ratio(scheme)
        return scheme
    raise ValueError(f"unknown compression {scheme!r}; known: None, {', '.join(SCHEMES)}, topk:<ratio>")


def _ratio(scheme: str) -> float:
    match = _TOPK.fullmatch(scheme)
    assert match is not None
    try:
        ratio = float(match[1] or "0.01")
    except ValueError:
        ratio = 0.0
    if not 0 < ratio <= 1:
        raise ValueError(f"compression {scheme!r}: the ratio must be above 0 and at most 1")
    return ratio


def set_gradient_compression(scheme: str | None, *, group: Communicator | None = None) -> None:
    """How gradients travel from now on, in every `GradientBucket` that has no `compression=` of its own.

    Every rank must say the same. Applies from the next reduction on, also to buckets that exist.

    Args:
        scheme: None (as they are), `fp16`, `bf16`, `uint8` (chunk-wise 8-bit quantisation, a quarter of the bytes of
            float32), `topk` or `topk:<ratio>` (the largest 1 %, or that share, with error feedback), or `auto` (what
            the cost model finds cheapest of None, bf16 and uint8; it says what it chose).
        group: only for buckets of this communicator; wins over what is set without.

    Raises:
        ValueError: there is no such scheme.
    """
    check_scheme(scheme)
    if group is None:
        _defaults.scheme = scheme
    else:
        _defaults.of_group[group] = scheme


def gradient_compression(group: Communicator | None = None) -> str | None:
    """What `set_gradient_compression` says for buckets of a communicator (None: the default one)."""
    communicator = state.of(group)
    return _defaults.of_group.get(communicator, _defaults.scheme)


def make_exchange(
    communicator: Communicator,
    scheme: str | None,
    count: int,
    dtype: str,
    *,
    op: str = "avg",
    comm_dtype: str | None = None,
) -> Exchange:
    """What reduces vectors of `count` elements of `dtype`, in place.

    Args:
        communicator: whose ranks take part; all make the same exchange.
        scheme: see `set_gradient_compression`. Collective for `auto` unless the costs were measured before, and for
            `uint8`, `fp16` and `bf16` on hosts of several ranks, which make groups.
        count: number of elements.
        dtype: element type, by name.
        op: `avg` or `sum`.
        comm_dtype: type to send and add in when nothing is compressed; None: `dtype`.

    Raises:
        ValueError: an unknown scheme, or another operator.
        UnsupportedBuffer: elements of this type cannot be compressed.
    """
    check_scheme(scheme)
    if op not in ("avg", "sum"):
        raise ValueError(f"compressed tensors can be reduced by 'avg' and 'sum', not {op!r}")
    if scheme is not None:
        check_quantisable(dtype, scheme)
    if communicator.size == 1:
        return Plain(communicator, op)
    if scheme == "auto":
        choice = auto.choose(communicator, count, dtype)
        auto.tell(choice, communicator)
        scheme = choice.scheme
    if scheme is None:
        wire = comm_dtype or dtype
        return Plain(communicator, op) if wire == dtype else Cast(communicator, wire, op)
    wire = _TYPES.get(scheme, scheme)
    if wire == dtype:
        return Plain(communicator, op)
    if scheme in _TYPES or scheme == "uint8":

        def flat(group: Communicator) -> Exchange:
            return Quantised(group, op) if scheme == "uint8" else Cast(group, wire, op)

        near = is_hierarchical(communicator, dtype)
        return Hierarchical(communicator, op, wire, flat) if near else flat(communicator)
    return TopK(communicator, _ratio(scheme), op)


def all_reduce(
    tensor: Any, scheme: str | None = "uint8", op: str = "avg", *, group: Communicator | None = None
) -> Any:
    """Reduce one tensor over all ranks, compressed, in place. Returns it.

    Args:
        tensor: float16, bfloat16, float32 or float64, of any shape and strides, the same on all ranks.
        scheme: as for `set_gradient_compression`; `topk` without error feedback.
        op: `avg` or `sum`.
        group: the communicator.

    Raises:
        ValueError: an unknown scheme or operator.
        UnsupportedBuffer: a tensor that cannot be compressed.
        CommunicatorError: the operation failed.
    """
    communicator = state.of(group)
    buffer = buffers.pack(tensor, writable=True)
    exchange = make_exchange(communicator, scheme, buffer.count, buffer.dtype, op=op)
    exchange.start(buffer.packed.reshape(-1))
    exchange.turn()
    exchange.finish()
    buffer.write_back()
    return tensor
