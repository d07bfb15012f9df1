"""The store that rank 0 hosts while a job comes up, in a thread.

Its port is free again as soon as all ranks have what they need.
"""

from __future__ import annotations

import errno
import json
import socket
import time
from typing import Any

from hcomm.bootstrap import auth
from hcomm.bootstrap.auth import Credentials
from hcomm.bootstrap.mapping import GONE, RECORD
from hcomm.bootstrap.resolve import (
    Endpoint,
    Resolver,
    is_literal,
    is_loopback,
    means_this_host,
    resolve,
    system_resolver,
)
from hcomm.bootstrap.serving import CROWD, Guest, Serving
from hcomm.bootstrap.talk import Conversation, Suspend, Talk, read_message, send_message

#: Longest key, and most entries; far above what a job needs.
MAX_KEY, MAX_ENTRIES = 512, 1 << 20
#: Longest time that the server keeps one question open; the client asks again.
MAX_WAIT = 60.0


class PortTaken(OSError):
    """Another program listens on the port."""


class StoreServer:
    """Serves one job.

    Args:
        sock: bound and listening.
        credentials: what clients must know.
        world_size: number of clients expected.
    """

    def __init__(self, sock: socket.socket, credentials: Credentials, world_size: int) -> None:
        self.port = int(sock.getsockname()[1])
        self.address = str(sock.getsockname()[0])
        self._credentials = credentials
        self._data: dict[str, str] = {}
        self._waiting: dict[str, list[Conversation[None]]] = {}
        self._left = 0
        self._gone: list[str] = []
        self._retired: tuple[int, float] | None = None
        self._serving = Serving("hcomm-store", self._talk, crowd=CROWD + world_size)
        self._serving.on_leave = self._on_leave
        self._serving.finished = self._finished
        self._serving.listen(sock)
        self._serving.start()

    @property
    def loopback(self) -> str:
        """The address at which this process reaches it."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address, self.address)

    def retire(self, clients: int, deadline: float) -> None:
        """Close by itself, in the background, when `clients` clients have left, at the latest at `deadline`."""
        self._serving.tick = 0.1
        self._retired = (clients, deadline)
        self._serving.wake()

    def close(self, patience: float = 0.0) -> None:
        """Close now, or when it has retired within `patience` seconds."""
        if self._retired is not None and patience > 0:
            self._serving.join(patience)
        self._serving.close()

    def _finished(self) -> bool:
        if self._retired is None:
            return False
        clients, deadline = self._retired
        return self._left >= clients or time.monotonic() > deadline

    def _on_leave(self, guest: Guest) -> None:
        if guest.stranger:
            return
        self._left += 1
        # Whoever has put its record here and leaves without a word has ended: the collector hears of it.
        for key in guest.parcel.get("records", []) if not guest.parcel.get("bye") else []:
            self._gone.append(key)
            self._put(GONE, json.dumps(self._gone))

    def _talk(self, guest: Guest) -> Talk[None]:
        yield from auth.server(auth.STORE, self._credentials)
        guest.stranger = False
        while True:
            request = yield from read_message()
            if request.get("op") == "bye":
                guest.parcel["bye"] = True
                return
            answer = yield from self._answer(guest, request)
            yield from send_message({"value": answer})

    def _answer(self, guest: Guest, request: dict[str, Any]) -> Talk[str | int | None]:
        operation, key = request.get("op"), request.get("key")
        if not isinstance(key, str) or len(key) > MAX_KEY or len(self._data) > MAX_ENTRIES:
            raise ValueError("a request without a proper key")
        if operation == "set" and isinstance(request.get("value"), str):
            self._put(key, request["value"])
            if key.startswith(RECORD):
                guest.parcel.setdefault("records", []).append(key)
            return None
        if operation == "add" and isinstance(request.get("amount"), int):
            total = int(self._data.get(key, "0")) + int(request["amount"])
            self._put(key, str(total))
            return total
        if operation == "get" and isinstance(request.get("wait"), (int, float)):
            if key in self._data or request["wait"] <= 0:
                return self._data.get(key)
            return (yield from self._wait_for(guest, key, min(float(request["wait"]), MAX_WAIT)))
        raise ValueError("a request that is none of set, get, add")

    def _wait_for(self, guest: Guest, key: str, wait: float) -> Talk[str | None]:
        waiting = self._waiting.setdefault(key, [])
        waiting.append(guest.conversation)
        try:
            value: str | None = yield Suspend(time.monotonic() + wait)
        finally:
            if guest.conversation in waiting:
                waiting.remove(guest.conversation)
        return value

    def _put(self, key: str, value: str) -> None:
        self._data[key] = value
        for conversation in self._waiting.pop(key, []):
            conversation.wake(value)


def listening_socket(
    host: str, port: int, deadline: float, resolver: Resolver = system_resolver
) -> socket.socket:
    """Listen where the others will look for `host`:`port`, and nowhere else if that can be told.

    A name that this host resolves to a loopback address (a common line in /etc/hosts), that it does not know
    (yet), or that belongs to a proxy in
    front of it, says nothing about where the others will arrive: then all addresses are taken.

    Raises:
        PortTaken: another program listens there.
        OSError: the port cannot be had for another reason.
    """
    try:
        endpoints = resolve(host, port, min(deadline, time.monotonic() + 2), resolver)
    except OSError:
        endpoints = []
    if endpoints and (means_this_host(host) or is_literal(host) or not is_loopback(endpoints[0][1][0])):
        try:
            return _bind(*endpoints[0])
        except OSError as error:
            if isinstance(error, PortTaken) or error.errno != errno.EADDRNOTAVAIL:
                raise
    return _bind(*_anywhere(port))


def _anywhere(port: int) -> Endpoint:
    if socket.has_dualstack_ipv6():
        return socket.AF_INET6, ("::", port, 0, 0)
    return socket.AF_INET, ("0.0.0.0", port)


def _bind(family: socket.AddressFamily, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.listen(4096)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(error.errno, f"port {address[1]} is taken by another program") from None
        raise
    return sock
