"""Compression hooks under DistributedDataParallel, over gloo as torch's backend and hcomm's communicator."""

from __future__ import annotations

import os
from typing import Any

from support.inside import attempt


def trained() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import hcomm
    from hcomm.torch import QuantizeState, TopKState, quantize_hook, topk_hook

    rank, size = hcomm.rank(), hcomm.world_size()
    store = dist.FileStore(os.path.join(os.environ["JOB_DIR"], "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)

    def model() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.ReLU(), torch.nn.Linear(300, 1))

    def gradients(step: int, replica: Any) -> list[Any]:
        replica.zero_grad()
        generator = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randn(16, 40, generator=generator)
        (replica(x) - x.sum(1, keepdim=True)).square().mean().backward()
        return [p.grad.clone() for p in replica.parameters()]

    def ddp(state: Any, hook: Any) -> Any:
        wrapped = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.01)
        if hook is not None:
            wrapped.register_comm_hook(state, hook)
        return wrapped

    plain = ddp(None, None)
    exact = [gradients(step, plain) for step in range(5)]
    found: dict[str, Any] = {}
    for scheme in ("uint8", "fp16", None):
        hooked = ddp(QuantizeState(scheme), quantize_hook)
        found[str(scheme)] = 0.0
        for step in range(5):
            for mine, wanted in zip(gradients(step, hooked), exact[step], strict=True):
                off = float((mine - wanted).abs().max() / wanted.abs().max())
                found[str(scheme)] = max(found[str(scheme)], off)
    # top-k: over all steps, what was sent plus what is kept here and there is what there was
    state = TopKState(0.05)
    hooked = ddp(state, topk_hook)
    sent = [torch.zeros_like(p) for p in hooked.parameters()]
    found["density"] = 0.0
    for step in range(5):
        found_now = gradients(step, hooked)
        for total, gradient in zip(sent, found_now, strict=True):
            total += gradient
        nonzero = sum(int((g != 0).sum()) for g in found_now) / sum(g.numel() for g in found_now)
        found["density"] = max(found["density"], nonzero)
    found["topk"] = 0.0
    for index, parameter in enumerate(hooked.module.parameters()):
        kept = state.residual(parameter).reshape(parameter.shape).clone()
        hcomm.all_reduce(kept, op="avg")
        wanted = sum(step[index] for step in exact)
        found["topk"] = max(found["topk"], float((sent[index] + kept - wanted).abs().max()))
    found["refused"] = [
        attempt(QuantizeState, "topk"),
        attempt(QuantizeState, "zip"),
        attempt(TopKState, 2.0),
    ]
    dist.destroy_process_group()
    return found


def test_hooks_of_ddp(job: Any) -> None:
    for found in job(2, trained, timeout=100):
        assert found["None"] < 1e-6
        assert found["fp16"] < 2e-3
        assert (
            0 < found["uint8"] < 0.15
        )  # of each parameter's largest: small ones share a chunk with large ones
        assert found["topk"] < 1e-5
        assert found["density"] <= 0.11  # 5 % of each rank
        for refused in found["refused"]:
            assert "ValueError" in refused.kinds
