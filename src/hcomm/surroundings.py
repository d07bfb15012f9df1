"""What a job's ranks are told, or tell each other, about where they run: groups of fast links, crowded hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hcomm.errors import TopologyError

if TYPE_CHECKING:
    from hcomm.bootstrap import Contact
    from hcomm.planning.groups import GroupPlan


def described_groups(environ: Mapping[str, str], size: int) -> GroupPlan | None:
    """How collectives use the groups that HCOMM_TOPOLOGY or group hints describe; None where nothing is described.

    Rank r runs on the r-th device; devices beyond the ranks of the job are not used.

    Args:
        environ: the environment.
        size: ranks of the job.

    Raises:
        TopologyError: the file or a hint is wrong, or there are fewer devices than ranks.
    """
    from hcomm.topology.discover import described

    topology = described(environ, size)
    if topology is None:
        return None
    from hcomm.planning.groups import plan_groups

    devices = len(topology.devices)
    if devices < size:
        raise TopologyError(
            f"{topology.source}: {devices} devices, but the job has {size} ranks: rank r runs on the r-th device"
        )
    return plan_groups(topology).restricted(range(size))


def crowded(contacts: Sequence[Contact]) -> bool:
    """Whether on some host ranks outnumber the processors that they may use; False where nobody says.

    Args:
        contacts: of all ranks of a communicator.
    """
    members: dict[object, list[int]] = {}
    for contact in contacts:
        try:
            bits = int(contact.cpus, 16)
        except ValueError:
            continue
        members.setdefault((contact.boot_id, contact.hostname), []).append(bits)
    for masks in members.values():
        union = 0
        for mask in masks:
            union |= mask
        if len(masks) > union.bit_count():
            return True
    return False
