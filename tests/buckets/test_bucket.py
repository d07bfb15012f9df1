"""GradientBucket, DataParallel and sync_gradients, against gradients that are added by hand.

Starting a rank with torch takes seconds, so each test runs many cases in the processes of one job.
"""

from __future__ import annotations

from typing import Any

from support.inside import attempt, resident_bytes


def build(seed: int = 1, dtype: Any = None) -> Any:
    """A small model with a parameter that is never used, one that is shared, and one in channels_last."""
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)
            self.first = nn.Linear(4, 33)
            self.second = nn.Linear(33, 33)
            self.shared = nn.Linear(33, 33)
            self.shared.weight = self.second.weight
            self.unused = nn.Linear(5, 5)
            self.left = nn.Linear(33, 2)
            self.right = nn.Linear(33, 2)
            self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

        def forward(self, x: Any, side: str) -> Any:
            x = self.conv(x).relu().mean((2, 3))
            x = self.shared(self.second(self.first(x)).relu())
            return (self.left if side == "left" else self.right)(x)

    torch.manual_seed(seed)
    return Model().to(dtype or torch.float32)


def batch(rank: int, step: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(4, 3, 5, 5, generator=generator)


def loss(model: Any, rank: int, step: int, side: str) -> Any:
    dtype = model.first.weight.dtype
    return model(batch(rank, step).to(dtype), side).float().square().mean()


def expected(model: Any, size: int, step: int, side: Any) -> dict[str, Any]:
    """Averages of what each rank would compute alone; None where nobody has a gradient."""
    import copy

    total: dict[str, Any] = {}
    for rank in range(size):
        single = copy.deepcopy(model)
        single.zero_grad(set_to_none=True)
        loss(single, rank, step, side(rank)).backward()
        for name, p in single.named_parameters():
            if p.grad is not None:
                total[name] = total.get(name, 0) + p.grad.double() / size
    return {name: total.get(name) for name, _ in model.named_parameters()}


def wrong(model: Any, wanted: dict[str, Any], tolerance: float = 1e-6) -> list[str]:
    found = []
    for name, p in model.named_parameters():
        value = wanted[name]
        if (p.grad is None) != (value is None):
            found.append(f"{name}: gradient {p.grad is not None}, expected {value is not None}")
        elif value is not None:
            off = float((p.grad.double() - value).abs().max())
            if not off <= tolerance:
                found.append(f"{name}: off by {off}")
    return found


def reductions() -> list[str]:
    """Buckets in every way they can be used; what went wrong."""
    import torch

    import hcomm

    r, size = hcomm.rank(), hcomm.world_size()
    found = []
    sides = {"same": lambda rank: "left", "different": lambda rank: "left" if rank == 0 else "right"}
    for overlap in (True, False):
        for size_mb, clearing in ((0.001, "none"), (0.001, "bucket"), (25.0, "zero")):
            model = build()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with hcomm.GradientBucket(model.parameters(), size_mb, overlap) as bucket:
                views = {n: p.grad for n, p in model.named_parameters()}
                for step, side in enumerate(["same", "different", "same", "different"]):
                    if clearing == "bucket":
                        bucket.zero_grad()
                    else:
                        optimizer.zero_grad(set_to_none=clearing == "none")
                    wanted = expected(model, size, step, sides[side])
                    if clearing == "zero":
                        zeros = {n: torch.zeros(p.shape) for n, p in model.named_parameters()}
                        zeros["frozen"] = None
                        wanted = {n: zeros[n] if v is None else v for n, v in wanted.items()}
                    loss(model, r, step, sides[side](r)).backward()
                    bucket.reduce()
                    case = f"overlap {overlap}, {size_mb} MB, {clearing}, step {step}: "
                    found += [case + text for text in wrong(model, wanted)]
                    for n, p in model.named_parameters():
                        if p.grad is not None and p.grad is not views[n]:
                            found.append(case + f"{n} is no view any more")
                    optimizer.step()
    return found


def everything_else() -> dict[str, Any]:
    import copy
    import gc

    import torch

    import hcomm
    from hcomm.torch import DataParallel, sync_gradients

    r, size = hcomm.rank(), hcomm.world_size()
    found: dict[str, Any] = {}

    def left(rank: int) -> str:
        return "left"

    # accumulation
    model = build()
    bucket = hcomm.GradientBucket(model.named_parameters(), size_mb=0.003)
    found["buckets"] = len(bucket.buffers)
    with bucket.no_sync():
        loss(model, r, 1, "left").backward()
    loss(model, r, 2, "left").backward()
    bucket.reduce()
    sums = expected(model, size, 1, left)
    for name, value in expected(model, size, 2, left).items():
        if value is not None:
            sums[name] = sums[name] + value
    zeros = {n: torch.zeros(p.shape) if p.requires_grad else None for n, p in model.named_parameters()}
    found["accumulation"] = wrong(model, {n: zeros[n] if v is None else v for n, v in sums.items()}, 2e-6)
    bucket.zero_grad()
    loss(model, r, 1, "left").backward()
    found["twice"] = attempt(loss(model, r, 1, "left").backward)
    bucket.reduce()
    strides = model.conv.weight.grad.stride() == model.conv.weight.stride()
    found["channels_last"] = strides and model.conv.weight.grad.is_contiguous(
        memory_format=torch.channels_last
    )

    # gradients that others have put elsewhere, and what cannot be averaged any more
    bucket.zero_grad(set_to_none=False)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data = parameter.grad.data.clone()
    loss(model, r, 1, "left").backward()
    bucket.reduce()
    wanted = expected(model, size, 1, left)
    found["moved"] = wrong(model, {n: zeros[n] if v is None else v for n, v in wanted.items()})
    found["taken"] = attempt(hcomm.GradientBucket, model.parameters())
    converted = torch.nn.Linear(2, 2)
    with hcomm.GradientBucket(converted.parameters()):
        converted.double()
        found["converted"] = attempt(converted(torch.ones(1, 2).double()).sum().backward)
    found["comm_dtype"] = attempt(hcomm.GradientBucket, converted.parameters(), comm_dtype=torch.int32)

    # small buckets for what arrives last; a bias (4 KB) stays with its weight (4 MB)
    layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
    with hcomm.GradientBucket(layers.parameters(), size_mb=10) as wide:
        found["sizes"] = [round(b.nbytes / 2**20, 1) for b in wide.buffers]
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(40)))
    with hcomm.GradientBucket(layers.parameters(), size_mb=3) as wide:
        found["more sizes"] = [round(b.nbytes / 2**20, 1) for b in wide.buffers]

    # the end
    kept = model.first.weight.grad.clone()
    memory = bucket.buffers[0].data_ptr()
    bucket.close()
    bucket.close()
    found["kept"] = torch.equal(model.first.weight.grad, kept)
    found["own memory"] = model.first.weight.grad.data_ptr() != memory
    found["hooks"] = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    found["closed"] = attempt(bucket.reduce)
    dropped = hcomm.GradientBucket(model.parameters())
    del dropped
    gc.collect()
    found["dropped"] = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())

    # bfloat16: 256 + 1 is 256 in bfloat16, so an average of (256, 1, 1, 1)-like sums shows where it was added
    small = torch.nn.Parameter(torch.zeros(100, dtype=torch.bfloat16))
    mixed = torch.nn.Parameter(torch.zeros(7))
    with hcomm.GradientBucket([small, mixed], comm_dtype=torch.float32) as bucket:
        small.grad.fill_([257.0, 1.0, 1.0][r])  # 257 is 256 in bfloat16
        mixed.grad.fill_(r)
        bucket.reduce()
        found["bf16"] = [str(small.grad.dtype), float(small.grad[5]), float(mixed.grad[0])]

    # compression
    for scheme in ("uint8", "fp16", "bf16", "auto", "topk:1"):
        model = build(seed=3)
        with hcomm.GradientBucket(model.parameters(), 0.003, compression=scheme) as bucket:
            worst = 0.0
            for step in range(3):
                wanted = expected(model, size, step, left)
                bucket.zero_grad()
                loss(model, r, step, "left").backward()
                bucket.reduce()
                for name, p in model.named_parameters():
                    if wanted[name] is not None:
                        most = float(wanted[name].abs().max())
                        worst = max(worst, float((p.grad - wanted[name]).abs().max()) / most)
            found[f"compression {scheme}"] = worst
            found[f"choices {scheme}"] = [str(c) for c in bucket.choices]
    weight, sent = torch.nn.Parameter(torch.zeros(4)), torch.zeros(4)
    with hcomm.GradientBucket([weight], compression="topk:0.06") as bucket:  # 1 of 16 places, 4 of them used
        for _ in range(4):
            bucket.zero_grad()
            (weight * torch.tensor([4.0, 3.0, 2.0, 1.0])).sum().backward()
            bucket.reduce()
            sent += weight.grad
    found["sent by topk"] = sent.tolist()
    hcomm.set_gradient_compression("fp16")
    with hcomm.GradientBucket(build().parameters()) as bucket:
        found["default"] = bucket.compression
        hcomm.set_gradient_compression("uint8", group=hcomm.default_communicator())
        found["of the group"] = bucket.compression
        bucket.set_compression(None)
        found["of its own"] = bucket.compression
    hcomm.set_gradient_compression(None, group=hcomm.default_communicator())
    hcomm.set_gradient_compression(None)

    # what is refused, alike on all ranks
    shapes = [(3, 4), (5,), (2, 2)]
    cases = {
        "shape": [*shapes[:1], (5 + r,), *shapes[2:]],
        "order": shapes if r == 0 else shapes[::-1],
        "count": shapes[: 3 if r == 0 else 2],
    }
    for what, mine in cases.items():
        parameters = [(f"p{i}", torch.nn.Parameter(torch.zeros(s))) for i, s in enumerate(mine)]
        found[f"refused {what}"] = attempt(hcomm.GradientBucket, parameters)
    kind = torch.float32 if r != 1 else torch.float64
    found["refused type"] = attempt(hcomm.GradientBucket, [torch.nn.Parameter(torch.zeros(3, dtype=kind))])
    found["refused size"] = attempt(hcomm.GradientBucket, build().parameters(), 1.0 + r)
    found["size in words"] = attempt(hcomm.GradientBucket, build().parameters(), "25")
    found["no group"] = attempt(hcomm.all_reduce, torch.ones(1), group=3)
    found["no operator"] = attempt(hcomm.all_reduce, torch.ones(1), ["sum"])
    found["nothing"] = attempt(hcomm.GradientBucket, [])
    found["unknown"] = attempt(hcomm.GradientBucket, build().parameters(), compression="zip")
    sparse = torch.nn.Embedding(4, 3, sparse=True)
    with hcomm.GradientBucket(sparse.parameters()):
        sparse.weight.grad = None
        found["sparse"] = attempt(sparse(torch.tensor([1, 2])).sum().backward)

    # tuning
    model = build()
    tuned = hcomm.torch.tune_bucket_size(
        model, lambda: loss(model, r, 1, "left").backward(), (0.001, 1.0), steps=2, progress=False
    )
    found["tuned"] = tuned
    found["dropped gradients"] = all(p.grad is None for p in model.parameters())

    # one-liners
    model = build(seed=10 + r)
    parallel = DataParallel(model)
    reference = build(seed=10)
    found["initial"] = all(
        torch.equal(a, b) for a, b in zip(model.parameters(), reference.parameters(), strict=True)
    )
    found["names"] = list(parallel.state_dict()) == list(model.state_dict())
    found["more names"] = [n for n, _ in parallel.named_parameters()] == [
        n for n, _ in model.named_parameters()
    ]
    found["attribute"] = parallel.first is model.first
    found["copy"] = attempt(copy.deepcopy, parallel)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    found["data parallel"] = []
    for step in range(3):
        wanted = expected(model, size, step, left)
        optimizer.zero_grad()
        loss(parallel, r, step, "left").backward()
        found["data parallel"] += wrong(model, wanted)
        optimizer.step()
    parallel.close()
    model = build()
    found["sync"] = []
    for step in range(2):
        model.zero_grad()
        wanted = expected(model, size, step, left)
        loss(model, r, step, "left").backward()
        sync_gradients(model)
        found["sync"] += wrong(model, wanted)
    return found


