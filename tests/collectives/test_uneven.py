"""Uneven shares: `sizes=`, lists, split tables, several dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

SIZES = [3, 0, 5]


def uneven(library: str) -> dict[str, Any]:
    import hcomm

    def make(values: Any) -> Any:
        if library == "numpy":
            return np.array(values, dtype=np.int64)
        import torch

        return torch.tensor(values, dtype=torch.int64)

    me = hcomm.rank()
    mine = (
        make([[me, k] for k in range(SIZES[me])])
        if SIZES[me]
        else make(np.zeros((0, 2)).tolist()).reshape(0, 2)
    )
    whole = make([[10 * me + k, k] for k in range(sum(SIZES))])
    out = make([[0, 0]] * sum(SIZES))
    hcomm.all_gather(mine, out=out, sizes=SIZES)
    share = hcomm.reduce_scatter(whole, sizes=SIZES)
    return {
        "gathered": hcomm.all_gather(mine, sizes=SIZES).tolist(),
        "into": out.tolist(),
        "share": share.tolist(),
        "shape": tuple(share.shape),
    }


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_uneven_all_gather_and_reduce_scatter(job: Any, library: str, transport: str) -> None:
    rows = [[r, k] for r in range(3) for k in range(SIZES[r])]
    starts = [0, 3, 3, 8]
    for me, found in enumerate(job(3, uneven, args=(library,), transport=transport)):
        assert found["gathered"] == rows
        assert found["into"] == rows
        assert found["share"] == [[30 + 3 * k, 3 * k] for k in range(starts[me], starts[me + 1])]
        assert found["shape"] == (SIZES[me], 2)


def several_dimensions() -> dict[str, Any]:
    import hcomm

    me = hcomm.rank()
    block = np.arange(24).reshape(2, 3, 4) + 1000 * me
    rows = np.arange(12).reshape(4, 3) + 100 * me
    return {
        "gathered": hcomm.all_gather(block).tolist(),
        "transposed": hcomm.all_gather(block.T).tolist(),
        "share": hcomm.reduce_scatter(rows).tolist(),
        "exchanged": hcomm.all_to_all(rows).tolist(),
        "zero_dim": float(hcomm.all_reduce(np.array(me + 1.0))),
    }


def test_several_dimensions_split_along_the_first(job: Any) -> None:
    block = np.arange(24).reshape(2, 3, 4)
    rows = np.arange(12).reshape(4, 3)
    for me, found in enumerate(job(2, several_dimensions)):
        half = slice(2 * me, 2 * me + 2)
        assert found["gathered"] == np.concatenate([block, block + 1000]).tolist()
        assert found["transposed"] == np.concatenate([block.T, block.T + 1000]).tolist()
        assert found["share"] == (2 * rows + 100)[half].tolist()
        assert found["exchanged"] == np.concatenate([rows[half], rows[half] + 100]).tolist()
        assert found["zero_dim"] == 3.0


def rank_dependent_programs() -> list[str]:
    """A user's algorithm whose root has a block more than the others, without the window: places must be the same."""
    import torch

    import hcomm
    from hcomm.planning.builder import Builder

    @hcomm.algorithm("gather", name="through_windows", requires=hcomm.SHARED_MEMORY, sizes=[4])
    def through_windows(p: Builder) -> None:
        if p.rank == p.root:
            p.move(dst=p.out_block(p.root), src=p.input())
        with p.tiles(256 << 10, buffers=2, stages=2):
            if p.rank == p.root:
                for r in p.ranks:
                    if r != p.root:
                        p.move(dst=p.out_block(r), src=p.window(0, like=p.out_block(r), of=r), stage=1)
            else:
                p.move(dst=p.window(0, like=p.input()), src=p.input(), stage=0)
            p.meet()

    rank, wrong = hcomm.rank(), []
    for count in (1000, 70_000):
        for turn in range(9):
            mine = torch.arange(count) % 1000 + 1000 * rank + turn
            found = hcomm.gather(mine, 0, algorithm="through_windows")
            if rank == 0:
                expected = torch.cat([torch.arange(count) % 1000 + 1000 * r + turn for r in range(4)])
                if not torch.equal(torch.as_tensor(found).reshape(-1), expected):
                    wrong.append(f"{count} {turn}")
    return wrong


def test_programs_that_differ_between_ranks_find_each_others_windows(job: Any) -> None:
    assert job(4, rank_dependent_programs) == [[]] * 4
