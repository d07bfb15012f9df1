"""Whether two ranks share memory, found out by trying.

Each side hands the other its window (a descriptor over a Unix socket, or the name of a /dev/shm file) and the
address of a token in its ordinary
memory. Each side reads what it can and sends back a digest of what it read; the owner knows the token and
confirms. Host names, boot ids and
launchers' variables have no say in it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from hcomm.bootstrap.settings import Probes
from hcomm.bootstrap.talk import (
    MAX_MESSAGE,
    Read,
    ReadFds,
    Talk,
    Write,
    pack_message,
    parse_message,
    read_message,
)
from hcomm.bootstrap.window import Window, open_path, read_token
from hcomm.errors import (
    CollectiveMismatch,
    CommunicatorError,
    ConfigError,
    HcommError,
    InitError,
    MappingError,
    PeerLost,
    TransportUnavailable,
)


@dataclass
class Link:
    """The control connection to one peer.

    Attributes:
        sock: the connection.
        pid: the peer's process as seen from here, 0 if unknown.
        reason: why it is not a Unix socket; "" if it is one.
    """

    sock: socket.socket
    pid: int
    reason: str

    @property
    def unix(self) -> bool:
        """Whether descriptors can be passed over it."""
        return self.sock.family == socket.AF_UNIX


@dataclass
class Finding:
    """What was found out about one peer.

    Attributes:
        shared: each side can read the other's window.
        cma: each side can read the other's ordinary memory.
        fd: the peer's window, or -1.
        reason: why `shared` is false; otherwise "".
    """

    shared: bool = False
    cma: bool = False
    fd: int = -1
    reason: str = ""


@dataclass
class Evidence:
    """What this rank offers to every peer.

    Attributes:
        key: the job's key, which the digests are made with.
        window: its window; None if it could not be had.
        reason: why there is no window.
        probes: the native functions.
        secret: a token in ordinary memory.
    """

    key: bytes
    window: Window | None
    reason: str
    probes: Probes
    secret: bytearray = field(default_factory=lambda: bytearray(secrets.token_bytes(32)))

    def address(self) -> int:
        """Where `secret` lies; 0 when ordinary memory is not probed."""
        if self.probes.address_of is None or self.probes.cma_read is None:
            return 0
        return self.probes.address_of(self.secret, False)[0]

    def digest(self, token: bytes) -> str:
        """What proves that `token` was read."""
        return hmac.new(self.key, b"hcomm token " + token, hashlib.sha256).hexdigest()


_KINDS: dict[str, type[HcommError]] = {
    kind.__name__: kind
    for kind in (CollectiveMismatch, ConfigError, InitError, MappingError, PeerLost, TransportUnavailable)
}


def complaint(error: HcommError) -> dict[str, Any]:
    """The message that tells a peer about an error."""
    ranks = list(error.ranks) if isinstance(error, CommunicatorError) else []
    return {"error": str(error), "kind": type(error).__name__, "ranks": ranks}


def hear() -> Talk[dict[str, Any]]:
    """Read a message; a peer's complaint is raised here as the error it is.

    Raises:
        HcommError: what the peer complained about.
    """
    return checked((yield from read_message()))


def checked(message: dict[str, Any]) -> dict[str, Any]:
    """`message`, unless it is a complaint, which is raised."""
    if "error" in message:
        kind, text = _KINDS.get(str(message.get("kind")), InitError), str(message["error"])
        ranks = message.get("ranks")
        if issubclass(kind, CommunicatorError) and isinstance(ranks, list):
            raise kind(text, tuple(rank for rank in ranks if isinstance(rank, int)))
        raise kind(text)
    return message


def probe(link: Link, evidence: Evidence) -> Talk[Finding]:
    """Find out what can be shared with the peer at the other end of `link`; both sides run this."""
    window = evidence.window
    offer = {"path": window.path if window else "", "reason": evidence.reason, "address": evidence.address()}
    fds = (window.fd,) if window and link.unix else ()
    yield Write(pack_message(offer), fds)
    theirs, fd = yield from _read_offer(link)
    finding = Finding(fd=fd)
    done = False
    try:
        claim = _look(link, evidence, theirs, finding)
        yield Write(pack_message(claim))
        answer = yield from hear()
        window_seen = window is not None and _same(answer.get("window"), evidence.digest(window.token))
        memory_seen = _same(answer.get("memory"), evidence.digest(bytes(evidence.secret)))
        yield Write(pack_message({"window": window_seen, "memory": memory_seen}))
        verdict = yield from hear()
        finding.shared = window_seen and verdict.get("window") is True
        finding.cma = memory_seen and verdict.get("memory") is True
        if not finding.shared:
            finding.reason = finding.reason or str(
                answer.get("reason") or "the peer could not prove that it reads this rank's window"
            )
        done = True
    finally:
        if finding.fd >= 0 and not (done and finding.shared):
            os.close(finding.fd)
            finding.fd = -1
    return finding


def _read_offer(link: Link) -> Talk[tuple[dict[str, Any], int]]:
    if not link.unix:
        return (yield from hear()), -1
    head, fds = yield ReadFds(4)
    kept = False
    try:
        (length,) = struct.unpack("<I", head)
        if length > MAX_MESSAGE or len(fds) > 1:
            raise ValueError("a malformed offer of a window")
        offer = checked(parse_message((yield Read(length))))
        kept = True
        return offer, fds[0] if fds else -1
    finally:
        if not kept:
            for fd in fds:
                os.close(fd)


def _look(link: Link, evidence: Evidence, offer: dict[str, Any], finding: Finding) -> dict[str, Any]:
    """Try to read the peer's window and memory; what to tell it about that."""
    claim: dict[str, Any] = {"window": "", "memory": "", "reason": ""}
    try:
        if finding.fd < 0 and offer.get("path"):
            finding.fd = open_path(str(offer["path"]))
        if finding.fd < 0:
            raise OSError(str(offer.get("reason") or ("" if link.reason else "the peer offers no window")))
        claim["window"] = evidence.digest(read_token(finding.fd))
    except (OSError, ValueError) as error:
        finding.reason = "; ".join(text for text in (link.reason, str(error)) if text)
        claim["reason"] = finding.reason
    address, read = offer.get("address"), evidence.probes.cma_read
    if read is not None and link.pid > 0 and isinstance(address, int) and 0 < address < 1 << 64:
        try:
            claim["memory"] = evidence.digest(read(link.pid, address, 32))
        except OSError:
            claim["memory"] = ""
    return claim


def _same(claim: Any, expected: str) -> bool:
    return isinstance(claim, str) and hmac.compare_digest(claim, expected)
