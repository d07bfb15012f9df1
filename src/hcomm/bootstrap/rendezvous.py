"""`start`: from what the launcher says to a world whose members know each other."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hcomm.bootstrap import launcher, mapping
from hcomm.bootstrap.auth import Credentials, derive
from hcomm.bootstrap.dialing import Contact, Group, Home
from hcomm.bootstrap.launcher import Launch
from hcomm.bootstrap.listener import Listener
from hcomm.bootstrap.mapping import Census, Record
from hcomm.bootstrap.meeting import Joined, job_digest, job_name, join, join_handed
from hcomm.bootstrap.resolve import Resolver, facing, is_loopback, means_this_host, resolve, system_resolver
from hcomm.bootstrap.settings import BootstrapSettings, Probes
from hcomm.bootstrap.store import HandedStore, Patience, TcpStore
from hcomm.bootstrap.wireup import Wiring, wire
from hcomm.errors import InitError
from hcomm.topology import interfaces

#: The host to listen on when there is nobody else.
ALONE = "127.0.0.1"
#: Seconds that connecting may take at least, when all ranks have come at the last moment.
WIRING = 10.0

#: Groups that can only be told apart by their order: parent, members, name.
_Kind = tuple[int, tuple[int, ...], str]

_generations: dict[tuple[str, str, int, str], int] = {}


class World:
    """All ranks of a job, as this one knows them.

    Attributes:
        rank: global rank of this process.
        size: number of ranks.
        local_rank: rank among the ranks of its node.
        local_size: ranks of its node.
        uid: 64-bit id of this init of the job, the same on all ranks.
        contacts: who each rank is and how it is reached.
        launch: what the launcher said.
        address: what this rank advertises.
    """

    def __init__(
        self,
        launch: Launch,
        settings: BootstrapSettings,
        home: Home,
        uid: int,
        size_of_node: int,
        joined: Joined | None,
        deadline: float,
    ) -> None:
        self.rank = launch.rank
        self.size = launch.world_size
        self.local_rank = home.contacts[launch.rank].local_rank
        self.local_size = size_of_node
        self.uid = uid
        self.contacts = home.contacts
        self.launch = launch
        self.address = home.contacts[launch.rank].address
        self._settings = settings
        self._home = home
        self._joined = joined
        self._pid = os.getpid()
        self._made: dict[_Kind, int] = {}
        self._making: dict[_Kind, threading.Lock] = {}
        self._deadline = deadline

    def wire_world(self, agree: Mapping[str, Any] | None = None) -> Wiring:
        """Connect all ranks; called once, by all.

        Args:
            agree: settings that must be the same on all ranks, by name; plain JSON values.

        Raises:
            InitError, CollectiveMismatch, TransportUnavailable: see `wireup.wire`.
        """
        group = Group(
            ranks=tuple(range(self.size)),
            uid=self.uid,
            parent=0,
            transport=self._settings.transport,
            buffer_bytes=self._settings.buffer_bytes,
            agree=dict(agree or {}),
        )
        wiring = wire(self._home, group, self._deadline)
        if self._joined is not None:
            self._joined.forget_file()
        return wiring

    def wire_group(
        self,
        parent_uid: int,
        ranks: Sequence[int],
        *,
        transport: str | None = None,
        buffer_bytes: int | None = None,
        timeout: float | None = None,
        agree: Mapping[str, Any] | None = None,
        name: str = "",
        lost: Callable[[], Iterable[int]] = lambda: (),
    ) -> Wiring:
        """Connect the members of a new group; called by its members only.

        Args:
            parent_uid: id of the communicator that it is made from.
            ranks: global ranks in group order, this one among them, without duplicates.
            transport: `auto`, `shm` or `tcp`; None: as the world.
            buffer_bytes: bytes of shared buffer per rank; None: as the world.
            timeout: seconds; None: the init timeout.
            agree: further settings that must be the same on all members; plain JSON values.
            name: tells groups of the same ranks apart that are made at the same time, in several threads.
            lost: global ranks that are known to be gone; asked again and again while members are missing.

        Raises:
            ValueError: `ranks` has duplicates, foreign ranks, or lacks this one.
            InitError, PeerLost, CollectiveMismatch, TransportUnavailable: see `wireup.wire`.
        """
        members = tuple(ranks)
        if len(set(members)) != len(members) or self.rank not in members:
            raise ValueError(
                f"rank {self.rank}: ranks must be distinct and contain the caller, found {list(members)}"
            )
        if any(not 0 <= rank < self.size for rank in members):
            raise ValueError(f"ranks must be within 0..{self.size - 1}, found {list(members)}")
        deadline = time.monotonic() + (self._settings.init_timeout if timeout is None else timeout)
        kind = parent_uid, members, name
        group = Group(
            ranks=members,
            uid=0,
            parent=parent_uid,
            transport=transport or self._settings.transport,
            buffer_bytes=buffer_bytes or self._settings.buffer_bytes,
            agree=dict(agree or {}),
            name=name,
        )
        making = self._making.setdefault(kind, threading.Lock())
        if not making.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise InitError(
                f"rank {self.rank}: another thread was still making {group.title()} at the deadline"
            )
        try:
            count = self._made.get(kind, 0)
            wiring = wire(self._home, replace(group, uid=self._group_uid(kind, count)), deadline, lost)
            self._made[kind] = count + 1
        finally:
            making.release()
        return wiring

    def _group_uid(self, kind: _Kind, count: int) -> int:
        parent, members, name = kind
        numbers = struct.pack(f"<4Q{len(members)}q", self.uid, parent, count, len(members), *members)
        return int.from_bytes(hashlib.sha256(b"hcomm group" + numbers + name.encode()).digest()[:8], "little")

    def close(self) -> None:
        """Stop listening. In a forked child: nothing, for all of it is the parent's."""
        if self._pid != os.getpid():
            return
        self._home.listener.close()
        if self._joined is not None:
            _leave(self._joined, patience=5.0)
            self._joined = None


