"""Name lookup that keeps to a deadline and to Ctrl-C, and the question which of our addresses faces another
one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

#: (family, socket address) of a TCP endpoint.
Endpoint = tuple[socket.AddressFamily, Any]
#: (name, port) → endpoints; raises OSError when the name is not known (yet).
Resolver = Callable[[str, int], list[Endpoint]]


def system_resolver(name: str, port: int) -> list[Endpoint]:
    """What the operating system knows about a name.

    Raises:
        OSError: nothing.
    """
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [(family, address) for family, _, _, _, address in found]


def resolve(name: str, port: int, deadline: float, resolver: Resolver = system_resolver) -> list[Endpoint]:
    """`resolver(name, port)` in a helper thread: a DNS server that does not answer blocks neither the
    deadline nor Ctrl-C.

    Raises:
        OSError: the name is not known, or (TimeoutError) nobody answered by `deadline`.
    """
    if is_literal(name):
        return resolver(name, port)
    answer: list[list[Endpoint]] = []
    failure: list[Exception] = []
    done = threading.Event()

    def look_up() -> None:
        try:
            answer.append(resolver(name, port))
        except Exception as error:  # handed to the waiting thread
            failure.append(error)
        done.set()

    threading.Thread(target=look_up, name="hcomm-resolve", daemon=True).start()
    if not done.wait(max(0.0, deadline - time.monotonic())):
        raise TimeoutError(f"looking up {name!r} took too long")
    if failure:
        raise failure[0]
    return answer[0]


def is_literal(name: str) -> bool:
    """Whether `name` is an IPv4 or IPv6 address rather than a name."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether a literal address reaches only this host."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return parsed.is_loopback or (mapped is not None and mapped.is_loopback)


def means_this_host(name: str) -> bool:
    """Whether the user wrote a loopback address on purpose: `localhost` or a literal one."""
    return name == "localhost" or is_loopback(name)


def facing(endpoint: Endpoint) -> str | None:
    """The local address from which packets to `endpoint` leave; None without a route. Sends nothing."""
    family, address = endpoint
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
    return None
