"""Operands and expected results, from explicit formulas in NumPy. Nothing here asks hcomm."""

from __future__ import annotations

from functools import reduce as fold
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)

#: Operators that have a meaning for each kind of type (design, section 7).
OPERATORS = {
    "bool": ("sum", "prod", "min", "max", "band", "bor", "bxor"),
    "integer": ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor"),
    "float": ("sum", "avg", "prod", "min", "max"),
    "complex": ("sum", "avg", "prod"),
}


def kind(dtype: str) -> str:
    """bool, integer, float or complex."""
    if dtype == "bool":
        return "bool"
    if dtype in INTEGERS:
        return "integer"
    return "float" if dtype in FLOATS else "complex"


def operators(dtype: str) -> tuple[str, ...]:
    """The operators a type has."""
    return OPERATORS[kind(dtype)]


def storage(dtype: str) -> np.dtype[Any]:
    """The NumPy type that carries the values of a type (NumPy has no bfloat16: its values travel as float32)."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def to_bfloat16(x: Array) -> Array:
    """Round float32 values to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    kept = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), kept.view(np.float32))


def rounded(x: Array, dtype: str) -> Array:
    """Round once to a type."""
    return to_bfloat16(x.astype(np.float32)) if dtype == "bfloat16" else x.astype(storage(dtype))


def scramble(rank: int, count: int) -> NDArray[np.uint64]:
    """Numbers that differ in every element and on every rank."""
    start = (rank + 1) * 0xD1B54A32D192ED03 % 2**64
    x = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    return x ^ (x >> np.uint64(32))


def operand(rank: int, dtype: str, op: str | None, count: int, *, small: bool = False) -> Array:
    """What one rank contributes. Floats are such that a sum of five is exact before its last rounding.

    `small`: exact also when 16-bit floats are rounded at every hop.
    """
    x = scramble(rank, count)
    what = kind(dtype)
    if what == "bool":
        return (x & np.uint64(1)).astype(bool)
    if what == "integer":
        if op == "avg":  # no overflow of int8 or uint8 with five ranks, both signs where there are two
            small = (x % np.uint64(41)).astype(np.int64)
            return (small if dtype.startswith("u") else small - 20).astype(dtype)
        return x.astype(dtype)
    if op == "prod":
        pick = (x % np.uint64(4)).astype(np.int64)
        factors = [1, 1j, -1, 1 + 1j] if what == "complex" else [1, -1, 2, 0.5]
        return np.array(factors)[pick].astype(storage(dtype))
    span = {"bfloat16": 256, "float16": 2048}.get(dtype, 1 << 20)
    if small:
        span //= 8
    real = (x % np.uint64(span + 1)).astype(np.float64) - span // 2
    if what == "complex":
        return (real + 1j * (np.roll(real, 1) + 3)).astype(dtype)
    return real.astype(storage(dtype))


def reduced(parts: list[Array], dtype: str, op: str) -> Array:
    """The reduction of all ranks' contributions, in wide arithmetic, rounded once."""
    what = kind(dtype)
    if what == "bool":
        folds = {"sum": np.logical_or, "max": np.logical_or, "bor": np.logical_or, "bxor": np.logical_xor}
        return fold(folds.get(op, np.logical_and), parts)
    if op in ("band", "bor", "bxor"):
        return fold({"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}[op], parts)
    if op in ("min", "max"):
        return fold({"min": np.minimum, "max": np.maximum}[op], parts)
    if what == "integer":
        wide = [p.astype(np.uint64 if dtype.startswith("u") else np.int64) for p in parts]
        if op == "prod":
            return fold(np.multiply, wide).astype(dtype)  # wraps modulo 2^bits
        total = fold(np.add, wide)
        if op == "avg":  # truncates toward zero
            total = (
                total // len(parts)
                if dtype.startswith("u")
                else np.sign(total) * (np.abs(total) // len(parts))
            )
        return total.astype(dtype)
    wide = [p.astype(np.complex128 if what == "complex" else np.float64) for p in parts]
    total = fold(np.multiply if op == "prod" else np.add, wide)
    return rounded(total / len(parts) if op == "avg" else total, dtype)


def difference(found: Array, expected: Array, dtype: str, op: str | None) -> str:
    """Empty when equal; otherwise where and how two results differ. Averages may be one unit in the last place off."""
    if found.shape != expected.shape:
        return f"shape {found.shape}, expected {expected.shape}"
    if found.dtype != expected.dtype:
        return f"dtype {found.dtype}, expected {expected.dtype}"
    bad = found != expected
    if kind(dtype) in ("float", "complex"):
        bad &= ~(np.isnan(found) & np.isnan(expected))
        if op == "avg":
            unit = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "complex64": 2.0**-23}.get(
                dtype, 2.0**-52
            )
            bad &= ~(np.abs(found - expected) <= unit * np.abs(expected))
    where = np.flatnonzero(bad)
    if not where.size:
        return ""
    i = int(where[0])
    first, wanted = found.reshape(-1)[i], expected.reshape(-1)[i]
    return f"{where.size} of {found.size} wrong, first at {i}: {first!r}, expected {wanted!r}"