def start(
    launch: Launch,
    settings: BootstrapSettings,
    probes: Probes,
    notify: Callable[[str], None],
    *,
    version: str = "",
    resolver: Resolver = system_resolver,
    store: HandedStore | None = None,
) -> World:
    """Meet the other ranks, check that all fit together, and learn how to reach them.

    Args:
        launch: who this process is and where the ranks meet.
        settings: of the job.
        probes: the native functions for wire-up.
        notify: takes lines for the user while ranks are missing.
        version: hcomm's version, which all ranks must share.
        resolver: name lookup.
        store: where to meet when somebody else has connected it (`launch.meeting.kind` is `handed`).

    Raises:
        MappingError: ranks are claimed twice, missing, out of range, or disagree.
        RendezvousError, AuthenticationError, LaunchError: see `meeting.join`.
        ConfigError: HCOMM_SOCKET_IFNAME names no interface.
    """
    allowed = interfaces.select(settings.socket_ifname)
    if launch.world_size == 1:
        return _alone(launch, settings, probes)
    patience = Patience(time.monotonic() + settings.init_timeout, notify, settings.notice_every)
    if store is not None:
        joined, generation = join_handed(launch, settings, store)
        return _meet(launch, settings, probes, joined, allowed, generation, patience, version, resolver)
    place = launch.meeting
    spot = (place.kind, place.host, place.port, job_name(launch, settings))
    generation = _generations.get(spot, 0) + 1
    if place.kind == launcher.AGENT:
        # The agent's store keeps what a failed attempt has left, so an attempt must not meet it; our own goes with it.
        _generations[spot] = generation
    joined = join(launch, settings, generation, patience, resolver)
    world = _meet(launch, settings, probes, joined, allowed, generation, patience, version, resolver)
    _generations[spot] = generation
    return world


def _meet(
    launch: Launch,
    settings: BootstrapSettings,
    probes: Probes,
    joined: Joined,
    allowed: list[interfaces.Interface],
    generation: int,
    patience: Patience,
    version: str,
    resolver: Resolver,
) -> World:
    """Compare what the ranks say at the store, and get ready to be called by them."""
    listener = None
    try:
        listener = _listen(launch, settings, joined, allowed, patience, resolver)
        record = _record(launch, settings, listener, version)
        verdict = _agree_on_mapping(launch, joined, record, patience)
    except BaseException:
        if listener is not None:
            listener.close()
        _leave(joined, patience=3.0)
        raise
    credentials = Credentials(
        derive("hcomm peers", joined.key, bytes.fromhex(verdict["nonce"])), job_digest(joined.job), generation
    )
    listener.open(credentials)
    contacts, size = _contacts(verdict["records"], launch.rank)
    joined.store.close()
    if joined.server is not None:
        joined.server.retire(launch.world_size, patience.deadline)
    home = Home(launch.rank, contacts, listener, credentials, probes)
    return World(
        launch,
        settings,
        home,
        int(verdict["uid"]),
        size,
        joined,
        max(patience.deadline, time.monotonic() + WIRING),
    )


