"""torch's reduction operators in hcomm's words."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp

from hcomm.errors import UnsupportedOperator

_WORDS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "avg",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}
#: By number, which is what a ReduceOp's hash is: the quickest way to know one.
NAMES: dict[int, str] = {hash(ReduceOp(op)): word for op, word in _WORDS.items()}
#: Every rank's contribution is multiplied by a factor, then they are added.
PREMUL_SUM = ReduceOp.PREMUL_SUM.value


def name_of(op: Any) -> str:
    """`sum`, `max` …; `premul_sum` for torch's PREMUL_SUM.

    Raises:
        UnsupportedOperator: it is none of torch's operators.
    """
    number: int = hash(op) if isinstance(op, ReduceOp) else op.value
    found = NAMES.get(number)
    if found is not None:
        return found
    if number == PREMUL_SUM:
        return "premul_sum"
    raise UnsupportedOperator(
        f"unknown reduction operator {op!r}; known: {', '.join(NAMES.values())}, premul_sum"
    )


def factor_of(op: Any) -> Any:
    """The factor of a PREMUL_SUM: a number or a tensor. Raises UnsupportedOperator when it has none."""
    # The only way from Python to the factor that older torch has, too: (operator, factor).
    state = op.__getstate__()
    factor = state[1] if isinstance(state, tuple) else None
    if factor is None:
        raise UnsupportedOperator(
            "PREMUL_SUM without a factor; make it with torch.distributed._make_nccl_premul_sum"
        )
    return factor


def scaled(tensor: torch.Tensor, factor: Any) -> torch.Tensor:
    """A new tensor of the same type: `tensor` times the factor of a PREMUL_SUM."""
    return torch.mul(tensor.detach(), factor).to(tensor.dtype)
