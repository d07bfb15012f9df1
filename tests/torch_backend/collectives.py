"""Every collective and message of torch.distributed, for any number of ranks; expected values by hand."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import hcomm
import hcomm.torch


def me() -> int:
    return dist.get_rank()


def world() -> int:
    return dist.get_world_size()


def same(found: torch.Tensor, expected: object) -> None:
    """Values and type."""
    wanted = torch.as_tensor(expected, dtype=found.dtype)
    assert torch.equal(found.detach(), wanted.expand_as(found)), f"{found} instead of {wanted}"


def case_all_reduce_operators() -> None:
    n = world()
    numbers = torch.arange(1, n + 1)
    for op, expected in (
        (ReduceOp.SUM, numbers.sum()),
        (ReduceOp.PRODUCT, numbers.prod()),
        (ReduceOp.MIN, 1),
        (ReduceOp.MAX, n),
    ):
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.int64):
            tensor = torch.full((5,), me() + 1, dtype=dtype)
            dist.all_reduce(tensor, op=op)
            same(tensor, expected)
    bits = [7, 5, 12, 9]
    for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        value = bits[0]
        for other in bits[1:n]:
            value = {ReduceOp.BAND: value & other, ReduceOp.BOR: value | other, ReduceOp.BXOR: value ^ other}[
                op
            ]
        tensor = torch.tensor([bits[me()]], dtype=torch.int32)
        dist.all_reduce(tensor, op=op)
        same(tensor, value)


def case_average_and_premultiplied_sum() -> None:
    n = world()
    for size in (1, 2, 3, 7, 1000):
        tensor = torch.full((size,), float(me() + 1))
        dist.all_reduce(tensor, op=ReduceOp.AVG)
        same(tensor, (n + 1) / 2)
    for factor in (0.5, torch.tensor(0.5)):
        op = dist._make_nccl_premul_sum(factor)
        tensor = torch.full((3,), float(2 * (me() + 1)))
        dist.all_reduce(tensor, op=op)
        same(tensor, n * (n + 1) / 2)
        whole, part = torch.full((2 * n,), float(me() + 1)), torch.empty(2)
        dist.reduce_scatter_tensor(part, whole, op=op)
        same(part, n * (n + 1) / 4)
        same(whole, me() + 1)
        tensor = torch.full((3,), 4.0)
        dist.reduce(tensor, 0, op=op)
        same(tensor, 2.0 * n if me() == 0 else 4.0)


def case_bool_and_complex() -> None:
    n = world()
    for op, expected in (
        (ReduceOp.SUM, [True, n > 1, False, True]),
        (ReduceOp.MIN, [n == 1, False, False, True]),
    ):
        tensor = torch.tensor([me() == 0, me() == 1, False, True])
        dist.all_reduce(tensor, op=op)
        assert tensor.tolist() == expected
        assert set(tensor.view(torch.uint8).tolist()) <= {0, 1}
    tensor = torch.tensor([complex(1, me())])
    dist.all_reduce(tensor)
    assert tensor.tolist() == [complex(n, n * (n - 1) / 2)]
    parts = [torch.empty(1, dtype=torch.complex64) for _ in range(n)]
    dist.all_gather(parts, torch.tensor([complex(me(), -1)]))
    assert [part.item() for part in parts] == [complex(r, -1) for r in range(n)]
    with pytest.raises(RuntimeError, match="avg"):
        dist.all_reduce(torch.tensor([True]), op=ReduceOp.AVG)


def case_strided_tensors_keep_their_strides() -> None:
    n, r = world(), me()
    table = (torch.arange(4.0) + 10 * r).view(2, 2)
    dist.broadcast(table[:, 0], 0)
    assert table.tolist() == [[0, 1 + 10 * r], [2, 3 + 10 * r]]
    table = torch.arange(4.0).view(2, 2)
    dist.all_reduce(table.t())
    same(table, torch.arange(4.0).view(2, 2) * n)
    image = torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last) * (1 if r == 0 else 0)
    dist.broadcast(image, 0)
    assert image.is_contiguous(memory_format=torch.channels_last)
    same(image, torch.arange(120.0).view(2, 3, 4, 5))
    whole = torch.zeros(3, n).t()
    dist.all_gather_into_tensor(whole, torch.full((3,), float(r)))
    same(whole, torch.arange(float(n)).view(n, 1))
    part = torch.zeros(2, 2).t()
    dist.reduce_scatter_tensor(part, torch.arange(4.0 * n))
    same(part, (torch.arange(4.0).view(2, 2) + 4 * r) * n)
    swapped = torch.zeros(2, n).t()
    dist.all_to_all_single(swapped, torch.full((n, 2), float(r)))
    same(swapped, torch.arange(float(n)).view(n, 1))


def case_empty_and_scalar_tensors() -> None:
    n = world()
    for shape in ((0,), (1, 0, 2)):
        tensor = torch.empty(shape)
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        dist.reduce(tensor, 0)
        parts = [torch.empty(shape) for _ in range(n)]
        dist.all_gather(parts, tensor)
        assert all(part.shape == shape for part in parts)
    dist.all_gather_into_tensor(torch.empty(0), torch.empty(0))
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0))
    scalar = torch.tensor(float(me()))
    dist.all_reduce(scalar, op=ReduceOp.MAX)
    assert scalar.item() == n - 1
    parts = [torch.empty(()) for _ in range(n)]
    dist.all_gather(parts, torch.tensor(float(me())))
    assert [part.item() for part in parts] == list(range(n))


def case_reduce_and_rooted() -> None:
    n, r = world(), me()
    for root in range(n):
        tensor = torch.full((3,), float(r + 1))
        dist.reduce(tensor, root)
        same(tensor, n * (n + 1) / 2 if r == root else r + 1)
        tensor = torch.full((2,), float(r))
        dist.broadcast(tensor, root)
        same(tensor, root)
        parts = [torch.empty(2) for _ in range(n)] if r == root else None
        dist.gather(torch.full((2,), float(r)), parts, dst=root)
        for sender, part in enumerate(parts or []):
            same(part, sender)
        out = torch.empty(2)
        dist.scatter(
            out, [torch.full((2,), float(10 * k)) for k in range(n)] if r == root else None, src=root
        )
        same(out, 10 * r)
    pieces = torch.linspace(0, 5, 6)[::2]
    out = torch.zeros(6)[::2]
    dist.scatter(out, [pieces] * n if r == 0 else None, src=0)
    assert out.tolist() == [0, 2, 4]


def case_gathers() -> None:
    n, r = world(), me()
    parts = [torch.empty(k + 1) for k in range(n)]
    dist.all_gather(parts, torch.full((r + 1,), float(r)))
    assert [part.tolist() for part in parts] == [[k] * (k + 1) for k in range(n)]
    for shape in ((4 * n,), (n, 4), (2, 2 * n)):
        whole = torch.empty(shape)
        dist.all_gather_into_tensor(whole, torch.full((4,), float(r)))
        same(whole.view(-1), torch.arange(float(n)).repeat_interleave(4))
    mine = torch.zeros(2 * n)
    mine[2 * r : 2 * r + 2] = r + 1
    dist.all_gather_into_tensor(mine, mine[2 * r : 2 * r + 2])
    same(mine, torch.arange(1.0, n + 1).repeat_interleave(2))
    halves = torch.arange(8.0).view(2, 4)
    parts = [torch.empty(1, 4) for _ in range(n)]
    dist.all_gather(parts, halves.chunk(2, dim=0)[r % 2])
    for k, part in enumerate(parts):
        same(part, halves[k % 2 : k % 2 + 1])
    rows = [[torch.empty(2), torch.empty(1)] for _ in range(n)]
    dist.all_gather_coalesced(rows, [torch.full((2,), float(r)), torch.full((1,), 10.0 + r)])
    for k, row in enumerate(rows):
        assert [tensor.tolist() for tensor in row] == [[k, k], [10 + k]]


def case_reduce_scatters() -> None:
    n, r = world(), me()
    out = torch.empty(2)
    dist.reduce_scatter(out, [torch.full((2,), float(k + r)) for k in range(n)])
    same(out, n * r + n * (n - 1) / 2)
    out = torch.empty(r + 1)
    dist.reduce_scatter(out, [torch.full((k + 1,), float(k)) for k in range(n)], op=ReduceOp.MAX)
    same(out, r)
    whole = torch.arange(float(3 * n))
    dist.reduce_scatter_tensor(whole[3 * r : 3 * r + 3], whole, op=ReduceOp.AVG)
    same(whole, torch.arange(float(3 * n)))
    whole = torch.arange(float(3 * n)) + r
    out = torch.empty(3)
    dist.reduce_scatter_tensor(out, whole)
    same(out, (torch.arange(3.0) + 3 * r) * n + n * (n - 1) / 2)


def case_reduce_scatter_sends_no_more_than_it_must() -> None:
    n = world()
    native = hcomm.torch.communicator()
    if native.backend_name != "tcp":
        return

    def sent() -> int:
        return sum(native._native.bytes_sent(rank) for rank in range(n))

    whole, part = torch.ones(300_000), torch.empty(300_000 // n)
    dist.reduce_scatter_tensor(part, whole, op=ReduceOp.AVG)
    dist.barrier()
    before = sent()
    dist.reduce_scatter_tensor(part, whole, op=ReduceOp.AVG)
    moved, least = sent() - before, whole.numel() * 4 * (n - 1) / n
    assert least <= moved < 1.01 * least, "all ranks' parts but the own one, once"


def case_all_to_all() -> None:
    n, r = world(), me()
    out = [torch.empty(k + 1) for k in range(n)]
    dist.all_to_all(out, [torch.full((r + 1,), 10.0 * r + k) for k in range(n)])
    assert [part.tolist() for part in out] == [[10.0 * k + r] * (k + 1) for k in range(n)]
    whole = torch.empty(n, 3)
    dist.all_to_all_single(whole, torch.arange(float(n)).view(n, 1).expand(n, 3).contiguous() + 10 * r)
    same(whole, (torch.arange(float(n)) * 10 + r).view(n, 1))
    # rank r sends k rows to rank k, with r in them
    received = torch.empty(n * r, 2)
    dist.all_to_all_single(received, torch.full((n * (n - 1) // 2, 2), float(r)), [r] * n, list(range(n)))
    same(received, torch.arange(float(n)).repeat_interleave(r).view(-1, 1).expand(n * r, 2))
    with pytest.raises(ValueError, match="split sizes"):
        dist.group.WORLD.all_to_all_single(torch.empty(4), torch.empty(4), [1] * n, [1] * n)


def case_messages() -> None:
    n, r = world(), me()
    right, left = (r + 1) % n, (r - 1) % n
    for size in (3, 100_000):
        out = torch.empty(size)
        work = dist.isend(torch.full((size,), float(r)), right, tag=3)
        assert dist.recv(out, left, tag=3) == left
        work.wait()
        same(out, left)
    work = dist.isend(torch.tensor([float(r)]), right, tag=4)
    out = torch.empty(1)
    assert dist.recv(out, tag=4) == left
    assert out.item() == left
    work.wait()
    out = torch.empty(2, 2).t()
    batch = [dist.P2POp(dist.isend, torch.arange(4.0).view(2, 2), right), dist.P2POp(dist.irecv, out, left)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    same(out, torch.arange(4.0).view(2, 2))
    out = torch.empty(1)
    work = dist.irecv(out, r)
    dist.isend(torch.ones(1), r).wait()
    work.wait()
    same(out, 1)


def case_futures_resolve_without_wait() -> None:
    n, r = world(), me()
    tensor = torch.full((4,), float(r + 1))
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    same(doubled.wait(), n * (n + 1))
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0] is tensor
    out = torch.empty(1)
    work = dist.irecv(out, (r - 1) % n)
    future = work.get_future()
    dist.isend(torch.tensor([float(r)]), (r + 1) % n).wait()
    same(future.wait()[0], (r - 1) % n)
    assert work._source_rank() == (r - 1) % n
    later = [dist.all_reduce(torch.full((1000,), float(k)), async_op=True).get_future() for k in range(20)]
    for k, values in enumerate(torch.futures.wait_all(later)):
        same(values[0], k * n)
    assert dist.barrier(async_op=True).wait() in (True, None)


def case_futures_started_and_awaited_in_callbacks() -> None:
    n = world()

    def again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    first = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    second = dist.all_reduce(torch.full((4,), 2.0), async_op=True).get_future()
    same(first.then(again).wait(), n * n)
    same(second.wait()[0], 2 * n)


def case_coalesced() -> None:
    n, r = world(), me()
    small = [torch.full((k + 1,), float(r)) for k in range(4)]
    dist.all_reduce_coalesced(small)
    for tensor in small:
        same(tensor, n * (n - 1) / 2)
    large = [torch.full((200_000,), float(r)), torch.full((3, 2), float(r)).t()]
    dist.all_reduce_coalesced(large, op=ReduceOp.MAX)
    for tensor in large:
        same(tensor, n - 1)
    tensors = [torch.full((2,), float(r + k)) for k in range(3)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for k, tensor in enumerate(tensors):
        same(tensor, n * k + n * (n - 1) / 2)
    outs = [torch.empty(2 * n), torch.empty(n)]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_gather_into_tensor(outs[0], torch.full((2,), float(r)))
        dist.all_gather_into_tensor(outs[1], torch.full((1,), float(r)))
    manager.wait()
    same(outs[0], torch.arange(float(n)).repeat_interleave(2))
    same(outs[1], torch.arange(float(n)))
    parts = [torch.empty(1), torch.empty(2)]
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(parts[0], torch.arange(float(n)))
        dist.reduce_scatter_tensor(parts[1], torch.arange(2.0 * n))
    same(parts[0], n * r)
    same(parts[1], (torch.arange(2.0) + 2 * r) * n)
    tensor = torch.full((2,), float(r))
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.broadcast(tensor, n - 1)
    same(tensor, n - 1)


def case_plain_calls_of_the_group() -> None:
    n, r = world(), me()
    group = dist.group.WORLD
    tensor = torch.full((2,), float(r))
    group.allreduce(tensor).wait()
    same(tensor, n * (n - 1) / 2)
    group.allreduce([tensor], ReduceOp.MAX).wait()
    group.broadcast(tensor.fill_(r), 0).wait()
    same(tensor, 0)
    parts = [torch.empty(1) for _ in range(n)]
    group.allgather(parts, torch.tensor([float(r)])).wait()
    assert [part.item() for part in parts] == list(range(n))
    group._allgather_base(torch.empty(n), torch.ones(1)).wait()
    group._reduce_scatter_base(torch.empty(1), torch.ones(n)).wait()
    group.alltoall_base(torch.empty(n), torch.ones(n), [], []).wait()
    group.barrier().wait()
    assert group.name() == "hcomm"
    assert dist.get_backend() == "hcomm"
    assert (group.rank(), group.size()) == (r, n)


def case_float8_is_moved() -> None:
    n, r = world(), me()
    tensor = torch.full((4,), float(r + 1)).to(torch.float8_e4m3fn)
    whole = torch.empty(4 * n, dtype=torch.float8_e4m3fn)
    dist.all_gather_into_tensor(whole, tensor)
    same(whole.float(), torch.arange(1.0, n + 1).repeat_interleave(4))
    dist.broadcast(tensor, 0)
    same(tensor.float(), 1)


def case_sparse_sum() -> None:
    n, r = world(), me()
    tensor = torch.sparse_coo_tensor([[r, n]], [1.0, 2.0], (n + 1,))
    dist.all_reduce(tensor)
    assert tensor.to_dense().tolist() == [1.0] * n + [2.0 * n]


def case_objects() -> None:
    n, r = world(), me()
    found: list[object] = [None] * n
    dist.all_gather_object(found, {"rank": r, "text": "x" * (r * 1000)})
    assert found == [{"rank": k, "text": "x" * (k * 1000)} for k in range(n)]
    objects = [{"a": 1}, "b", 3] if r == 0 else [None] * 3
    dist.broadcast_object_list(objects, src=0)
    assert objects == [{"a": 1}, "b", 3]
    gathered = [None] * n if r == n - 1 else None
    dist.gather_object(("me", r), gathered, dst=n - 1)
    assert gathered is None or gathered == [("me", k) for k in range(n)]
    received = [None]
    dist.scatter_object_list(received, [f"for {k}" for k in range(n)] if r == 0 else None, src=0)
    assert received == [f"for {r}"]


def case_groups_and_their_settings() -> None:
    n, r = world(), me()
    group = dist.new_group(
        list(range(n))[::-1],
        pg_options=hcomm.torch.Options(transport="tcp", algorithm={"all_reduce": "ring"}, timeout=7),
    )
    native = hcomm.torch.communicator(group)
    assert native.backend_name == "tcp"
    assert native.timeout == 7
    assert native.ranks == tuple(range(n)), "torch sorts the ranks of a group"
    tensor = torch.full((5,), float(r))
    dist.all_reduce(tensor, group=group)
    same(tensor, n * (n - 1) / 2)
    alone = dist.new_group([0])
    if r == 0:
        dist.all_reduce(tensor, group=alone)
        same(tensor, n * (n - 1) / 2)
    own = dist.new_group([r], use_local_synchronization=True)
    dist.barrier(group=own)
    dist.destroy_process_group(group)
    with pytest.raises(TypeError, match="Options"):
        dist.new_group(list(range(n)), pg_options={"transport": "tcp"})
    dist.barrier(timeout=timedelta(seconds=20))


def case_native_calls_beside() -> None:
    n, r = world(), me()
    native = hcomm.torch.communicator()
    assert native.all_reduce(torch.tensor([r])).item() == n * (n - 1) // 2
    assert (native.rank, native.size) == (r, n)


def case_refusals_say_what_to_do() -> None:
    with pytest.raises(TypeError, match="meta"):
        dist.all_reduce(torch.empty(2, device="meta"))
    with pytest.raises(RuntimeError, match="band"):
        dist.all_reduce(torch.ones(1), op=ReduceOp.BAND)
    with pytest.raises(ValueError, match="elements"):
        dist.group.WORLD.all_gather_single(torch.empty(1 + world()), torch.ones(1))
    same_place = torch.empty(1)
    if world() > 1:
        with pytest.raises(ValueError, match="share memory"):
            dist.all_gather([same_place] * world(), torch.ones(1))


def case_profiler_shows_operations() -> None:
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(2))
        dist.broadcast(torch.ones(2), 0, async_op=True).wait()
        hcomm.torch.monitored_barrier()
    names = {event.name for event in profile.events()}
    assert {"hcomm:all_reduce", "hcomm:broadcast"} <= names