def test_accumulation_closing_compression_refusals(job: Any) -> None:
    results = job(3, everything_else)
    for found in results:
        assert found["buckets"] > 2
        assert found["accumulation"] == []
        assert "no_sync" in found["twice"].text
        assert found["channels_last"]
        assert found["moved"] == []
        assert "another GradientBucket" in found["taken"].text
        assert "is torch.float64" in found["converted"].text
        assert "floating" in found["comm_dtype"].text
        # from the last: 1 and 2 MB hold less than a layer of 4.0 MB, 4 and 8 MB one (not quite two), 10 MB two
        assert found["sizes"] == [8.0, 8.0, 4.0, 4.0, 4.0, 4.0]
        # 40 layers of 0.251 MB: three, seven, and eleven to each bucket of 3 MB
        assert found["more sizes"] == [2.0, 2.8, 2.8, 1.8, 0.8]
        assert found["kept"]
        assert found["own memory"]
        assert found["hooks"] == found["dropped"] == 0
        assert "closed" in found["closed"].text
        assert found["bf16"] == ["torch.bfloat16", 86.0, 1.0]  # (256 + 1 + 1) / 3
        # relative to the largest entry of each parameter: the chunks hold several parameters
        assert found["compression uint8"] < 0.2
        assert found["compression fp16"] < 0.01
        assert found["compression bf16"] < 0.02
        assert found["compression topk:1"] < 1e-5
        assert found["sent by topk"] == [12, 6, 8, 0]  # report L2, in a bucket
        assert "chose" in found["choices auto"][0]
        assert [found["default"], found["of the group"], found["of its own"]] == ["fp16", "uint8", None]
        text = found["refused shape"].text
        assert "parameter 1" in text
        assert "'p1' with shape (5,)" in text
        assert "'p1' with shape (6,)" in text
        assert "parameter 0 is 'p0' with shape (3, 4)" in found["refused order"].text
        assert "rank 0 has 3 parameters, rank 1 has 2" in found["refused count"].text
        assert "type float32" in found["refused type"].text
        assert "float64 on rank 1" in found["refused type"].text
        assert "size_mb is 1.0 on rank 0, but 2.0 on rank 1" in found["refused size"].text
        for what in ("shape", "order", "count", "type", "size"):
            assert found[f"refused {what}"].kind == "CollectiveMismatch"
        assert "positive number" in found["size in words"].text
        assert "new_group(ranks) makes one" in found["no group"].text
        assert "found 3" in found["no group"].text
        assert "['sum']; known: sum" in found["no operator"].text
        assert "Copy or save the model" in found["copy"].text
        assert "ValueError" in found["nothing"].kinds
        assert "zip" in found["unknown"].text
        assert "sparse" in found["sparse"].text
        assert list(found["tuned"].seconds) == [0.001, 1.0]
        assert found["tuned"] == results[0]["tuned"]
        assert found["tuned"].seconds[found["tuned"].best] == min(found["tuned"].seconds.values())
        assert "* " in str(found["tuned"])
        assert found["dropped gradients"]
        assert found["initial"]
        assert found["names"]
        assert found["more names"]
        assert found["attribute"]
        assert found["data parallel"] == []
        assert found["sync"] == []


