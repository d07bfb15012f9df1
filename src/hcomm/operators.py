"""Which reduction operator means something for which element type."""

from __future__ import annotations

from hcomm.codes import OPERATORS
from hcomm.errors import UnsupportedOperator

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_COMPLEX = ("complex64", "complex128")
_BITS = ("band", "bor", "bxor")


def check(op: str, dtype: str) -> None:
    """Raise unless `op` is an operator that means something for `dtype`.

    bool: sum = max = or, prod = min = and, avg is refused. Complex numbers have no order; bit operations are
    for integers and bool.

    Raises:
        UnsupportedOperator: lists what would be accepted.
    """
    if not isinstance(op, str) or op not in OPERATORS:
        raise UnsupportedOperator(f"unknown reduction operator {op!r}; known: {', '.join(OPERATORS)}")
    refused: tuple[str, ...] = ()
    if dtype == "bool":
        refused = ("avg",)
    elif dtype in _FLOATS:
        refused = _BITS
    elif dtype in _COMPLEX:
        refused = ("min", "max", *_BITS)
    if op in refused:
        accepted = ", ".join(name for name in OPERATORS if name not in refused)
        raise UnsupportedOperator(f"operator {op!r} has no meaning for {dtype}; accepted: {accepted}")
