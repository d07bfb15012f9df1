"""One picture of this machine."""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass
from typing import Any

from hcomm.topology.accelerators import Accelerator, Devices, probe_accelerators, visible_devices
from hcomm.topology.cpus import Cpus, probe_cpus
from hcomm.topology.memory import SharedMemory, probe_shared_memory
from hcomm.topology.network import Interface, Rdma, probe_interfaces, probe_rdma


@dataclass(frozen=True)
class Machine:
    """What one host is and allows."""

    host: str
    cpus: Cpus
    memory: SharedMemory
    interfaces: tuple[Interface, ...]
    rdma: Rdma
    accelerators: tuple[Accelerator, ...]
    devices: Devices

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def probe(visible: str = "") -> Machine:
    """Look at this machine; takes some tens of milliseconds (seconds where a vendor's tool is slow).

    Args:
        visible: the value of HCOMM_VISIBLE_DEVICES.

    Raises:
        ConfigError: `visible` is not a list of devices that exist.
    """
    cpus = probe_cpus()
    accelerators = probe_accelerators()
    return Machine(
        host=socket.gethostname(),
        cpus=cpus,
        memory=probe_shared_memory(),
        interfaces=probe_interfaces(),
        rdma=probe_rdma(),
        accelerators=accelerators,
        devices=visible_devices(visible, accelerators, cpus.allowed),
    )