def growth() -> list[int]:
    """Resident memory after steps 5 and 30, in each scheme."""
    import torch

    import hcomm

    torch.manual_seed(0)
    grown = []
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for scheme in (None, "uint8", "topk"):
        with hcomm.GradientBucket(model.parameters(), 1.0, compression=scheme) as bucket:
            marks = []
            for _ in range(30):
                optimizer.zero_grad()
                model(torch.randn(8, 512)).square().mean().backward()
                bucket.reduce()
                optimizer.step()
                marks.append((resident_bytes(), [b.data_ptr() for b in bucket.buffers]))
            grown.append(marks[-1][0] - marks[4][0])
            assert marks[-1][1] == marks[0][1]
    return grown


def many() -> dict[str, Any]:
    import numpy as np
    import torch

    import hcomm

    r, size = hcomm.rank(), hcomm.world_size()
    tensors = [
        torch.full((3, 2), r + 1.0),
        np.full(5, r, dtype=np.int64),
        torch.full((4,), 2.0 * r, dtype=torch.bfloat16),
        np.full((2, 2), r + 0.5, dtype=np.float32),
        torch.arange(12.0).view(3, 4)[:, 1],
        torch.empty(0),
        torch.full((3 << 20,), float(r)),
    ]
    before = [id(t) for t in tensors]
    back = hcomm.all_reduce_multi(tensors)
    found: dict[str, Any] = {"same": [id(t) for t in back] == before}
    found["values"] = [t.flatten()[:2].tolist() for t in tensors]
    total = sum(range(size))
    found["expected"] = [
        [total + size] * 2, [total] * 2, [2.0 * total] * 2, [total + size / 2] * 2, [1.0 * size, 5.0 * size], [],
        [float(total)] * 2,
    ]  # fmt: skip
    found["average"] = hcomm.all_reduce_multi([torch.tensor([1.0 + r]), torch.tensor([3.0, r])], "avg")[
        1
    ].tolist()
    mine = [torch.ones(2), torch.ones(4)] if r == 0 else [torch.ones(4), torch.ones(2)]
    found["grown"] = growth()
    found["mismatch"] = attempt(hcomm.all_reduce_multi, mine)  # breaks the communicator
    return found


