"""HCOMM_SOCKET_IFNAME: NCCL's grammar, and unknown names refused (field report A1)."""

from __future__ import annotations

import pytest

from hcomm.errors import ConfigError
from hcomm.topology.interfaces import Interface, choose_address, list_interfaces, outward_address, select

LO = Interface("lo", ("127.0.0.1", "::1"), True)
ETH0 = Interface("eth0", ("10.0.0.5", "fd00::5"), True)
ETH1 = Interface("eth1", ("10.1.0.5",), True)
ETH10 = Interface("eth10", (), True)
DOCKER = Interface("docker0", ("172.17.0.1",), True)
DOWN = Interface("ib0", ("10.2.0.5",), False)
ALL = [LO, ETH0, ETH1, ETH10, DOCKER, DOWN]


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("lo", ["lo"]),
        ("eth", ["eth0", "eth1", "eth10"]),
        ("=eth1", ["eth1"]),
        ("eth1", ["eth1", "eth10"]),
        ("ib,eth0", ["ib0", "eth0"]),
        ("^lo,docker", ["eth0", "eth1", "eth10", "ib0"]),
        ("^=eth1", ["lo", "eth0", "eth10", "docker0", "ib0"]),
        ("^lo,nosuch", ["eth0", "eth1", "eth10", "docker0", "ib0"]),
        (" eth0 , lo", ["eth0", "lo"]),
        (None, [i.name for i in ALL]),
    ],
)
def test_grammar(spec: str | None, names: list[str]) -> None:
    assert [interface.name for interface in select(spec, ALL)] == names


@pytest.mark.parametrize("spec", ["nosuch0", "eth0,nosuch0", "=eth"])
def test_unknown_names_list_what_exists(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"no interface matches .* lo, eth0, eth1"):
        select(spec, ALL)


@pytest.mark.parametrize("spec", ["eth0,,lo", "eth,^lo", "=", "^", ","])
def test_what_does_not_parse(spec: str) -> None:
    with pytest.raises(ConfigError, match="does not parse"):
        select(spec, ALL)


def test_nothing_left() -> None:
    with pytest.raises(ConfigError, match="leaves no interface"):
        select("^lo", [LO])


def test_the_address() -> None:
    assert choose_address([ETH1, ETH0], "10.0.0.5", restricted=True) == "10.0.0.5"
    assert choose_address([ETH1, ETH0], "10.9.9.9", restricted=True) == "10.1.0.5"
    assert choose_address([ETH1, ETH0], "fd00::9", restricted=True) == "fd00::5"
    assert choose_address([DOWN, ETH1], None, restricted=True) == "10.1.0.5"
    assert choose_address([], "10.9.9.9", restricted=False) == "10.9.9.9"
    with pytest.raises(ConfigError, match="ib0 is up"):
        choose_address([DOWN], None, restricted=True)


def test_this_host() -> None:
    assert any("127.0.0.1" in interface.addresses for interface in list_interfaces())
    address = outward_address()
    assert address is None or not address.startswith("127.")
