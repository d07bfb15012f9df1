"""The handshake that opens every connection of hcomm.

::

    client → server   hello  magic, version, purpose, generation, job, client's nonce
    server → client   reply  magic, version, status, generation, job, server's nonce, server's proof
    client → server   proof
    server → client   status (one byte)

A proof is HMAC-SHA256 over role ‖ hello ‖ reply with the key. Both roles are bound into it, so a proof cannot
be reflected to its maker, and
both nonces, so it cannot be replayed. All pieces have fixed lengths; nothing is allocated from a number that
was received.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from dataclasses import dataclass

from hcomm.bootstrap.talk import Read, Talk, Write
from hcomm.errors import AuthenticationError

MAGIC = b"HCOMMNET"
VERSION = 1
#: What a connection is for.
STORE, PEER = 1, 2

_HELLO = struct.Struct("<8sHBxI16s32s")
_REPLY = struct.Struct("<8sHBxI16s32s")
OK, BAD_VERSION, BAD_PURPOSE, BAD_JOB, BAD_GENERATION, BAD_PROOF = range(6)


class NotHcomm(ConnectionError):
    """The other side answered, but does not speak hcomm's protocol."""


class WrongGeneration(ConnectionError):
    """The other side is in another init of the same job."""

    def __init__(self, mine: int, theirs: int) -> None:
        super().__init__(
            f"this process is in init number {mine} of the job, the other side in number {theirs}"
        )
        self.mine = mine
        self.theirs = theirs


@dataclass(frozen=True)
class Credentials:
    """What two sides must have in common.

    Attributes:
        key: the HMAC key.
        job: 16 bytes that name the job.
        generation: how often this job was initialised in this process, from 1.
    """

    key: bytes
    job: bytes
    generation: int


def derive(label: str, *parts: bytes) -> bytes:
    """A 32-byte key from parts, each bound with its length."""
    digest = hashlib.sha256(label.encode())
    for part in parts:
        digest.update(struct.pack("<Q", len(part)) + part)
    return digest.digest()


def client(purpose: int, credentials: Credentials) -> Talk[None]:
    """The connecting side.

    Raises:
        NotHcomm: the answer does not begin with the magic.
        WrongGeneration: the other side is in another generation.
        AuthenticationError: another version or job, or the key differs.
    """
    generation = credentials.generation
    hello = _HELLO.pack(MAGIC, VERSION, purpose, generation, credentials.job, os.urandom(32))
    yield Write(hello)
    magic = yield Read(len(MAGIC))
    if magic != MAGIC:
        raise NotHcomm(f"the answer begins with {magic!r}, which is not hcomm's protocol")
    reply = magic + (yield Read(_REPLY.size - len(MAGIC)))
    proof = yield Read(32)
    _, version, status, theirs, _, _ = _REPLY.unpack(reply)
    if status == BAD_VERSION or version != VERSION:
        raise AuthenticationError(f"this hcomm speaks protocol {VERSION}, the other side protocol {version}")
    if status == BAD_JOB:
        raise AuthenticationError(
            "the other side belongs to another job (HCOMM_JOB_ID or the launcher's job differs)"
        )
    if status == BAD_GENERATION:
        raise WrongGeneration(generation, theirs)
    if status != OK or not hmac.compare_digest(proof, _proof(credentials.key, b"server", hello, reply)):
        raise AuthenticationError(
            "the other side does not know this job's secret (HCOMM_JOB_SECRET or HCOMM_JOB_ID differs)"
        )
    yield Write(_proof(credentials.key, b"client", hello, reply))
    if (yield Read(1)) != bytes([OK]):
        raise AuthenticationError("the other side refused this process's proof of the job secret")


def server(purpose: int, credentials: Credentials) -> Talk[None]:
    """The accepting side.

    Raises:
        NotHcomm: what came does not begin with the magic.
        AuthenticationError: another version, purpose, job or generation, or the key differs.
    """
    magic = yield Read(len(MAGIC))
    if magic != MAGIC:
        raise NotHcomm(f"it began with {magic!r}, which is not hcomm's protocol")
    hello = magic + (yield Read(_HELLO.size - len(MAGIC)))
    _, version, wanted, generation, job, _ = _HELLO.unpack(hello)
    status = OK
    if version != VERSION:
        status = BAD_VERSION
    elif wanted != purpose:
        status = BAD_PURPOSE
    elif not hmac.compare_digest(job, credentials.job):
        status = BAD_JOB
    elif generation != credentials.generation:
        status = BAD_GENERATION
    reply = _REPLY.pack(MAGIC, VERSION, status, credentials.generation, credentials.job, os.urandom(32))
    if status != OK:
        yield Write(reply + bytes(32))
        reasons = (
            "",
            "another protocol version",
            "another purpose",
            "another job",
            f"init number {generation}",
        )
        raise AuthenticationError(f"refused: {reasons[status]}")
    yield Write(reply + _proof(credentials.key, b"server", hello, reply))
    proof = yield Read(32)
    if not hmac.compare_digest(proof, _proof(credentials.key, b"client", hello, reply)):
        yield Write(bytes([BAD_PROOF]))
        raise AuthenticationError("refused: it does not know the job secret")
    yield Write(bytes([OK]))


def _proof(key: bytes, role: bytes, hello: bytes, reply: bytes) -> bytes:
    return hmac.new(key, b"hcomm 1 " + role + hello + reply, hashlib.sha256).digest()
