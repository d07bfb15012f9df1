"""What test functions use inside a rank's process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.job import Failure

if TYPE_CHECKING:
    from collections.abc import Callable


def describe(error: BaseException, seconds: float = 0.0) -> Failure:
    """An exception as plain data."""
    return Failure(
        kind=type(error).__name__,
        kinds=tuple(c.__name__ for c in type(error).__mro__),
        text=str(error),
        ranks=tuple(getattr(error, "ranks", ())),
        seconds=seconds,
    )


def attempt(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Failure | None:
    """The exception that `call(*args, **kwargs)` raises, or None when it returns."""
    start = time.monotonic()
    try:
        call(*args, **kwargs)
    except BaseException as error:
        return describe(error, time.monotonic() - start)
    return None


def _file(name: str) -> Path:
    return Path(os.environ["JOB_DIR"]) / name


def mark(name: str) -> None:
    """Tell the test that this rank has come so far."""
    _file(f"mark-{name}-{os.environ['RANK']}").touch()


def told(name: str, timeout: float = 60.0) -> None:
    """Wait for the test's `Job.tell(name)`."""
    end = time.monotonic() + timeout
    while not _file(f"tell-{name}").exists():
        if time.monotonic() > end:
            raise TimeoutError(f"the test never told {name!r}")
        time.sleep(0.005)


def meet(name: str, world: int, timeout: float = 60.0) -> None:
    """Meet the other ranks without hcomm."""
    mark(name)
    end = time.monotonic() + timeout
    while not all(_file(f"mark-{name}-{rank}").exists() for rank in range(world)):
        if time.monotonic() > end:
            raise TimeoutError(f"not everybody came to {name!r}")
        time.sleep(0.002)


def resident_bytes() -> int:
    """Resident memory of this process, shared pages included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_descriptors() -> int:
    """Number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd")) - 1


def thread_count() -> int:
    """Number of threads of this process."""
    return len(os.listdir("/proc/self/task"))
