"""Where the other ranks reach this process: one TCP port and one abstract Unix socket, for the life of the
world.

Whoever connects proves that it knows the job, says which communicator, rank and channel it stands for, and is
then *parked* until wire-up picks it up.
The Unix socket's name is random and abstract: it leaves no file behind, and a process of another network
namespace cannot reach it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hcomm.bootstrap import auth
from hcomm.bootstrap.auth import Credentials
from hcomm.bootstrap.resolve import Endpoint
from hcomm.bootstrap.serving import Guest, Serving
from hcomm.bootstrap.talk import Talk, pack_message, read_message

#: Channels that a pair of ranks opens.
CHANNELS = ("control", "coll", "p2p")
#: Longest topic: a list of ranks and a few settings.
MAX_TOPIC = 1 << 20
#: How many failed communicators are remembered, so that latecomers hear why.
MAX_REFUSED = 64


@dataclass
class Parked:
    """An authenticated connection that waits to be picked up.

    Attributes:
        sock: the connection; nothing of it is unread but what the peer sent after its topic.
        topic: what the peer said: `key`, `parent`, `from`, `channel`, `name`, `ranks`, `agree`,
            `reason`.
        pid: the peer's process as seen from here (Unix sockets), otherwise 0.
    """

    sock: socket.socket
    topic: dict[str, Any]
    pid: int

    @property
    def alive(self) -> bool:
        """Whether the peer still holds its end."""
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False


class Listener:
    """The sockets at which this process is reached.

    Args:
        endpoint: TCP address to bind, port 0 for any.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        family, address = endpoint
        self._lock = threading.Lock()
        self._parked: dict[tuple[str, int, str], Parked] = {}
        self._refused: OrderedDict[str, bytes] = OrderedDict()
        self._watchers: set[int] = set()
        self._credentials: Credentials | None = None
        self._serving = Serving("hcomm-listener", self._talk)
        self._serving.on_leave = self._on_leave
        with contextlib.ExitStack() as stack:
            tcp = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            tcp.bind(address)
            tcp.listen(4096)
            unix = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self.unix_name = f"hcomm-{secrets.token_hex(16)}"
            unix.bind("\0" + self.unix_name)
            unix.listen(4096)
            self._serving.listen(tcp)
            self._serving.listen(unix)
            stack.pop_all()
        self.address = str(tcp.getsockname()[0])
        self.port = int(tcp.getsockname()[1])

    def open(self, credentials: Credentials) -> None:
        """Begin to serve; until then connections wait in the kernel's backlog."""
        self._credentials = credentials
        self._serving.start()

    def close(self) -> None:
        """Close everything and end the thread; in a forked child nothing happens."""
        self._serving.close()
        with self._lock:
            for parked in self._parked.values():
                parked.sock.close()
            self._parked.clear()

    @contextlib.contextmanager
    def watching(self) -> Any:
        """A descriptor that becomes readable whenever something was parked."""
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with self._lock:
            self._watchers.add(write)
        try:
            yield read
        finally:
            with self._lock:
                self._watchers.discard(write)
            os.close(read)
            os.close(write)

    def pick(self, key: str, peer: int, channel: str) -> Parked | None:
        """Take a parked connection; None if there is none (any more)."""
        with self._lock:
            parked = self._parked.pop((key, peer, channel), None)
        if parked is not None and not parked.alive:
            parked.sock.close()
            return None
        return parked

    def pick_other(self, key: str, parent: str, peer: int, name: str) -> Parked | None:
        """Take `peer`'s wish to wire *another* communicator of the same parent and name with this rank.

        None if there is none. Groups of other names may be in the making in other threads.
        """
        with self._lock:
            wishes = [
                (place, parked)
                for place, parked in self._parked.items()
                if place[0] != key
                and place[1:] == (peer, "control")
                and (parked.topic["parent"], parked.topic["name"]) == (parent, name)
            ]
            for place, parked in wishes:
                del self._parked[place]
                if parked.alive:
                    return parked
                parked.sock.close()
        return None

    def others(self, key: str) -> list[dict[str, Any]]:
        """Topics of all control connections that wait here for another communicator."""
        with self._lock:
            return [p.topic for place, p in self._parked.items() if place[0] != key and place[2] == "control"]

    def refuse(self, key: str, message: dict[str, Any]) -> None:
        """Answer whoever comes, or has come, for `key` with `message`."""
        with self._lock:
            self._refused[key] = pack_message(message)
            while len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
            late = [place for place in self._parked if place[0] == key]
            for place in late:
                _turn_away(self._parked.pop(place).sock, self._refused[key])

    def welcome(self, key: str) -> None:
        """Forget an earlier `refuse`."""
        with self._lock:
            self._refused.pop(key, None)

    def _talk(self, guest: Guest) -> Talk[None]:
        assert self._credentials is not None
        yield from auth.server(auth.PEER, self._credentials)
        guest.parcel = _checked_topic((yield from read_message(MAX_TOPIC)))
        guest.stranger = False
        guest.kept = True

    def _on_leave(self, guest: Guest) -> None:
        if not guest.kept:
            return
        topic = guest.parcel
        place = (topic["key"], topic["from"], topic["channel"])
        with self._lock:
            refusal = self._refused.get(topic["key"])
            if refusal is not None:
                _turn_away(guest.sock, refusal)
                return
            stale = self._parked.pop(place, None)
            self._parked[place] = Parked(guest.sock, topic, peer_pid(guest.sock))
            if stale is not None:
                stale.sock.close()
            for watcher in self._watchers:
                with contextlib.suppress(BlockingIOError):
                    os.write(watcher, b"x")


def peer_pid(sock: socket.socket) -> int:
    """The process at the other end of a Unix socket, in this process's numbering; 0 if unknown."""
    if sock.family != socket.AF_UNIX:
        return 0
    return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def _turn_away(sock: socket.socket, message: bytes) -> None:
    with contextlib.suppress(OSError):
        sock.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    sock.close()


def _checked_topic(topic: dict[str, Any]) -> dict[str, Any]:
    shapes: dict[str, Callable[[Any], bool]] = {
        "key": lambda v: isinstance(v, str) and len(v) <= 64,
        "parent": lambda v: isinstance(v, str) and len(v) <= 64,
        "from": lambda v: isinstance(v, int) and v >= 0,
        "channel": lambda v: v in CHANNELS,
        "name": lambda v: isinstance(v, str),
        "ranks": lambda v: isinstance(v, list) and all(isinstance(r, int) for r in v),
        "agree": lambda v: isinstance(v, dict),
        "reason": lambda v: isinstance(v, str),
    }
    if "error" in topic:
        raise ValueError(f"that rank gave up before it had said what it came for: {topic['error']!s:.500}")
    for name, fits in shapes.items():
        if not fits(topic.get(name)):
            raise ValueError(
                f"it belongs to this job, but its first message has no proper {name!r}; do all ranks run the "
                "same hcomm?"
            )
    return topic
