"""A thread that serves connections: one selector, any number of talks, no blocking, no trust.

Whoever connects has `PATIENCE` seconds to prove who it is. At most `CROWD` strangers are held at a time; when
more come, the oldest is dropped, so a
crowd of silent connections can not keep a rank out. Every drop is one line in the log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from hcomm.bootstrap.talk import Conversation, Talk

log = logging.getLogger("hcomm.bootstrap")

#: Seconds in which a new connection must have authenticated itself.
PATIENCE = 10.0
#: Most connections that have not authenticated themselves.
CROWD = 256


class Guest:
    """One accepted connection.

    Attributes:
        sock: its socket.
        name: who it is, for the log.
        stranger: it has not authenticated itself yet.
        kept: its socket now belongs to somebody else and is not closed at the end of its talk.
        parcel: what its talk left for the owner.
    """

    def __init__(self, sock: socket.socket, name: str, talk: Callable[[Guest], Talk[None]]) -> None:
        self.sock = sock
        self.name = name
        self.stranger = True
        self.kept = False
        self.parcel: dict[str, Any] = {}
        self.deadline = time.monotonic() + PATIENCE
        self.conversation: Conversation[None] = Conversation(sock, talk(self))
        self.events = 0


class Serving:
    """Accepts on listening sockets and runs one talk per connection, in a thread of its own.

    Args:
        name: the thread's name.
        talk: makes the talk of a new connection.
        crowd: most strangers at a time.
    """

    def __init__(self, name: str, talk: Callable[[Guest], Talk[None]], *, crowd: int = CROWD) -> None:
        self._name = name
        self._talk = talk
        self._crowd = crowd
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._listeners: list[socket.socket] = []
        self._guests: set[Guest] = set()
        self._closing = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.on_leave: Callable[[Guest], None] = lambda guest: None
        self.finished: Callable[[], bool] = lambda: False
        self.tick: float | None = None

    def listen(self, sock: socket.socket) -> None:
        """Accept on `sock`, which is bound and listening; call before `start`."""
        sock.setblocking(False)
        self._listeners.append(sock)
        self._selector.register(sock, selectors.EVENT_READ, sock)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Make the thread look around."""
        with contextlib.suppress(
            BlockingIOError, BrokenPipeError
        ):  # full: it will look; broken: it has ended
            os.write(self._wake_write, b"x")

    def join(self, timeout: float) -> bool:
        """Wait until the thread has ended by itself; whether it has."""
        if self._pid == os.getpid() and self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop the thread and close everything. In a forked child: nothing, for all of it is the parent's."""
        if self._pid != os.getpid() or self._wake_write < 0:
            return
        self._closing = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._close_all()
        os.close(self._wake_write)
        self._wake_write = -1

    def _run(self) -> None:
        try:
            while not self._closing and not self.finished():
                self._turn()
        finally:
            self._close_all()

    def _close_all(self) -> None:
        for guest in list(self._guests):
            guest.conversation.cancel()
            self._remove(guest)
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        os.close(self._wake_read)

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            if isinstance(key.data, Guest):
                if key.data in self._guests:  # not dropped a moment ago, in this very turn
                    self._advance(key.data)
            elif isinstance(key.data, socket.socket):
                self._accept(key.data)
            else:
                _drain(self._wake_read)
        now = time.monotonic()
        for guest in list(self._guests):
            if guest.conversation.suspended_until is not None:
                self._advance(guest)
            elif guest.stranger and now > guest.deadline:
                self._drop(guest, f"it did not authenticate itself within {PATIENCE:.0f} s")

    def _patience(self) -> float | None:
        times = [g.deadline if g.stranger else g.conversation.suspended_until for g in self._guests]
        known = [t for t in times if t is not None]
        wait = max(0.0, min(known) - time.monotonic()) + 0.001 if known else None
        return self.tick if wait is None or (self.tick is not None and self.tick < wait) else wait

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(64):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                log.warning("%s: cannot accept a connection: %s", self._name, error)
                time.sleep(0.01)  # out of descriptors: the backlog stays readable, do not spin on it
                break
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            guest = Guest(sock, _describe(sock, address), self._talk)
            self._guests.add(guest)
            self._advance(guest)
        self._thin_out()

    def _thin_out(self) -> None:
        strangers = sorted((g for g in self._guests if g.stranger), key=lambda g: g.deadline)
        for guest in strangers[: max(0, len(strangers) - self._crowd)]:
            self._drop(guest, f"more than {self._crowd} connections wait to authenticate themselves")

    def _advance(self, guest: Guest) -> None:
        conversation = guest.conversation
        if not conversation.advance():
            self._watch(guest, conversation.interest)
        elif conversation.error is not None:
            self._drop(guest, str(conversation.error) or type(conversation.error).__name__)
        else:
            self._remove(guest)

    def _watch(self, guest: Guest, events: int) -> None:
        if guest.events == 0:
            self._selector.register(guest.sock, events, guest)
        elif guest.events != events:
            self._selector.modify(guest.sock, events, guest)
        guest.events = events

    def _drop(self, guest: Guest, reason: str) -> None:
        if guest.stranger:
            log.warning("%s: dropped the connection from %s: %s", self._name, guest.name, reason)
        guest.conversation.cancel()
        self._remove(guest)

    def _remove(self, guest: Guest) -> None:
        self._guests.discard(guest)
        if guest.events:
            self._selector.unregister(guest.sock)
            guest.events = 0
        if not guest.kept:
            guest.sock.close()
        self.on_leave(guest)


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 4096)


def _describe(sock: socket.socket, address: Any) -> str:
    if sock.family == socket.AF_UNIX:
        return "a process of this host"
    return f"{address[0]} port {address[1]}"
