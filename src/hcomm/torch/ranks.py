"""Who trains together: a group, hcomm's job, torch.distributed's, or this process alone."""

from __future__ import annotations

import torch
import torch.distributed as dist

import hcomm
from hcomm.communicator import Communicator


def place(group: Communicator | None) -> tuple[int, int]:
    """(rank, world size) in `group`; without one in hcomm's job, else in torch.distributed's, else (0, 1)."""
    if group is not None or hcomm.is_initialized():
        return hcomm.rank(group), hcomm.world_size(group)
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gathered(group: Communicator | None, values: list[int]) -> list[list[int]]:
    """The values of all ranks of the same world; every rank calls it, with equally many."""
    if group is not None or hcomm.is_initialized():
        everyone = hcomm.all_gather(torch.tensor(values), group=group)
        found: list[list[int]] = everyone.view(-1, len(values)).tolist()
        return found
    if dist.is_available() and dist.is_initialized():
        answers: list[list[int]] = [[]] * dist.get_world_size()
        dist.all_gather_object(answers, values)
        return answers
    return [values]
