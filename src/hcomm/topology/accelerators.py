"""Accelerators that their vendors' own tools list, and which devices `HCOMM_VISIBLE_DEVICES` leaves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from hcomm.errors import ConfigError
from hcomm.topology.cpus import format_cpulist

_TOOL_SECONDS = 10.0


@dataclass(frozen=True)
class Accelerator:
    """A device by its vendor's number and name."""

    index: int
    name: str


@dataclass(frozen=True)
class Devices:
    """What may be used.

    Attributes:
        kind: `gpu` where accelerators are listed, `cpu` otherwise.
        present: numbers of all devices of that kind.
        visible: the numbers that may be used, in the order given.
        restricted: HCOMM_VISIBLE_DEVICES is set.
    """

    kind: str
    present: tuple[int, ...]
    visible: tuple[int, ...]
    restricted: bool


def probe_accelerators() -> tuple[Accelerator, ...]:
    """NVIDIA GPUs as `nvidia-smi` lists them; none where the tool is missing, fails, or does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    command = [tool, "--query-gpu=index,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TOOL_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if done.returncode:
        return ()
    found = []
    for line in done.stdout.splitlines():
        index, _, name = line.partition(",")
        if index.strip().isdigit():
            found.append(Accelerator(int(index), name.strip()))
    return tuple(found)


def visible_devices(setting: str, accelerators: Sequence[Accelerator], cpus: Sequence[int]) -> Devices:
    """Apply HCOMM_VISIBLE_DEVICES: numbers of accelerators where there are any, otherwise of CPUs.

    Args:
        setting: its value, such as `0,1` or `0-3`; empty: all devices.
        accelerators: those of the machine.
        cpus: those that this process may use.

    Raises:
        ConfigError: not a list of numbers, or one that does not exist; lists those that do.
    """
    kind = "gpu" if accelerators else "cpu"
    present = tuple(a.index for a in accelerators) if accelerators else tuple(cpus)
    if not setting.strip():
        return Devices(kind, present, present, restricted=False)
    visible: list[int] = []
    for part in (word.strip() for word in setting.split(",")):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ConfigError(
                f"HCOMM_VISIBLE_DEVICES={setting!r}: expected numbers such as 0,1 or 0-3, found {part!r}"
            )
        visible.extend(range(int(first), int(last or first) + 1))
    unknown = [number for number in visible if number not in present]
    if unknown:
        raise ConfigError(
            f"HCOMM_VISIBLE_DEVICES={setting!r}: no {kind} {format_cpulist(unknown)} here; "
            f"there are {format_cpulist(present)}"
        )
    return Devices(kind, present, tuple(dict.fromkeys(visible)), restricted=True)
