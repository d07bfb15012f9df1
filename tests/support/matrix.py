"""The rows of the table, for each number of ranks."""

from __future__ import annotations

from support.arithmetic import DTYPES, operators
from support.cases import MOVING, REDUCING, ROOTED, Case

RANKS = (1, 2, 3, 4, 5)
LARGE = 1_000_003
ALGORITHMS = {
    "shm": {
        "all_reduce": ("oneshot", "staged", "direct", "ring", "star"),
        "all_to_all": ("pairwise",),
        "gather": ("pairwise",),
        "scatter": ("pairwise",),
    },
    "tcp": {
        "all_reduce": ("ring", "star"),
        "all_to_all": ("pairwise",),
        "gather": ("pairwise",),
        "scatter": ("pairwise",),
    },
}


def library_of(dtype: str) -> str:
    """NumPy where it has the type."""
    return "torch" if dtype == "bfloat16" else "numpy"


def _operators(operation: str, dtype: str) -> tuple[str | None, ...]:
    return operators(dtype) if operation in REDUCING else (None,)


def types(ranks: int) -> list[Case]:
    """Operation × type × operator."""
    if ranks not in (2, 3):
        return []
    return [
        Case(operation, dtype, op, count, library_of(dtype), root=-1 if operation in ROOTED else 0)
        for operation in (*REDUCING, *MOVING)
        for dtype in DTYPES
        for op in _operators(operation, dtype)
        for count in (7, 1000)
    ]


def counts(ranks: int) -> list[Case]:
    """Operation × count × layout, small counts first. The largest count is dear, so few types carry it."""
    rows = []
    for count in (0, 1, 7, 1000, LARGE):
        for operation in (*REDUCING, *MOVING):
            op = "sum" if operation in REDUCING else None
            for dtype in ("float32", "int32", "bfloat16"):
                for layout in ("packed", "strided"):
                    if count == LARGE and not _large(ranks, operation, dtype, layout):
                        continue
                    rows.append(Case(operation, dtype, op, count, library_of(dtype), layout))
    return rows


def _large(ranks: int, operation: str, dtype: str, layout: str) -> bool:
    if operation in ("reduce_scatter", "all_to_all", "all_gather", "gather", "scatter") and ranks > 3:
        return False  # a vector of `ranks` such parts; two and three ranks cover it
    if layout == "strided" or dtype != "float32":
        return ranks in (2, 3) and (layout == "packed" or dtype == "float32")
    return True


def forms(ranks: int) -> list[Case]:
    """Ways to call: outputs, Work objects, roots, libraries, odd layouts."""
    rows = []
    for operation in (*REDUCING, *MOVING):
        op = "sum" if operation in REDUCING else None
        roots = range(ranks) if operation in ROOTED else (0,)
        takes_out = operation not in ("all_reduce", "broadcast", "reduce")
        for root in roots:
            for library in ("numpy", "torch"):
                for form in ("async", "out") if takes_out else ("async",):
                    rows.append(Case(operation, "float64", op, 1003, library, "strided", root, form))
                    rows.append(Case(operation, "int16", op, 131, library, "packed", root, form))
            rows.append(Case(operation, "complex64", op, 37, "torch", "strided", root))
            rows.append(Case(operation, "uint8", op, 129, "numpy", "reversed", root))
    return rows


def algorithms(ranks: int, transport: str) -> list[Case]:
    """Every algorithm that can be forced on this transport."""
    rows = []
    for operation, names in ALGORITHMS[transport].items():
        for name in names:
            for dtype in ("float32", "int64", "bfloat16", "uint8"):
                for op in ("sum", "avg", "max") if operation in REDUCING else (None,):
                    for count in (0, 1, 7, 1000) if dtype in ("float32", "bfloat16") else (1000,):
                        rows.append(Case(operation, dtype, op, count, library_of(dtype), algorithm=name))
            if ranks <= 3 and name != "oneshot":  # which must fit into a window
                op = "sum" if operation in REDUCING else None
                rows.append(Case(operation, "float32", op, LARGE, "numpy", algorithm=name))
                rows.append(Case(operation, "float32", op, 100_003, "torch", "strided", algorithm=name))
    return rows


def table(ranks: int, transport: str) -> list[Case]:
    """All rows for a job of this many ranks on this transport."""
    if ranks == 1 and transport == "tcp":
        return []
    rows = [*types(ranks), *counts(ranks), *forms(ranks), *algorithms(ranks, transport)]
    if ranks == 4:  # importing torch on every rank costs more than all of the rows; 2, 3 and 5 ranks do
        rows = [row for row in rows if row.library == "numpy"]
    return list(dict.fromkeys(rows))
