"""A meeting point on one host that needs no port number in advance: a file with rank 0's address and a
secret.

It lies in a folder that only this user can enter, is written under another name and renamed, so that nobody
reads half of it, and is removed as soon as all
ranks have come. A file that a killed job left behind names a port where nobody answers (or somebody else, who
does not know the secret): readers try
again until rank 0 of their own job has replaced it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import tempfile
from dataclasses import dataclass

from hcomm.bootstrap.auth import derive
from hcomm.errors import RendezvousError


@dataclass(frozen=True)
class Invitation:
    """What the file says.

    Attributes:
        host: rank 0's address.
        port: its port.
        secret: 32 random bytes in hexadecimal.
    """

    host: str
    port: int
    secret: str


def path_of(job: str, generation: int) -> str:
    """The file of one init of one job.

    Raises:
        RendezvousError: the folder for it belongs to somebody else or is open to others.
    """
    folder = os.path.join(tempfile.gettempdir(), f"hcomm-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise RendezvousError(
            f"{folder} must be a folder of user {os.getuid()} with mode 0700; remove it or set TMPDIR"
        )
    return os.path.join(folder, derive("hcomm meeting", job.encode(), str(generation).encode()).hex()[:32])


def write(path: str, host: str, port: int) -> Invitation:
    """Put an invitation at `path`, in place of any older one."""
    invitation = Invitation(host, port, secrets.token_hex(32))
    draft = f"{path}.{secrets.token_hex(8)}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        json.dump({"host": host, "port": port, "secret": invitation.secret}, file)
    os.rename(draft, path)
    return invitation


def read(path: str) -> Invitation | None:
    """The invitation at `path`; None if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(fd, encoding="ascii", errors="replace") as file:
        if os.fstat(fd).st_uid != os.getuid():
            return None
        try:
            content = json.loads(file.read(4096))
            return Invitation(str(content["host"]), int(content["port"]), str(content["secret"]))
        except (ValueError, KeyError, TypeError):
            return None


def remove(path: str, invitation: Invitation) -> None:
    """Remove the file if it still holds this invitation."""
    if read(path) == invitation:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
