"""Tests of torch's suite that pass on gloo and need not pass on hcomm, each with its reason."""

from __future__ import annotations

_NAMED = "torch.distributed.monitored_barrier accepts gloo by name; hcomm.torch.monitored_barrier is tested instead"

EXCEPTIONS: dict[str, str] = {
    "test_monitored_barrier_gloo": _NAMED,
    "test_monitored_barrier_gloo_rank_0_timeout": _NAMED,
    "test_monitored_barrier_gloo_subgroup": _NAMED,
}
