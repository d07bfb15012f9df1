"""What the bootstrap floor is told.

Plain values, already parsed, and the few native functions it probes with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Transports a user can ask for: `auto` takes shared memory wherever it is proven, `shm` insists, `tcp`
#: forbids it.
TRANSPORTS = ("auto", "shm", "tcp")


@dataclass(frozen=True)
class BootstrapSettings:
    """Settings of one job.

    Attributes:
        init_timeout: seconds that `init` (and the making of a group) may take.
        transport: `auto`, `shm` or `tcp`.
        socket_ifname: interface choice in NCCL's grammar, or None.
        job_secret: a secret that every rank was given by other means, or None.
        job_id: the name of the job, or None to take the launcher's.
        buffer_bytes: bytes of shared buffer per rank that windows are sized from.
        notice_every: seconds between two lines that say who is missing.
    """

    init_timeout: float = 300.0
    transport: str = "auto"
    socket_ifname: str | None = None
    job_secret: str | None = None
    job_id: str | None = None
    buffer_bytes: int = 16 << 20
    notice_every: float = 10.0


@dataclass(frozen=True)
class Probes:
    """Functions of the native core that wire-up needs; injected, so that this floor can be tested without it.

    Attributes:
        window_bytes: (ranks in the clique, buffer bytes) → size of a window file in bytes.
        cma_read: (pid, address, bytes) → the bytes read by `process_vm_readv`; raises OSError. None: do not
            probe.
        address_of: (buffer, writable) → (address, bytes). None: do not probe.
    """

    window_bytes: Callable[[int, int], int]
    cma_read: Callable[[int, int, int], bytes] | None = None
    address_of: Callable[[object, bool], tuple[int, int]] | None = None
