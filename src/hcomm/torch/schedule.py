"""Learning rates for large batches."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hcomm.communicator import Communicator
from hcomm.torch.ranks import place

_RULES: dict[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt}
_DECAYS = ("constant", "linear", "cosine")


def scale_lr(
    lr: float, *, rule: str = "linear", group: Communicator | None = None, world_size: int | None = None
) -> float:
    """The learning rate for all ranks together, when each keeps the batch size that `lr` was found with.

    Args:
        lr: for one rank.
        rule: `linear` (lr · N; Goyal et al., arXiv:1706.02677: with a warm-up) or `sqrt` (lr · √N; usual with Adam).
        group: whose ranks train together (default: those of `hcomm.init`, else of torch.distributed, else this
            process alone).
        world_size: N, in place of a group.

    Raises:
        ValueError: the rule is not known, or the world size is not positive.
    """
    if rule not in _RULES:
        raise ValueError(f"rule must be one of {', '.join(_RULES)}, not {rule!r}")
    if world_size is None:
        world_size = place(group)[1]
    if world_size < 1:
        raise ValueError(f"world_size must be positive, not {world_size}")
    return lr * _RULES[rule](world_size)


def warmup_factor(
    step: int, *, warmup: int, total: int | None = None, start: float = 0.0, decay: str = "constant"
) -> float:
    """What the learning rate is multiplied with in a step: from `start` up to 1, then down again.

    Args:
        step: from 0.
        warmup: steps in which it rises, in a straight line; 0: none.
        total: steps of the whole training, at whose end it is 0; needed for a decay.
        start: factor of the first step. 1 / world_size begins at the learning rate of one rank.
        decay: after the warm-up: `constant`, `linear` or `cosine`.

    Raises:
        ValueError: an argument is not one of these.
    """
    if decay not in _DECAYS:
        raise ValueError(f"decay must be one of {', '.join(_DECAYS)}, not {decay!r}")
    if step < 0 or warmup < 0:
        raise ValueError(f"step and warmup must not be negative, found {step} and {warmup}")
    if decay != "constant" and total is None:
        raise ValueError(f"a {decay} decay needs the total number of steps")
    if step < warmup:
        return start + (1 - start) * step / warmup
    if decay == "constant" or total is None:
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return 1 - progress if decay == "linear" else 0.5 * (1 + math.cos(math.pi * progress))


def warmup_schedule(
    optimizer: Optimizer,
    *,
    warmup: int,
    total: int | None = None,
    start: float = 0.0,
    decay: str = "constant",
) -> LambdaLR:
    """A scheduler of torch that multiplies the optimizer's learning rates with `warmup_factor`; call its `step()`
    after each step of the optimizer.

    Args:
        optimizer: whose learning rates are those after the warm-up.
        warmup, total, start, decay: see `warmup_factor`.

    Raises:
        ValueError: see `warmup_factor`.
    """
    return LambdaLR(
        optimizer, lambda step: warmup_factor(step, warmup=warmup, total=total, start=start, decay=decay)
    )
