"""Learning rates: hand-computed values."""

from __future__ import annotations

import pytest
import torch

from hcomm.torch import scale_lr, warmup_factor, warmup_schedule


def test_scaling_rules() -> None:
    assert scale_lr(0.1) == 0.1
    assert scale_lr(0.1, world_size=8) == pytest.approx(0.8)
    assert scale_lr(0.1, rule="sqrt", world_size=16) == pytest.approx(0.4)
    with pytest.raises(ValueError, match="rule must be one of linear, sqrt, not 'cube'"):
        scale_lr(0.1, rule="cube")
    with pytest.raises(ValueError, match="positive, not 0"):
        scale_lr(0.1, world_size=0)


def test_the_warm_up_is_a_straight_line() -> None:
    factors = [warmup_factor(step, warmup=4, start=0.2) for step in range(6)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert warmup_factor(0, warmup=0) == 1.0


def test_decays_end_at_zero() -> None:
    linear = [warmup_factor(step, warmup=1, total=5, decay="linear") for step in (1, 2, 3, 5, 9)]
    assert linear == pytest.approx([1.0, 0.75, 0.5, 0.0, 0.0])
    cosine = [warmup_factor(step, warmup=0, total=4, decay="cosine") for step in range(5)]
    assert cosine == pytest.approx([1.0, 0.8535533906, 0.5, 0.1464466094, 0.0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decay": "cosine"}, "a cosine decay needs the total number of steps"),
        ({"decay": "steps"}, "decay must be one of constant, linear, cosine, not 'steps'"),
        ({"step": -1}, "must not be negative, found -1 and 1"),
    ],
)
def test_arguments_that_make_no_sense(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        warmup_factor(**({"step": 0, "warmup": 1} | options))  # type: ignore[arg-type]


def test_a_scheduler_of_torch() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=scale_lr(0.1, world_size=4))
    schedule = warmup_schedule(optimizer, warmup=2, total=4, start=1 / 4, decay="linear")
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.1, 0.25, 0.4, 0.2, 0.0])