def _agree_on_mapping(launch: Launch, joined: Joined, record: Record, patience: Patience) -> dict[str, Any]:
    census = Census(joined.store, record, patience.deadline, patience.complain)
    arrival = census.arrive()
    foreign = launch.meeting.kind in (launcher.AGENT, launcher.HANDED)
    collects = arrival == 1 if foreign else joined.server is not None
    if collects:
        extra = {"nonce": secrets.token_hex(32), "uid": secrets.randbits(63) | 1}
        census.collect(extra, joined.before_refusal)
    try:
        return census.verdict()
    finally:
        if joined.server is not None:
            joined.server.retire(max(1, len(census.records)), time.monotonic() + 3)


def _leave(joined: Joined, patience: float) -> None:
    joined.store.close()
    if joined.server is not None:
        joined.server.close(patience)
    joined.forget_file()


def _record(launch: Launch, settings: BootstrapSettings, listener: Listener, version: str) -> Record:
    return Record(
        rank=launch.rank,
        world_size=launch.world_size,
        local_rank=launch.local_rank,
        local_size=launch.local_size,
        node=launch.node,
        hostname=mapping.hostname(),
        boot_id=mapping.boot_id(),
        netns=mapping.network_namespace(),
        pid=os.getpid(),
        launcher=launch.source,
        address=listener.address,
        port=listener.port,
        unix_name=listener.unix_name,
        version=version,
        agree={"HCOMM_TRANSPORT": settings.transport, "HCOMM_BUFFER_SIZE": settings.buffer_bytes},
        cpus=mapping.allowed_cpus(),
    )


def _contacts(records: list[Record], me: int) -> tuple[list[Contact], int]:
    local: dict[int, int] = {}
    size = 1
    for members in mapping.nodes(records):
        for index, record in enumerate(members):
            local[record.rank] = index if record.local_rank is None else record.local_rank
            if record.rank == me:
                size = record.local_size or len(members)
    contacts = [
        Contact(
            r.rank,
            local[r.rank],
            r.hostname,
            r.boot_id,
            r.pid,
            r.address,
            r.port,
            r.unix_name,
            r.netns,
            r.cpus,
        )
        for r in records
    ]
    return contacts, size


def _alone(launch: Launch, settings: BootstrapSettings, probes: Probes) -> World:
    listener = Listener((socket.AF_INET, (ALONE, 0)))
    credentials = Credentials(secrets.token_bytes(32), job_digest("alone"), 1)
    contacts, _ = _contacts([_record(launch, settings, listener, "")], 0)
    listener.open(credentials)
    home = Home(0, contacts, listener, credentials, probes)
    return World(
        launch,
        settings,
        home,
        secrets.randbits(63) | 1,
        launch.local_size or 1,
        None,
        time.monotonic() + WIRING,
    )


def _listen(
    launch: Launch,
    settings: BootstrapSettings,
    joined: Joined,
    allowed: list[interfaces.Interface],
    patience: Patience,
    resolver: Resolver,
) -> Listener:
    """Listen at the address that routes to the master, or on the interface that was asked for."""
    place = launch.meeting
    preferred = None
    if isinstance(joined.store, TcpStore) and joined.server is None:
        preferred = joined.store.local_address
    elif place.kind != launcher.FILE and place.host:
        try:
            preferred = facing(resolve(place.host, place.port, patience.deadline, resolver)[0])
        except OSError:
            preferred = None
    elif joined.server is not None:
        preferred = joined.server.loopback
    on_purpose = place.kind == launcher.FILE or (bool(place.host) and means_this_host(place.host))
    if preferred is not None and is_loopback(preferred) and not on_purpose:
        # The master's name is a loopback address here (a common line in /etc/hosts); the others need a real
        # one.
        preferred = interfaces.outward_address() or preferred
    address = interfaces.choose_address(allowed, preferred, restricted=settings.socket_ifname is not None)
    family, _, _, _, endpoint = socket.getaddrinfo(
        address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
    )[0]
    return Listener((family, endpoint))
