"""Getting to the job's store: hosting it on rank 0, joining it on the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from hcomm.bootstrap import launcher, meeting_file
from hcomm.bootstrap.auth import Credentials, derive
from hcomm.bootstrap.launcher import Launch
from hcomm.bootstrap.resolve import Resolver
from hcomm.bootstrap.settings import BootstrapSettings
from hcomm.bootstrap.store import (
    HandedStore,
    Patience,
    Store,
    TcpStore,
    TorchStore,
    Unreachable,
    connect,
    connect_once,
    torch_store_hint,
)
from hcomm.bootstrap.store_server import PortTaken, StoreServer, listening_socket
from hcomm.errors import AuthenticationError, LaunchError, RendezvousError

#: Seconds for which rank 0 tries to get a port that another program holds.
PORT_PATIENCE = 1.5
#: Key in a store that was handed over: arrivals of all generations.
TICKETS = "tickets"


@dataclass
class Joined:
    """The way to the store.

    Attributes:
        store: the client of this rank.
        server: what it hosts, if it hosts the store.
        key: secret that all ranks of the job have in common.
        job: name of the job.
        file: the invitation to remove, if one was written.
        before_refusal: done by the rank that collects, before it tells the others what is wrong.
    """

    store: Store
    server: StoreServer | None
    key: bytes
    job: str
    file: tuple[str, meeting_file.Invitation] | None = None
    before_refusal: Callable[[], None] = lambda: None

    def forget_file(self) -> None:
        """Remove the invitation."""
        if self.file is not None:
            meeting_file.remove(*self.file)
            self.file = None


def job_name(launch: Launch, settings: BootstrapSettings) -> str:
    """What tells this job from others.

    Raises:
        LaunchError: nothing does, and the way of meeting needs it.
    """
    place = launch.meeting
    if settings.job_id:
        return settings.job_id
    if place.kind == launcher.FILE and not place.job:
        raise LaunchError(
            "MASTER_PORT=0 lets the ranks of one host meet without a port number, but then HCOMM_JOB_ID "
            "must name the job, "
            "the same on all ranks and different for every job on this host"
        )
    return place.job or f"port {place.port}"


def join(
    launch: Launch, settings: BootstrapSettings, generation: int, patience: Patience, resolver: Resolver
) -> Joined:
    """Reach the store.

    Args:
        launch: who this is, and where to meet.
        settings: secret and job name.
        generation: how often this job was initialised in this process, from 1.
        patience: until when, and whom to tell.
        resolver: name lookup.

    Raises:
        RendezvousError: nobody answers in time, somebody else does, or (rank 0) the port is taken.
        AuthenticationError: the other side has another secret.
        LaunchError: the job needs a name.
    """
    place = launch.meeting
    job = job_name(launch, settings)
    key = derive("hcomm store", (settings.job_secret or "").encode(), job.encode())
    if place.kind == launcher.AGENT:
        prefix = f"hcomm/{job}/{generation}/"
        left = max(1.0, patience.deadline - time.monotonic())
        return Joined(TorchStore(place.host, place.port, prefix, left), None, key, job)
    if place.kind == launcher.FILE:
        return _join_by_file(launch, job, key, generation, patience, resolver)
    credentials = Credentials(key, job_digest(job), generation)
    if launch.rank != 0:
        store = connect(place.host, place.port, credentials, patience, resolver, launch.rank)
        return Joined(store, None, key, job)
    found = _host(launch, credentials, patience, resolver)
    if isinstance(found, TcpStore):
        # Somebody of this very job is rank 0 already: joining it lets everybody hear of that.
        return Joined(found, None, key, job)
    return Joined(_own_store(found, credentials, patience), found, key, job)


def join_handed(launch: Launch, settings: BootstrapSettings, store: HandedStore) -> tuple[Joined, int]:
    """Meet at a store that somebody else has connected.

    Such a store outlives an init and is met again by the next, so arrivals are counted in it: each `world_size` of
    them are one generation, with keys of its own.

    Returns:
        The way to the store, and the generation, from 1.
    """
    job = settings.job_id or launch.meeting.job
    key = derive("hcomm store", (settings.job_secret or "").encode(), job.encode())
    size = launch.world_size
    generation = (store.add(TICKETS, 1) - 1) // size + 1

    def close_generation() -> None:
        # Whoever tries again begins with a new one, though ranks were missing.
        store.add(TICKETS, -store.add(TICKETS, 0) % size)

    below = store.below(f"{generation}/")
    return Joined(below, None, key, job, before_refusal=close_generation), generation


def job_digest(job: str) -> bytes:
    """16 bytes that name the job in handshakes."""
    return derive("hcomm job", job.encode())[:16]


def _own_store(server: StoreServer, credentials: Credentials, patience: Patience) -> TcpStore:
    try:
        return connect(server.loopback, server.port, credentials, patience)
    except BaseException:
        server.close()
        raise


def _host(
    launch: Launch, credentials: Credentials, patience: Patience, resolver: Resolver
) -> StoreServer | TcpStore:
    place = launch.meeting
    until = min(patience.deadline, time.monotonic() + PORT_PATIENCE)
    while True:
        try:
            sock = listening_socket(place.host, place.port, patience.deadline, resolver)
            return StoreServer(sock, credentials, launch.world_size)
        except PortTaken:
            other = _other_rank_zero(launch, credentials, resolver)
            if other is not None:
                return other
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            raise RendezvousError(
                f"rank 0 cannot host the store at {place.host}:{place.port}: port {place.port} is taken "
                "by another program. "
                "Choose another MASTER_PORT" + torch_store_hint()
            ) from None
        except OSError as error:
            raise RendezvousError(f"rank 0 cannot listen at {place.host}:{place.port}: {error}") from error


def _other_rank_zero(launch: Launch, credentials: Credentials, resolver: Resolver) -> TcpStore | None:
    place, deadline = launch.meeting, time.monotonic() + 3.0
    try:
        return connect_once(place.host, place.port, credentials, deadline, resolver, greeting=2.5)
    except (Unreachable, RendezvousError, AuthenticationError):
        return None


def _join_by_file(
    launch: Launch, job: str, key: bytes, generation: int, patience: Patience, resolver: Resolver
) -> Joined:
    if launch.local_size is not None and launch.local_size < launch.world_size:
        raise LaunchError(
            f"{launch.source}: the job spans several hosts ({launch.local_size} of {launch.world_size} "
            "ranks are on this one). "
            "Set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, on all ranks"
        )
    path = meeting_file.path_of(job, generation)
    if launch.rank == 0:
        server_socket = listening_socket("127.0.0.1", 0, patience.deadline)
        invitation = meeting_file.write(path, "127.0.0.1", server_socket.getsockname()[1])
        credentials = _invited(key, job, generation, invitation)
        server = StoreServer(server_socket, credentials, launch.world_size)
        try:
            store = _own_store(server, credentials, patience)
        except BaseException:
            meeting_file.remove(path, invitation)
            raise
        return Joined(store, server, credentials.key, job, (path, invitation))
    while True:
        found = meeting_file.read(path)
        if found is not None:
            credentials = _invited(key, job, generation, found)
            try:
                store = connect_once(found.host, found.port, credentials, time.monotonic() + 5.0, resolver)
                return Joined(store, None, credentials.key, job)
            except (Unreachable, RendezvousError, AuthenticationError):
                pass  # left behind by a job that was killed: rank 0 of ours will replace it
        if time.monotonic() > patience.deadline:
            raise RendezvousError(
                f"rank 0 of the job {job!r} did not come within {time.monotonic() - patience.started:.0f} s "
                f"(waited for {os.path.basename(path)} in {os.path.dirname(path)})"
            )
        patience.complain(f"still waiting for rank 0 of the job {job!r} on this host")
        time.sleep(0.004)


def _invited(key: bytes, job: str, generation: int, invitation: meeting_file.Invitation) -> Credentials:
    return Credentials(derive("hcomm file", key, invitation.secret.encode()), job_digest(job), generation)