def two_ranks() -> dict[str, Any]:
    return {"reductions": reductions(), **many()}


def test_averages_many_tensors_and_no_memory_growth(job: Any) -> None:
    """The gradients of `growth` are 4.2 MB: a bucket of 1 MB leaked in each of its 25 steps would be 26 MB."""
    for found in job(2, two_ranks, transport="tcp"):
        assert found["reductions"] == []
        assert found["same"]
        assert found["values"] == found["expected"]
        assert found["average"] == [3.0, 0.5]
        assert max(found["grown"]) < 4 << 20
        assert found["mismatch"].kind == "CollectiveMismatch"


def left_alone() -> list[Any]:
    """Rank 1 is gone between backward and reduce."""
    import os

    import torch

    import hcomm

    parameters = [torch.nn.Parameter(torch.ones(30_000)) for _ in range(4)]
    others = [torch.nn.Parameter(torch.ones(30_000)) for _ in range(4)]
    group = hcomm.new_group([0, 1])
    found = []
    with hcomm.GradientBucket(parameters, 0.1) as plain, hcomm.GradientBucket(
        others, 0.1, group=group, compression="uint8"
    ) as compressed:  # fmt: skip
        if hcomm.rank() == 1:
            os._exit(3)
        for bucket, members in ((plain, parameters), (compressed, others)):

            def step(bucket: Any = bucket, members: Any = members) -> None:
                sum(p.sum() for p in members).backward()
                bucket.reduce()

            found += [attempt(step), attempt(bucket.reduce)]
    found.append(sum(len(p._post_accumulate_grad_hooks or ()) for p in (*parameters, *others)))
    return found


def test_a_rank_that_is_gone(outcomes: Any) -> None:
    first, second = outcomes(2, left_alone)
    assert second.code == 3
    assert first.code == 0, first
    *failures, hooks = first.value
    for failure in failures:
        assert failure.kind in ("PeerLost", "BrokenCommunicator"), failure
        assert failure.ranks == (1,), failure
        assert failure.seconds < 2.0, failure
    assert failures[0].kind == failures[2].kind == "PeerLost"
    assert hooks == 0
