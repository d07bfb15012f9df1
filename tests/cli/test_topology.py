"""Reading sysfs, HCOMM_VISIBLE_DEVICES, and quantities for people."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hcomm.cli import units
from hcomm.errors import ConfigError
from hcomm.topology.accelerators import Accelerator, visible_devices
from hcomm.topology.cpus import format_cpulist, parse_cpulist, probe_cpus
from hcomm.topology.memory import probe_shared_memory
from hcomm.topology.network import probe_interfaces, probe_rdma


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8", (0, 1, 2, 3, 8)), ("0", (0,)), ("", ()), ("10-11,2", (10, 11, 2))]
)
def test_cpulists_are_read(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpulist(text) == cpus


def test_cpulists_are_written_in_runs() -> None:
    assert format_cpulist((8, 0, 1, 2, 10)) == "0-2,8,10"


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_two_numa_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    node = "sys/devices/system/node"
    files = {
        "sys/devices/system/cpu/online": "0-3\n",
        f"{node}/online": "0-1\n",
        f"{node}/node0/cpulist": "0-1\n",
        f"{node}/node0/distance": "10 21\n",
        f"{node}/node0/meminfo": "Node 0 MemTotal:  1024 kB\n",
        f"{node}/node1/cpulist": "2-3\n",
        f"{node}/node1/distance": "21 10\n",
        f"{node}/node1/meminfo": "Node 1 MemTotal:  2048 kB\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "proc/cpuinfo": "processor : 0\nmodel name : Some  CPU\n",
    }
    for cpu, (package, core) in enumerate([(0, 0), (0, 0), (1, 0), (1, 1)]):
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = f"{package}\n"
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_id"] = f"{core}\n"
    _write(tmp_path, files)
    cpus = probe_cpus(tmp_path)
    assert cpus.model == "Some CPU"
    assert (cpus.present, cpus.allowed) == ((0, 1, 2, 3), (0, 1, 2))
    assert (cpus.sockets, cpus.cores, cpus.quota) == (2, 2, 1.5)
    assert [node.cpus for node in cpus.nodes] == [(0, 1), (2,)]
    assert [node.memory for node in cpus.nodes] == [1024 * 1024, 2048 * 1024]
    assert cpus.nodes[1].distances == (21, 10)


def test_a_machine_that_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5})
    cpus = probe_cpus(tmp_path)
    assert (cpus.present, cpus.cores, cpus.quota) == ((4, 5), 2, None)
    assert [node.cpus for node in cpus.nodes] == [(4, 5)]


def test_visible_devices_are_cpus_without_accelerators() -> None:
    assert visible_devices("", (), (0, 1)).visible == (0, 1)
    devices = visible_devices("1, 3-4", (), range(8))
    assert (devices.kind, devices.visible, devices.restricted) == ("cpu", (1, 3, 4), True)


def test_visible_devices_are_accelerators_where_there_are_some() -> None:
    devices = visible_devices("1", (Accelerator(0, "A"), Accelerator(1, "A")), (0, 1, 2))
    assert (devices.kind, devices.present, devices.visible) == ("gpu", (0, 1), (1,))


@pytest.mark.parametrize("setting", ["a", "0,", "1-", "0;1"])
def test_visible_devices_that_do_not_parse(setting: str) -> None:
    with pytest.raises(ConfigError, match="HCOMM_VISIBLE_DEVICES"):
        visible_devices(setting, (), (0, 1))


def test_visible_devices_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match="no cpu 7 here; there are 0-1"):
        visible_devices("0,7", (), (0, 1))


def test_shared_memory_is_tried(tmp_path: Path) -> None:
    assert probe_shared_memory().memfd == ""
    missing = probe_shared_memory(str(tmp_path / "nowhere"))
    assert "No such file" in missing.shm_error
    assert missing.shm_size == 0


def test_the_loopback_interface_is_known() -> None:
    loopback = next(interface for interface in probe_interfaces() if interface.name == "lo")
    assert loopback.kind == "loopback"
    assert loopback.speed == 0


def test_rdma_devices_are_listed(tmp_path: Path) -> None:
    _write(tmp_path, {"mlx5_0/ports/1/state": "4: ACTIVE\n", "mlx5_0/ports/1/rate": "100 Gb/sec (4X EDR)\n"})
    rdma = probe_rdma(tmp_path)
    assert rdma.devices == ("mlx5_0 (active, 100 Gb/sec (4X EDR))",)
    assert set(rdma.libraries) == {"libibverbs", "librdmacm", "UCX"}
    assert probe_rdma(tmp_path / "none").devices == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.size(64 << 20), "64 MiB"),
        (units.size(1000), "1000 B"),
        (units.size(25276059648), "23.5 GiB"),
        (units.rate(8.123e9), "8.12 GB/s"),
        (units.bits(1e9), "1 Gbit/s"),
        (units.message(25_000_000), "25 MB"),
        (units.duration(4.5e-7), "0.45 µs"),
        (units.duration(0.0123), "12.3 ms"),
        (units.duration(2.5), "2.5 s"),
    ],
)
def test_quantities(text: str, expected: str) -> None:
    assert text == expected
