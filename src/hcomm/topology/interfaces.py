"""Network interfaces of this host, and which of them to use.

`HCOMM_SOCKET_IFNAME` has NCCL's grammar: a comma-separated list of prefixes (`eth,ib`), of exact names
(`=eth0`), or of those to leave out
(`^docker,lo`, `^=eth1`).
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from hcomm.errors import ConfigError

VARIABLE = "HCOMM_SOCKET_IFNAME"
#: Interfaces that lead to containers and virtual machines of this host, never to another one.
INNER = ("lo", "docker", "virbr", "br-", "veth", "cni", "flannel", "podman")


@dataclass(frozen=True)
class Interface:
    """One interface.

    Attributes:
        name: its name.
        addresses: its IPv4 addresses, then its IPv6 addresses that are not link-local.
        up: whether it is up.
        speed: in Mbit/s; 0 if unknown.
    """

    name: str
    addresses: tuple[str, ...]
    up: bool
    speed: int = 0


def list_interfaces() -> list[Interface]:
    """The interfaces of this host, in the system's order."""
    import psutil  # not needed until a world of several ranks comes up

    states = psutil.net_if_stats()
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        v4 = [a.address for a in addresses if a.family == socket.AF_INET]
        v6 = [a.address for a in addresses if a.family == socket.AF_INET6]
        usable = [a for a in v6 if not ipaddress.ip_address(a.partition("%")[0]).is_link_local]
        state = states.get(name)
        up = state.isup if state is not None else False
        found.append(Interface(name, (*v4, *usable), up, state.speed if state is not None else 0))
    return found


def select(spec: str | None, interfaces: list[Interface] | None = None) -> list[Interface]:
    """The interfaces that `spec` allows, in the order in which it names them.

    Args:
        spec: the value of HCOMM_SOCKET_IFNAME; None or "": all are allowed.
        interfaces: those that exist; None: ask the system.

    Raises:
        ConfigError: `spec` does not parse, names an interface that does not exist, or leaves none.
    """
    if not spec:
        return interfaces if interfaces is not None else []
    known = list_interfaces() if interfaces is None else interfaces
    exist = ", ".join(interface.name for interface in known)
    without = spec.startswith("^")
    items = [item.strip() for item in spec.removeprefix("^").split(",")]
    if not all(items) or any(item == "=" or "^" in item for item in items):
        raise ConfigError(
            f"{VARIABLE}={spec!r} does not parse: expected prefixes (eth,ib), exact names (=eth0) or, "
            "after one ^ at the start, "
            "those to leave out (^docker,lo)"
        )
    if without:
        kept = [i for i in known if not any(_matches(i.name, item) for item in items)]
        if not kept:
            raise ConfigError(f"{VARIABLE}={spec!r} leaves no interface; there are: {exist}")
        return kept
    chosen: list[Interface] = []
    for item in items:
        matching = [i for i in known if _matches(i.name, item)]
        if not matching:
            raise ConfigError(f"{VARIABLE}={spec!r}: no interface matches {item!r}; there are: {exist}")
        chosen += [i for i in matching if i not in chosen]
    return chosen


def _matches(name: str, item: str) -> bool:
    return name == item[1:] if item.startswith("=") else name.startswith(item)


def choose_address(allowed: list[Interface], preferred: str | None, *, restricted: bool) -> str:
    """The address to listen on.

    Args:
        allowed: the interfaces that may be used.
        preferred: the address that routes to the master, if known.
        restricted: the user chose interfaces; otherwise `preferred` is taken as it is.

    Raises:
        ConfigError: the allowed interfaces have no address.
    """
    if not restricted:
        return preferred or outward_address() or "127.0.0.1"
    if preferred is not None and any(preferred in interface.addresses for interface in allowed):
        return preferred
    version = 6 if preferred is not None and ":" in preferred else 4
    for same_version in (True, False):
        for interface in allowed:
            for address in interface.addresses:
                if interface.up and (not same_version or ipaddress.ip_address(address).version == version):
                    return address
    names = ", ".join(interface.name for interface in allowed)
    raise ConfigError(f"{VARIABLE}: none of the interfaces {names} is up and has an address")


def outward_address() -> str | None:
    """The address of this host that other hosts most likely reach.

    That of the default route, or of the first real interface.
    """
    # Documentation addresses (RFC 5737, RFC 3849); connecting a datagram socket sends nothing.
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    for interface in list_interfaces():
        if interface.up and interface.addresses and not interface.name.startswith(INNER):
            return interface.addresses[0]
    return None
