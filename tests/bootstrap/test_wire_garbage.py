"""Whatever arrives at an open port: dropped with one line, no harm done (field report M1)."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcomm.bootstrap import auth
from hcomm.bootstrap.auth import Credentials
from hcomm.bootstrap.listener import Listener
from hcomm.bootstrap.serving import CROWD
from hcomm.bootstrap.store import Patience, TcpStore, connect
from hcomm.bootstrap.store_server import StoreServer, listening_socket
from hcomm.bootstrap.talk import Conversation, PeerClosed, pack_message, read_message, run, send_message
from hcomm.errors import AuthenticationError, RendezvousError

GOOD = Credentials(b"k" * 32, b"j" * 16, 1)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    sock = listening_socket("127.0.0.1", 0, time.monotonic() + 5)
    server = StoreServer(sock, GOOD, 4)
    yield server
    server.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener((socket.AF_INET, ("127.0.0.1", 0)))
    listener.open(GOOD)
    yield listener
    listener.close()


def client(port: int, credentials: Credentials = GOOD) -> TcpStore:
    patience = Patience(time.monotonic() + 10, lambda line: None, 10)
    return connect("127.0.0.1", port, credentials, patience)


def hello(version: int = auth.VERSION, purpose: int = auth.STORE, job: bytes = GOOD.job) -> bytes:
    return struct.pack("<8sHBxI16s32s", auth.MAGIC, version, purpose, 1, job, bytes(32))


GARBAGE: dict[str, bytes] = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "ones": b"\xff" * 64,
    "random": os.urandom(4096),
    "magic and a length": auth.MAGIC + b"\xff" * 56,
    "another version": hello(version=9),
    "another purpose": hello(purpose=77),
    "another job": hello(job=bytes(16)),
    "a wrong proof": hello() + bytes(32),
    "half a hello": hello()[:20],
}


def gone(port: int, data: bytes) -> None:
    """Send `data` and wait until the other side has closed the connection."""
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(data)
        with contextlib.suppress(OSError):
            if len(data) < 64:
                sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass


@pytest.mark.parametrize("what", GARBAGE)
def test_the_store_drops_garbage(server: StoreServer, caplog: pytest.LogCaptureFixture, what: str) -> None:
    store = client(server.port)
    with caplog.at_level(logging.WARNING, "hcomm.bootstrap"):
        gone(server.port, GARBAGE[what])
        store.set("a", "b")
    assert len([r for r in caplog.records if "dropped the connection from 127.0.0.1" in r.message]) == 1
    assert store.try_get("a", 0) == "b"
    store.close()


@pytest.mark.parametrize("what", GARBAGE)
def test_the_listener_drops_garbage(listener: Listener, caplog: pytest.LogCaptureFixture, what: str) -> None:
    with caplog.at_level(logging.WARNING, "hcomm.bootstrap"):
        gone(listener.port, GARBAGE[what])
        for _ in range(200):
            if caplog.records:
                break
            time.sleep(0.01)
    assert len(caplog.records) == 1
    assert meets(listener, 3)


def topic(rank: int, **changes: Any) -> dict[str, Any]:
    return {
        "key": "k",
        "parent": "p",
        "from": rank,
        "channel": "control",
        "name": "",
        "ranks": [0, rank],
        "agree": {},
        "reason": "",
        **changes,
    }


def meets(listener: Listener, rank: int) -> bool:
    """Whether a proper peer can still be parked and picked up."""
    with socket.create_connection((listener.address, listener.port), 5) as sock:
        run(sock, auth.client(auth.PEER, GOOD), time.monotonic() + 5)
        run(sock, send_message(topic(rank)), time.monotonic() + 5)
        for _ in range(500):
            parked = listener.pick("k", rank, "control")
            if parked is not None:
                parked.sock.close()
                return True
            time.sleep(0.01)
    return False


BAD_TOPICS: dict[str, bytes] = {
    "a huge length": struct.pack("<I", 0xFFFFFFFF),
    "not JSON": struct.pack("<I", 4) + b"\x80\x04N.",
    "a list": struct.pack("<I", 2) + b"[]",
    "deep": struct.pack("<I", 200_000) + b"[" * 200_000,
    "no key": pack_message({"from": 1}),
    "a strange channel": pack_message(topic(1, channel="telnet")),
    "a strange rank": pack_message(topic(1, **{"from": -1})),
    "strange ranks": pack_message(topic(1, ranks="0,1")),
}


@pytest.mark.parametrize("what", BAD_TOPICS)
def test_even_a_peer_must_be_understood(
    listener: Listener, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    with (
        caplog.at_level(logging.WARNING, "hcomm.bootstrap"),
        socket.create_connection((listener.address, listener.port), 5) as sock,
    ):
        run(sock, auth.client(auth.PEER, GOOD), time.monotonic() + 5)
        sock.setblocking(True)
        sock.settimeout(5)
        sock.sendall(BAD_TOPICS[what])
        with contextlib.suppress(ConnectionError):
            assert sock.recv(1) == b""
    assert meets(listener, 3)


def test_a_huge_request_is_not_believed(server: StoreServer) -> None:
    store = client(server.port)
    store._sock.setblocking(True)
    store._sock.sendall(struct.pack("<I", 0xFFFFFFF0))
    store._sock.settimeout(5)
    assert store._sock.recv(1) == b""
    store.close()
    other = client(server.port)
    assert other.add("n", 2) == 2
    other.close()


def test_five_hundred_silent_connections(listener: Listener) -> None:
    """More than are held at a time: the oldest go, and a rank still comes in."""
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(socket.create_connection((listener.address, listener.port), 5))
        start = time.monotonic()
        assert meets(listener, 1)
        assert time.monotonic() - start < 5
        assert len(listener._serving._guests) <= CROWD + 64  # as many as one turn accepts


def test_silence_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from hcomm.bootstrap import serving

    monkeypatch.setattr(serving, "PATIENCE", 0.3)
    listener = Listener((socket.AF_INET, ("127.0.0.1", 0)))
    listener.open(GOOD)
    with caplog.at_level(logging.WARNING, "hcomm.bootstrap"):
        gone_at = time.monotonic()
        with socket.create_connection((listener.address, listener.port), 5) as sock:
            assert sock.recv(1) == b""
        assert 0.2 < time.monotonic() - gone_at < 2
    assert len(caplog.records) == 1
    listener.close()


def test_wrong_credentials(server: StoreServer) -> None:
    with pytest.raises(AuthenticationError, match="secret"):
        client(server.port, Credentials(b"x" * 32, GOOD.job, 1))
    with pytest.raises(AuthenticationError, match="another job"):
        client(server.port, Credentials(GOOD.key, b"x" * 16, 1))


def test_another_generation_is_behind_or_retried(server: StoreServer) -> None:
    """A process that is ahead waits for the server of its own init; one that is behind is told."""
    brief = Patience(time.monotonic() + 1.0, lambda line: None, 10)
    with pytest.raises(RendezvousError, match="init number 2 of the job, the other side in number 1"):
        connect("127.0.0.1", server.port, Credentials(GOOD.key, GOOD.job, 2), brief)
    with pytest.raises(RendezvousError, match="equally often"):
        client(server.port, Credentials(GOOD.key, GOOD.job, 0))


def test_a_proof_cannot_be_reflected() -> None:
    """The server's own proof, sent back to it, is not a client's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        talk = auth.server(auth.STORE, GOOD)
        conversation = Conversation(theirs, talk)
        ours.sendall(hello())
        conversation.advance()
        reply = ours.recv(1000)
        assert len(reply) == 64 + 32
        ours.sendall(reply[-32:])
        assert conversation.advance()
        assert isinstance(conversation.error, AuthenticationError)
        assert ours.recv(10) == bytes([auth.BAD_PROOF])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_end_a_handshake_properly(data: bytes, magic: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall((auth.MAGIC if magic else b"") + data)
        ours.shutdown(socket.SHUT_WR)
        conversation = Conversation(theirs, auth.server(auth.PEER, GOOD))
        assert conversation.advance()
        assert isinstance(conversation.error, (auth.NotHcomm, AuthenticationError, PeerClosed))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_any_bytes_end_a_message_properly(data: bytes, length: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(struct.pack("<I", length) + data)
        ours.shutdown(socket.SHUT_WR)
        conversation = Conversation(theirs, read_message())
        assert conversation.advance()
        assert isinstance(conversation.error, (ValueError, PeerClosed)) or isinstance(
            conversation.outcome, dict
        )


def test_the_store(server: StoreServer) -> None:
    one, two = client(server.port), client(server.port)
    assert one.add("n", 1) == 1
    assert two.add("n", 2) == 3
    assert one.try_get("k", 0) is None
    start = time.monotonic()
    assert one.try_get("k", 0.2) is None
    assert 0.15 < time.monotonic() - start < 2
    with pytest.raises(TimeoutError):
        one.get("k", time.monotonic() + 0.1)
    called: list[int] = []

    def put() -> None:
        called.append(1)
        two.set("k", "v" * 1_000_000)

    assert one.get("k", time.monotonic() + 5, put, every=0.05) == "v" * 1_000_000
    assert called == [1]
    server.retire(2, time.monotonic() + 5)
    one.close()
    two.close()
    server.close(patience=5)
    again = listening_socket("127.0.0.1", server.port, time.monotonic() + 5)
    again.close()
