"""Conversations over sockets, written as generators and run by one small loop.

A *talk* is a generator that yields what it wants next (`Read`, `ReadFds`, `Write`, `Connect`, `Peek`,
`Suspend`) and is sent the answer. The same talk can be
run alone with a deadline (`run`) or many at a time (`Conversation.advance` under a selector), so the
handshake exists once for the store,
the listener and wire-up. A talk never reads past what it asked for: when it ends, nothing of the next owner's
bytes has been consumed.
"""

from __future__ import annotations

import array
import errno
import json
import os
import select
import selectors
import socket
import struct
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Longest message of an authenticated peer, in bytes. Memory grows with what arrives, never with what is
#: announced.
MAX_MESSAGE = 16 << 20


@dataclass(frozen=True)
class Read:
    """Wants exactly `count` bytes; answered with them."""

    count: int


@dataclass(frozen=True)
class ReadFds:
    """Wants exactly `count` bytes, of which the first carry file descriptors.

    Answered with (bytes, list of fds).
    """

    count: int


@dataclass(frozen=True)
class Write:
    """Sends all of `data`, with `fds` attached to its first byte."""

    data: bytes
    fds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Connect:
    """Connects the socket to `address`."""

    address: Any


@dataclass(frozen=True)
class Peek:
    """Waits until `count` bytes are there; answered with them, and leaves them unread."""

    count: int


@dataclass(frozen=True)
class Suspend:
    """Waits for `Conversation.wake` until time `until` (`time.monotonic`).

    Answered with what it was woken with, or None.
    """

    until: float


Step = Read | ReadFds | Write | Connect | Peek | Suspend
Talk = Generator[Step, Any, T]


class PeerClosed(ConnectionError):
    """The other side closed the connection in the middle of a talk."""


