"""The connections of a wire-up: who calls whom, over what, and what they say first."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hcomm.bootstrap import auth
from hcomm.bootstrap.auth import Credentials
from hcomm.bootstrap.gather import Gathering, Late
from hcomm.bootstrap.listener import Listener, Parked, peer_pid
from hcomm.bootstrap.probing import Link, complaint, hear
from hcomm.bootstrap.settings import Probes
from hcomm.bootstrap.talk import Connect, Conversation, Peek, Talk, pack_message, send_message
from hcomm.bootstrap.vigil import Vigil
from hcomm.errors import CollectiveMismatch, HcommError, InitError


@dataclass(frozen=True)
class Contact:
    """How a rank of the world is reached, and who it is.

    Attributes:
        rank: global rank.
        local_rank: rank among the ranks of its node.
        hostname: its host's name.
        boot_id: the kernel's boot id.
        pid: its process, in its own numbering.
        address: IPv4 or IPv6 address of its listener.
        port: TCP port of its listener.
        unix_name: name of its abstract Unix socket.
        netns: inode of its network namespace; 0 if hidden.
        cpus: the processors that it may use, as bits in hexadecimal; "" if unknown.
    """

    rank: int
    local_rank: int
    hostname: str
    boot_id: str
    pid: int
    address: str
    port: int
    unix_name: str
    netns: int = 0
    cpus: str = ""


@dataclass(frozen=True)
class Home:
    """What wire-up needs to know about this process.

    Attributes:
        rank: global rank.
        contacts: how each rank of the world is reached.
        listener: where this one is reached.
        credentials: of the job's peers.
        probes: the native functions.
    """

    rank: int
    contacts: Sequence[Contact]
    listener: Listener
    credentials: Credentials
    probes: Probes


@dataclass(frozen=True)
class Group:
    """A group to be wired.

    Attributes:
        ranks: global ranks in group order.
        uid: id of its communicator.
        parent: id of the communicator it is made from; 0 for the world.
        transport: `auto`, `shm` or `tcp`.
        buffer_bytes: bytes of shared buffer per rank.
        agree: more settings that all members must have alike.
        name: what tells it from other groups of the same ranks; "" if it was given none.
    """

    ranks: tuple[int, ...]
    uid: int
    parent: int
    transport: str
    buffer_bytes: int
    agree: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def title(self) -> str:
        """The group in words."""
        if not self.parent:
            return "the world"
        return _title(self.ranks, self.name)

    def settings(self) -> dict[str, Any]:
        """What members compare."""
        mine = {**self.agree, "transport": self.transport, "buffer_bytes": self.buffer_bytes}
        settled: dict[str, Any] = json.loads(json.dumps(mine))  # as a peer receives it: tuples are lists
        return settled


class Lines:
    """Opens and accepts the connections of one group.

    Args:
        home: this process.
        group: the group.
        deadline: on `time.monotonic`.
        vigil: knows who is gone.
    """

    def __init__(self, home: Home, group: Group, deadline: float, vigil: Vigil) -> None:
        self._home = home
        self._group = group
        self._deadline = deadline
        self._vigil = vigil
        self._key = f"{group.uid:016x}"
        self._parent = f"{group.parent:016x}"
        self._sockets: dict[tuple[int, str], socket.socket] = {}
        self._links: dict[int, Link] = {}
        self._closed = False
        home.listener.welcome(self._key)

    def control(self) -> dict[int, Link]:
        """A control link to every other member.

        Raises:
            CollectiveMismatch: a member wants another group, or this one with other settings.
            InitError: members did not come in time; says which, and what they wait for instead.
            PeerFailed: a member cannot be reached or left.
        """
        others = [rank for rank in self._group.ranks if rank != self._home.rank]
        callers = {rank for rank in others if rank > self._home.rank}
        with self._home.listener.watching() as watch:
            gathering: Gathering[Any] = Gathering(
                self._deadline,
                {(rank, "control") for rank in others},
                lambda: self._answer(gathering, callers),
                watch,
                self._vigil.look,
            )
            # A peer that has come may still find out that the group is in dispute: listen while waiting for others.
            gathering.ended = lambda place: self._listen_on(gathering, place)
            try:
                for rank in others:
                    if rank < self._home.rank:
                        self._call(gathering, rank)
                gathering.run()
            except Late as late:
                raise InitError(self._who_is_late(late)) from None
            finally:
                gathering.close()
        return self._links

    def data(self, outside: set[int]) -> None:
        """Two TCP connections to each rank of `outside`.

        Raises:
            PeerFailed: a member cannot be reached or left.
            Late: at the deadline.
        """
        expected = {(rank, channel) for rank in outside for channel in ("coll", "p2p")}
        waiting = {place for place in expected if place[0] > self._home.rank}
        with self._home.listener.watching() as watch:
            gathering: Gathering[Any] = Gathering(
                self._deadline,
                expected,
                lambda: self._accept_data(gathering, waiting),
                watch,
                self._vigil.look,
            )
            try:
                for rank, link in self._links.items():
                    gathering.add((rank, "watch"), Conversation(link.sock, _watch()))
                for rank, channel in expected - waiting:
                    sock, address = self._tcp(rank)
                    self._sockets[rank, channel] = sock
                    gathering.add((rank, channel), Conversation(sock, self._dial(rank, channel, address, "")))
                gathering.run()
            finally:
                gathering.close()

    def detach(self) -> dict[str, dict[int, int]]:
        """Give all descriptors away: by channel, by rank."""
        taken: dict[str, dict[int, int]] = {"control": {}, "coll": {}, "p2p": {}}
        for (rank, channel), sock in self._sockets.items():
            taken[channel][rank] = sock.detach()
        self._sockets.clear()
        return taken

    def abandon(self, message: dict[str, Any]) -> None:
        """Tell everybody who is connected, or comes later, and close."""
        packed = pack_message(message)
        for (_, channel), sock in self._sockets.items():
            if channel == "control":
                _last_words(sock, packed)
            sock.close()
        self._sockets.clear()
        self._home.listener.refuse(self._key, message)

    def heed(self, seconds: float) -> None:
        """Look for a complaint of a peer for a while: it says more than the closed connection that follows it.

        Raises:
            HcommError: the complaint.
        """
        watches = {rank: Conversation(link.sock, _watch()) for rank, link in self._links.items()}
        poll = select.poll()
        for watch in watches.values():
            poll.register(watch.sock, select.POLLIN)
        until = time.monotonic() + seconds
        while watches and time.monotonic() < until:
            for rank, watch in list(watches.items()):
                if watch.advance():
                    if isinstance(watch.error, HcommError):
                        raise watch.error
                    poll.unregister(watch.sock)
                    del watches[rank]
            poll.poll(max(0.0, until - time.monotonic()) * 1000)

    def _call(self, gathering: Gathering[Any], rank: int) -> None:
        sock, reason = self._unix(rank)
        address = None
        if sock is None:
            sock, address = self._tcp(rank)
        self._sockets[rank, "control"] = sock
        self._links[rank] = Link(sock, peer_pid(sock), reason)
        gathering.add((rank, "control"), Conversation(sock, self._dial(rank, "control", address, reason)))

    def _unix(self, rank: int) -> tuple[socket.socket | None, str]:
        if self._group.transport == "tcp":
            return None, ""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect("\0" + self._home.contacts[rank].unix_name)
        except OSError as error:
            sock.close()
            return None, self._why_no_unix(rank, os.strerror(error.errno or 0))
        return sock, ""

    def _why_no_unix(self, rank: int, text: str) -> str:
        mine, theirs = self._home.contacts[self._home.rank], self._home.contacts[rank]
        if mine.boot_id != theirs.boot_id:
            return f"ranks {mine.rank} and {rank} are on different hosts ({mine.hostname}, {theirs.hostname})"
        return f"rank {mine.rank} cannot reach rank {rank}'s Unix socket ({text}): another network namespace?"

    def _tcp(self, rank: int) -> tuple[socket.socket, Any]:
        contact = self._home.contacts[rank]
        family, _, _, _, address = socket.getaddrinfo(
            contact.address, contact.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock, address

    def _dial(self, rank: int, channel: str, address: Any, reason: str) -> Talk[dict[str, Any]]:
        if address is not None:
            try:
                yield Connect(address)
            except OSError as error:
                if self._vigil.gone({rank}) or (
                    self._group.parent and isinstance(error, ConnectionRefusedError)
                ):
                    raise self._vigil.error([rank]) from error
                text = os.strerror(error.errno or 0)
                raise InitError(
                    f"rank {self._home.rank} cannot connect to rank {rank} at the address it advertised, "
                    f"{address[0]} port {address[1]}: {text}. "
                    "Either it has ended, or that is the wrong interface: then set HCOMM_SOCKET_IFNAME"
                ) from error
        yield from auth.client(auth.PEER, self._home.credentials)
        yield from send_message(
            {
                "key": self._key,
                "parent": self._parent,
                "from": self._home.rank,
                "channel": channel,
                "name": self._group.name,
                "ranks": list(self._group.ranks),
                "agree": self._group.settings(),
                "reason": reason,
            }
        )
        return (yield from hear())

    def _answer(self, gathering: Gathering[Any], callers: set[int]) -> None:
        listener = self._home.listener
        for rank in sorted(callers):
            parked = listener.pick(self._key, rank, "control")
            if parked is None:
                other = listener.pick_other(self._key, self._parent, rank, self._group.name)
                if other is not None:
                    self._object(other, self._other_group(rank, other))
                continue
            callers.discard(rank)
            if parked.topic["agree"] != self._group.settings():
                self._object(parked, self._other_settings(rank, parked.topic["agree"]))
            self._sockets[rank, "control"] = parked.sock
            self._links[rank] = Link(parked.sock, parked.pid, parked.topic["reason"])
            gathering.add((rank, "control"), Conversation(parked.sock, send_message({"go": True})))

    def _listen_on(self, gathering: Gathering[Any], place: tuple[int, str]) -> None:
        rank, channel = place
        if channel == "control":
            gathering.add((rank, "watch"), Conversation(self._sockets[rank, "control"], _watch()))

    def _accept_data(self, gathering: Gathering[Any], waiting: set[tuple[int, str]]) -> None:
        for place in sorted(waiting):
            parked = self._home.listener.pick(self._key, *place)
            if parked is not None:
                waiting.discard(place)
                self._sockets[place] = parked.sock
                gathering.add(place, Conversation(parked.sock, send_message({"go": True})))

    def _object(self, parked: Parked, error: CollectiveMismatch) -> None:
        _last_words(parked.sock, pack_message(complaint(error)))
        parked.sock.close()
        raise error

    def _other_group(self, rank: int, parked: Parked) -> CollectiveMismatch:
        mine, theirs = list(self._group.ranks), parked.topic["ranks"]
        if mine == theirs:
            text = (
                f"ranks {self._home.rank} and {rank} have not made {self._group.title()} equally often before"
            )
        else:
            text = f"ranks disagree about the group: rank {self._home.rank} makes {mine}, rank {rank} makes {theirs}"
        return CollectiveMismatch(
            f"{text}. All members must name the same ranks in the same order, and make their groups in "
            "the same order",
            tuple(sorted((self._home.rank, rank))),
        )

    def _other_settings(self, rank: int, theirs: dict[str, Any]) -> CollectiveMismatch:
        mine = self._group.settings()
        names = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        different = ", ".join(
            f"{name} is {mine.get(name)!r} on rank {self._home.rank} and {theirs.get(name)!r} on rank {rank}"
            for name in names
        )
        return CollectiveMismatch(
            f"members of {self._group.title()} use different settings: {different}",
            tuple(sorted((self._home.rank, rank))),
        )

    def _who_is_late(self, late: Late) -> str:
        peers = sorted({place[0] for place in late.peers})
        text = f"rank {self._home.rank}: ranks {peers} did not come to {self._group.title()} in time"
        for topic in self._home.listener.others(self._key):
            text += f"; rank {topic['from']} waits for this rank in {_title(topic['ranks'], topic['name'])}"
        return text


def _title(ranks: Sequence[int], name: str) -> str:
    return f"the group {list(ranks)}" + (f" named {name!r}" if name else "")


def _last_words(sock: socket.socket, packed: bytes) -> None:
    """Send a message on a connection that is closed next.

    What was not read is read first: otherwise TCP resets the connection, and the message may be lost.
    """
    with contextlib.suppress(OSError):
        sock.send(packed, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        while sock.recv(65536, socket.MSG_DONTWAIT):
            pass


def _watch() -> Talk[None]:
    """Waits for the peer's next message; if it is a complaint, raises it."""
    head = yield Peek(12)
    if head[4:] == b'{"error"':
        yield from hear()
