"""Limits on memory that processes share: memfd, /dev/shm, locked memory, and reading each other's memory."""

from __future__ import annotations

import mmap
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from hcomm.topology.cpus import read

#: What the values of kernel.yama.ptrace_scope mean for ranks, which are siblings and not each other's parents.
PTRACE_SCOPES = {
    0: "processes of one user may read each other's memory",
    1: "a process may be read by its ancestors only, unless it allows more (PR_SET_PTRACER)",
    2: "only administrators (CAP_SYS_PTRACE) may read another process's memory",
    3: "no process may read another's memory until the next boot",
}


@dataclass(frozen=True)
class SharedMemory:
    """What the operating system grants for shared memory. Sizes in bytes.

    Attributes:
        memfd: why memfd cannot be used, or '' when it can.
        shm_path: the folder for shared files.
        shm_error: why shared files cannot be made there, or ''.
        shm_size: its size.
        shm_free: what is free of it.
        locked_limit: how much memory a process may lock (RDMA registers locked memory); None: no limit.
        ptrace_scope: kernel.yama.ptrace_scope; None where the kernel has no Yama.
        privileged: this process may read other processes' memory regardless of the scope (CAP_SYS_PTRACE).
    """

    memfd: str
    shm_path: str
    shm_error: str
    shm_size: int
    shm_free: int
    locked_limit: int | None
    ptrace_scope: int | None
    privileged: bool


def probe_shared_memory(shm_path: str = "/dev/shm") -> SharedMemory:
    """Try what is to be used rather than ask whether it is allowed: a page of memfd, a file in /dev/shm."""
    size, free = _capacity(shm_path)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    scope = read(Path("/proc/sys/kernel/yama/ptrace_scope"))
    return SharedMemory(
        memfd=_try_memfd(),
        shm_path=shm_path,
        shm_error=_try_file(shm_path),
        shm_size=size,
        shm_free=free,
        locked_limit=None if locked == resource.RLIM_INFINITY else locked,
        ptrace_scope=int(scope) if scope.isdigit() else None,
        privileged=_may_ptrace(),
    )


def _try_memfd() -> str:
    try:
        descriptor = os.memfd_create("hcomm-probe", os.MFD_CLOEXEC)
    except (OSError, AttributeError) as error:
        return str(error)
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        with mmap.mmap(descriptor, mmap.PAGESIZE) as page:
            page[0] = 1
    except (OSError, ValueError) as error:
        return str(error)
    finally:
        os.close(descriptor)
    return ""


def _try_file(folder: str) -> str:
    """Why no file can be made in `folder`; O_TMPFILE leaves no name behind."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return str(error)
    try:
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
    except OSError as error:
        return str(error)
    finally:
        os.close(descriptor)
    return ""


def _capacity(folder: str) -> tuple[int, int]:
    """Size and free bytes of a file system; zeros where there is none."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return 0, 0
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _may_ptrace() -> bool:
    """Whether CAP_SYS_PTRACE (capability 19) is effective in this process."""
    for line in read(Path("/proc/self/status")).splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 19 & 1)
    return False
