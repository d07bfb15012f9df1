"""Numbers that Python and the C++ core share: element types, operators, operations.

The values are part of the operation header that ranks compare, so they never change meaning.
"""

from __future__ import annotations

#: Element types: name → (code, bytes per element).
DTYPES: dict[str, tuple[int, int]] = {
    "bool": (0, 1),
    "int8": (1, 1),
    "int16": (2, 2),
    "int32": (3, 4),
    "int64": (4, 8),
    "uint8": (5, 1),
    "uint16": (6, 2),
    "uint32": (7, 4),
    "uint64": (8, 8),
    "float16": (9, 2),
    "bfloat16": (10, 2),
    "float32": (11, 4),
    "float64": (12, 8),
    "complex64": (13, 8),
    "complex128": (14, 16),
}

#: Reduction operators: name → code.
OPERATORS: dict[str, int] = {
    "sum": 0,
    "avg": 1,
    "prod": 2,
    "min": 3,
    "max": 4,
    "band": 5,
    "bor": 6,
    "bxor": 7,
}

#: The operator code of operations that reduce nothing.
NO_OPERATOR = 255

#: Collective operations: name → code.
OPERATIONS: dict[str, int] = {
    "all_reduce": 0,
    "broadcast": 1,
    "reduce": 2,
    "all_gather": 3,
    "reduce_scatter": 4,
    "all_to_all": 5,
    "gather": 6,
    "scatter": 7,
    "barrier": 8,
}

DTYPE_NAMES: dict[int, str] = {code: name for name, (code, _) in DTYPES.items()}
OPERATOR_NAMES: dict[int, str] = {code: name for name, code in OPERATORS.items()}
OPERATION_NAMES: dict[int, str] = {code: name for name, code in OPERATIONS.items()}