class Conversation(Generic[T]):
    """One talk on one non-blocking socket.

    Attributes:
        interest: the selector events it waits for.
        done: whether it ended; then `error` or `result` is set.
    """

    def __init__(self, sock: socket.socket, talk: Talk[T]) -> None:
        self.sock = sock
        self.interest = 0
        self.done = False
        self.error: BaseException | None = None
        self._result: list[T] = []
        self._talk = talk
        self._step: Step | None = None
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._connecting = False
        self._woken: list[Any] = []
        sock.setblocking(False)

    @property
    def result(self) -> T:
        """What the talk returned.

        Raises:
            BaseException: what the talk raised.
        """
        if self.error is not None:
            raise self.error
        return self._result[0]

    @property
    def outcome(self) -> T | None:
        """What the talk returned; None if it has not."""
        return self._result[0] if self._result else None

    def advance(self) -> bool:
        """Do what can be done without blocking; whether the talk has ended."""
        try:
            if self._step is None:
                self._begin(next(self._talk))
            while True:
                try:
                    ready, answer = self._progress()
                except Exception as error:  # the talk may know what it means
                    self._begin(self._talk.throw(error))
                    continue
                if not ready:
                    return False
                self._begin(self._talk.send(answer))
        except StopIteration as stop:
            self._result = [stop.value]
        except Exception as error:  # kept for the owner, who decides what it means
            self.error = error
            self._talk.close()
            self._drop_fds()
        self.done = True
        return True

    @property
    def suspended_until(self) -> float | None:
        """When a suspended talk goes on by itself; None if it is not suspended."""
        return self._step.until if isinstance(self._step, Suspend) and not self.done else None

    def wake(self, answer: Any) -> None:
        """Give a suspended talk its answer; the next `advance` goes on with it."""
        self._woken.append(answer)

    def cancel(self) -> None:
        """End the talk; received descriptors that nobody took are closed."""
        self._talk.close()
        self._drop_fds()
        self.done = True

    def _drop_fds(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def _begin(self, step: Step) -> None:
        self._step = step
        self._buffer = bytearray(step.data) if isinstance(step, Write) else bytearray()
        self._connecting = False

    def _progress(self) -> tuple[bool, Any]:
        step = self._step
        try:
            if isinstance(step, Read):
                return self._read(step.count)
            if isinstance(step, ReadFds):
                return self._read_fds(step.count)
            if isinstance(step, Write):
                return self._write(step)
            if isinstance(step, Peek):
                return self._peek(step.count)
            if isinstance(step, Suspend):
                return self._suspend(step)
            assert step is not None
            return self._connect(step)
        except (BlockingIOError, InterruptedError):
            reading = isinstance(step, (Read, ReadFds, Peek, Suspend))
            self.interest = selectors.EVENT_READ if reading else selectors.EVENT_WRITE
            return False, None

    def _read(self, count: int) -> tuple[bool, Any]:
        while len(self._buffer) < count:
            piece = self.sock.recv(min(count - len(self._buffer), 65536))
            if not piece:
                raise PeerClosed(errno.ECONNRESET, "the other side closed the connection")
            self._buffer += piece
        return True, bytes(self._buffer)

    def _read_fds(self, count: int) -> tuple[bool, Any]:
        while len(self._buffer) < count:
            space = socket.CMSG_SPACE(4 * 4)
            piece, extra, _, _ = self.sock.recvmsg(count - len(self._buffer), space, socket.MSG_CMSG_CLOEXEC)
            for level, kind, data in extra:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    self._fds.extend(array.array("i", data[: len(data) - len(data) % 4]))
            if not piece:
                raise PeerClosed(errno.ECONNRESET, "the other side closed the connection")
            self._buffer += piece
        fds, self._fds = self._fds, []
        return True, (bytes(self._buffer), fds)

    def _write(self, step: Write) -> tuple[bool, Any]:
        while self._buffer:
            if step.fds and len(self._buffer) == len(step.data):
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", step.fds).tobytes())]
                sent = self.sock.sendmsg([self._buffer], rights, socket.MSG_NOSIGNAL)
            else:
                sent = self.sock.send(self._buffer, socket.MSG_NOSIGNAL)
            del self._buffer[:sent]
        return True, None

    def _peek(self, count: int) -> tuple[bool, Any]:
        head = self.sock.recv(count, socket.MSG_PEEK)
        if not head:
            raise PeerClosed(errno.ECONNRESET, "the other side closed the connection")
        if len(head) < count:
            raise BlockingIOError
        return True, head

    def _suspend(self, step: Suspend) -> tuple[bool, Any]:
        if self._woken:
            return True, self._woken.pop(0)
        if time.monotonic() >= step.until:
            return True, None
        if not self.sock.recv(1, socket.MSG_PEEK):
            raise PeerClosed(errno.ECONNRESET, "the other side closed the connection")
        raise ValueError("it sent more while its request was being answered")

    def _connect(self, step: Connect) -> tuple[bool, Any]:
        if not self._connecting:
            code = self.sock.connect_ex(step.address)
            if code == errno.EINPROGRESS:
                self._connecting = True
                raise BlockingIOError
        else:
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        return True, None


def run(sock: socket.socket, talk: Talk[T], deadline: float) -> T:
    """Run one talk to its end; Ctrl-C interrupts it.

    Args:
        sock: the socket; made non-blocking.
        talk: what to say.
        deadline: on the clock of `time.monotonic`, in seconds.

    Raises:
        TimeoutError: at the deadline.
        OSError, Exception: what the socket or the talk raised.
    """
    conversation = Conversation(sock, talk)
    poll = select.poll()
    try:
        while not conversation.advance():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            poll.register(
                sock, select.POLLIN if conversation.interest == selectors.EVENT_READ else select.POLLOUT
            )
            poll.poll(left * 1000 + 1)
    finally:
        if not conversation.done:
            conversation.cancel()
    return conversation.result


def send_message(message: dict[str, Any]) -> Talk[None]:
    """Send one JSON object behind a 32-bit little-endian length."""
    yield Write(pack_message(message))


def pack_message(message: dict[str, Any]) -> bytes:
    """The bytes of `send_message`."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return struct.pack("<I", len(body)) + body


def read_message(limit: int = MAX_MESSAGE) -> Talk[dict[str, Any]]:
    """Read one JSON object of at most `limit` bytes.

    Raises:
        ValueError: the length is out of bounds, or the body is not a JSON object.
    """
    (length,) = struct.unpack("<I", (yield Read(4)))
    if length > limit:
        raise ValueError(f"a message of {length} bytes was announced, at most {limit} are allowed")
    return parse_message((yield Read(length)))


def parse_message(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    Raises:
        ValueError: it is none.
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise ValueError("a message that is not a JSON object")
    return message
