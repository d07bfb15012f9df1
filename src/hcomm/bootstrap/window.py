"""A rank's window: the file that its local peers map.

A memfd where the kernel has it: not limited by /dev/shm, gone with its last holder, sealed against shrinking
under a mapping. Otherwise, and for peers
that no descriptor can be passed to, a file in /dev/shm with a random name, its space reserved at once, so
that a full file system is an
error now and not a bus error later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import struct
import tempfile
from dataclasses import dataclass

MAGIC = b"HCOMMWIN"
#: magic, size, token; the rest of the first 64 bytes is zero.
HEADER = struct.Struct("<8sQ16s")
SHM = "/dev/shm"
_NAME = re.compile(r"/dev/shm/hcomm-[0-9a-f]{32}")


@dataclass
class Window:
    """An open window file.

    Attributes:
        fd: its descriptor; the holder closes it.
        token: 16 random bytes in its header.
        path: its name while it has one, otherwise "".
        memfd: whether it can be sealed.
    """

    fd: int
    token: bytes
    path: str = ""
    memfd: bool = False

    def finish(self, size: int) -> None:
        """Give it its final size, write the header, seal it."""
        os.ftruncate(self.fd, size)
        os.pwrite(self.fd, HEADER.pack(MAGIC, size, self.token), 0)
        if self.memfd:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)

    def unlink(self) -> None:
        """Take its name away; those who have it open keep it."""
        if self.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            self.path = ""

    def close(self) -> None:
        """Close and unlink it."""
        self.unlink()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def from_memfd() -> Window:
    """A window in a memfd.

    Raises:
        OSError: the kernel, or a filter, does not allow it.
    """
    fd = os.memfd_create("hcomm-window", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    return _with_header(Window(fd, secrets.token_bytes(16), memfd=True))


def from_file(size: int) -> Window:
    """A window in a /dev/shm file of `size` bytes, all of them reserved.

    Raises:
        OSError: with the bytes needed and free in its text, when it cannot be had.
    """
    path = f"{SHM}/hcomm-{secrets.token_hex(16)}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise OSError(
            error.errno, f"cannot create a file in {SHM}: {os.strerror(error.errno or 0)}"
        ) from error
    window = Window(fd, secrets.token_bytes(16), path)
    try:
        os.posix_fallocate(fd, 0, size)
        return _with_header(window)
    except OSError as error:
        window.close()
        free = _free_bytes()
        raise OSError(
            error.errno or errno.ENOSPC, f"{SHM} has {free} bytes free, {size} are needed"
        ) from error


def private() -> Window:
    """A window that nobody else will map: any file will do where there is no memfd."""
    try:
        return from_memfd()
    except OSError:
        with tempfile.TemporaryFile() as file:
            return _with_header(Window(os.dup(file.fileno()), secrets.token_bytes(16)))


def _with_header(window: Window) -> Window:
    try:
        os.ftruncate(window.fd, max(os.fstat(window.fd).st_size, 4096))
        os.pwrite(window.fd, HEADER.pack(MAGIC, 0, window.token), 0)
    except OSError:
        window.close()
        raise
    return window


def _free_bytes() -> int:
    try:
        status = os.statvfs(SHM)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


def read_token(fd: int) -> bytes:
    """The token in a peer's window.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a window.
    """
    head = os.pread(fd, HEADER.size, 0)
    if len(head) != HEADER.size:
        raise ValueError("the file is shorter than a window's header")
    magic, _, token = HEADER.unpack(head)
    if magic != MAGIC:
        raise ValueError("the file is not a window")
    return bytes(token)


def open_path(path: str) -> int:
    """Open a peer's window by the name it gave; only names of hcomm's own form are opened.

    Raises:
        ValueError: the name has another form.
        OSError: it is not there, or not ours to open.
    """
    if not _NAME.fullmatch(path):
        raise ValueError(f"{path!r} is not the name of a window")
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
