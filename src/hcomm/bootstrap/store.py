"""The meeting point of a job: a small table of strings that all ranks can reach.

`TcpStore` talks to the server that rank 0 hosts (store_server.py), `TorchStore` to the one that torchrun's
agent already runs, `HandedStore` to one that somebody else has connected.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hcomm.bootstrap import auth
from hcomm.bootstrap.auth import Credentials, NotHcomm, WrongGeneration
from hcomm.bootstrap.resolve import Endpoint, Resolver, resolve, system_resolver
from hcomm.bootstrap.talk import Connect, Talk, read_message, run, send_message
from hcomm.errors import AuthenticationError, RendezvousError

#: Seconds that a server may take to answer the first bytes before it counts as something else than hcomm.
GREETING = 4.0
#: Seconds that one attempt to connect may take.
ATTEMPT = 5.0


class Store(ABC):
    """A table of strings shared by all ranks of a job."""

    @abstractmethod
    def set(self, key: str, value: str) -> None:
        """Put `value` under `key`."""

    @abstractmethod
    def try_get(self, key: str, wait: float) -> str | None:
        """The value under `key`, waiting at most `wait` seconds for it; None if there is none."""

    @abstractmethod
    def add(self, key: str, amount: int) -> int:
        """Add to a counter (from 0); the new value."""

    @abstractmethod
    def close(self) -> None:
        """Leave the store."""

    def get(
        self, key: str, deadline: float, on_wait: Callable[[], None] | None = None, every: float = 1.0
    ) -> str:
        """The value under `key`; `on_wait` is called every `every` seconds while it is not there.

        Raises:
            TimeoutError: at `deadline` (`time.monotonic`).
        """
        while True:
            left = deadline - time.monotonic()
            value = self.try_get(key, max(0.0, min(left, every)))
            if value is not None:
                return value
            if deadline - time.monotonic() <= 0:
                raise TimeoutError(f"nobody put {key!r} into the store in time")
            if on_wait is not None:
                on_wait()


class TcpStore(Store):
    """A client of `StoreServer`.

    Args:
        sock: connected and authenticated.
        place: where it is connected to, for messages.
    """

    def __init__(self, sock: socket.socket, place: str) -> None:
        self._sock = sock
        self.place = place

    @property
    def local_address(self) -> str:
        """The address of this host that faces the server."""
        return str(self._sock.getsockname()[0])

    def set(self, key: str, value: str) -> None:
        self._ask({"op": "set", "key": key, "value": value})

    def try_get(self, key: str, wait: float) -> str | None:
        value = self._ask({"op": "get", "key": key, "wait": wait}, wait).get("value")
        return value if isinstance(value, str) else None

    def add(self, key: str, amount: int) -> int:
        return int(self._ask({"op": "add", "key": key, "amount": amount})["value"])

    def close(self) -> None:
        with contextlib.suppress(OSError):
            run(self._sock, send_message({"op": "bye"}), time.monotonic() + 1)
        self._sock.close()

    def _ask(self, request: dict[str, Any], wait: float = 0.0) -> dict[str, Any]:
        try:
            return run(self._sock, _question(request), time.monotonic() + wait + 30)
        except (OSError, ValueError) as error:
            raise RendezvousError(
                f"lost rank 0, which hosts the meeting point at {self.place}: {error}. "
                "Rank 0 probably failed; its own output says why"
            ) from error


def _question(request: dict[str, Any]) -> Talk[dict[str, Any]]:
    yield from send_message(request)
    return (yield from read_message())


class HandedStore(Store):
    """A store of torch.distributed that somebody hands in.

    Args:
        store: any `torch.distributed.Store`.
        prefix: put before every key.
        place: where it is, for messages.
    """

    def __init__(self, store: Any, prefix: str, place: str) -> None:
        self._store = store
        self._prefix = prefix
        self.place = place

    def below(self, prefix: str) -> HandedStore:
        """The keys of this store that begin with `prefix`."""
        return HandedStore(self._store, self._prefix + prefix, self.place)

    def set(self, key: str, value: str) -> None:
        self._store.set(self._prefix + key, value)

    def try_get(self, key: str, wait: float) -> str | None:
        until = time.monotonic() + wait
        pause = 0.0005
        while not self._store.check([self._prefix + key]):
            if time.monotonic() >= until:
                return None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        return bytes(self._store.get(self._prefix + key)).decode()

    def add(self, key: str, amount: int) -> int:
        return int(self._store.add(self._prefix + key, amount))

    def close(self) -> None:
        self._store = None


class TorchStore(HandedStore):
    """The store of torchrun's agent, as a client, through torch.

    Args:
        host: its address.
        port: its port.
        prefix: put before every key.
        timeout: seconds to connect.

    Raises:
        RendezvousError: torch is missing, or the agent does not answer.
    """

    def __init__(self, host: str, port: int, prefix: str, timeout: float) -> None:
        try:
            from datetime import timedelta

            from torch.distributed import TCPStore  # type: ignore[attr-defined]
        except ImportError as error:
            raise RendezvousError(
                f"torchrun's agent hosts the store at {host}:{port}, but torch cannot be imported"
            ) from error
        try:
            store = TCPStore(
                host, port, is_master=False, timeout=timedelta(seconds=timeout), wait_for_workers=False
            )
        except Exception as error:
            raise RendezvousError(
                f"cannot reach the store of torchrun's agent at {host}:{port}: {error}"
            ) from error
        super().__init__(store, prefix, f"{host}:{port} (torchrun's agent)")


@dataclass
class Patience:
    """How long to try, and whom to tell meanwhile.

    Attributes:
        deadline: end of all attempts, on `time.monotonic`.
        notify: takes a line for the user.
        every: seconds between lines.
    """

    deadline: float
    notify: Callable[[str], None]
    every: float
    started: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)

    def complain(self, text: str) -> None:
        """Tell the user, unless it was done a moment ago."""
        now = time.monotonic()
        if now - self.said >= self.every:
            self.said = now
            self.notify(f"hcomm: after {now - self.started:.0f} s: {text}")


def connect(
    host: str,
    port: int,
    credentials: Credentials,
    patience: Patience,
    resolver: Resolver = system_resolver,
    rank: int | None = None,
) -> TcpStore:
    """Join the store at `host`:`port`.

    Names that do not resolve and ports that refuse are tried again until the deadline. `rank` is who asks, for
    messages.

    Raises:
        RendezvousError: nothing answered in time, or what answers is not hcomm.
        AuthenticationError: it is another job, or the secret differs.
    """
    problem = ""
    pause = 0.002
    while True:
        try:
            return connect_once(host, port, credentials, patience.deadline, resolver)
        except Unreachable as error:
            if (
                not problem or time.monotonic() < patience.deadline
            ):  # the last try is cut short, which says little
                problem = str(error)
        if time.monotonic() >= patience.deadline:
            waited = time.monotonic() - patience.started
            raise RendezvousError(
                f"could not reach rank 0 at {host}:{port} within {waited:.0f} s: {problem}. "
                "Check MASTER_ADDR and MASTER_PORT, that rank 0 was started, and the firewall"
                + _started_twice(rank)
            )
        patience.complain(f"still waiting for rank 0 at {host}:{port}: {problem}")
        time.sleep(max(0.0, min(pause, patience.deadline - time.monotonic())))
        pause = min(pause * 1.5, 0.05 if time.monotonic() - patience.started < 30 else 0.25)


def _started_twice(rank: int | None) -> str:
    """Why a meeting point that was there may be there no more."""
    if rank is None:
        return ""
    return (
        f"; if the job has completed its init, rank 0 does not listen any more: is rank {rank} started twice?"
    )


def torch_store_hint() -> str:
    """A likely holder of the port, when torch.distributed is in use in this process."""
    torch = sys.modules.get("torch.distributed")
    if torch is None or not (torch.is_available() and torch.is_initialized()):
        return ""
    return (
        " (it may be the store of torch.distributed, which this process has initialised with the same "
        "MASTER_ADDR and MASTER_PORT: give hcomm.init(master_port=…) another one)"
    )


class Unreachable(ConnectionError):
    """Nobody answers there now; it may be worth another try."""


def connect_once(
    host: str,
    port: int,
    credentials: Credentials,
    deadline: float,
    resolver: Resolver = system_resolver,
    greeting: float = GREETING,
) -> TcpStore:
    """One attempt to join the store at `host`:`port`, at each of its addresses.

    Raises:
        Unreachable: the name is not known, the port refuses, or its server is about to close.
        RendezvousError: what answers is not hcomm.
        AuthenticationError: it is another job, or the secret differs.
    """
    problem = f"the name {host!r} is not known"
    for family, address in _endpoints(host, port, deadline, resolver):
        try:
            return _attempt(family, address, credentials, f"{host}:{port}", deadline, greeting)
        except (RendezvousError, AuthenticationError):
            raise
        except (OSError, WrongGeneration) as error:
            problem = str(error)
    raise Unreachable(problem)


def _endpoints(host: str, port: int, deadline: float, resolver: Resolver) -> list[Endpoint]:
    try:
        return resolve(host, port, deadline, resolver)
    except OSError:
        return []


def _attempt(
    family: int, address: Any, credentials: Credentials, place: str, deadline: float, greeting: float
) -> TcpStore:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        now = time.monotonic()
        run(sock, _connecting(address), min(deadline, now + ATTEMPT))
        if sock.getsockname() == sock.getpeername():
            # A port of the ephemeral range that nobody listens on can be connected to itself.
            raise ConnectionRefusedError("nobody listens on that port")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            run(sock, auth.client(auth.STORE, credentials), time.monotonic() + greeting)
        except TimeoutError:
            raise RendezvousError(
                f"something accepts connections at {place} but does not answer like hcomm (silent for "
                f"{greeting:.0f} s): "
                "another program holds that port; choose another MASTER_PORT" + torch_store_hint()
            ) from None
        except NotHcomm as error:
            raise RendezvousError(
                f"what listens at {place} is not hcomm: {error}; choose another MASTER_PORT"
                + torch_store_hint()
            ) from None
        except AuthenticationError as error:
            raise AuthenticationError(f"the store at {place}: {error}") from None
        except WrongGeneration as error:
            if error.theirs > error.mine:
                raise RendezvousError(
                    f"the store at {place}: {error}; call init and finalize equally often on all ranks"
                ) from None
            raise
    except BaseException:
        sock.close()
        raise
    return TcpStore(sock, place)


def _connecting(address: Any) -> Talk[None]:
    yield Connect(address)
