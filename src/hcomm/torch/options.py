"""Settings of one process group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from hcomm import config
from hcomm.config import Settings, parse


@dataclass(frozen=True)
class Options:
    """`pg_options=` of `init_process_group` and `new_group`; the same on all ranks of the group.

    Attributes:
        transport: `auto`, `shm` or `tcp`; wins over HCOMM_TRANSPORT.
        algorithm: for every operation that has one of this name, or {operation: name}; wins over HCOMM_*_ALGO, and
            may be written like them (`ring:8KB-max`, `^star`).
        timeout: seconds (or a timedelta) that one operation may take; wins over the `timeout=` of torch's functions.
        buffer_size: bytes (or `8MB`) of shared memory per rank; wins over HCOMM_BUFFER_SIZE.
        priority: asynchronous operations of groups with a higher one advance first, among a default group and the
            groups that are joined through it; may differ between ranks.
    """

    transport: str | None = None
    algorithm: str | Mapping[str, str] | None = None
    timeout: float | timedelta | None = None
    buffer_size: int | str | None = None
    priority: int = 0


def checked(options: object) -> Options:
    """What the user passed as `pg_options=`. Raises TypeError for anything but `Options` and None."""
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise TypeError(
            f"pg_options of the hcomm backend must be hcomm.torch.Options(...), not a {type(options).__qualname__}"
        )
    if isinstance(options.priority, bool) or not isinstance(options.priority, int):
        raise TypeError(f"priority of Options must be an integer, not {options.priority!r}")
    return options


def settings_for(options: Options, timeout: timedelta) -> Settings:
    """The settings of a group.

    The time an operation may take is, the strongest first: `options.timeout`; the `timeout=` that the user gave torch;
    HCOMM_TIMEOUT; torch's default. The time that coming up may take: the `timeout=` given to torch, HCOMM_INIT_TIMEOUT,
    torch's default.

    Args:
        options: of the group.
        timeout: what torch hands on.

    Raises:
        ConfigError: a setting does not parse.
    """
    settings = config.load()
    given = timeout != dist.distributed_c10d.default_pg_timeout
    own = seconds(timeout)
    return settings.replace(
        TRANSPORT=None
        if options.transport is None
        else parse("TRANSPORT", options.transport, "Options(transport)"),
        BUFFER_SIZE=None
        if options.buffer_size is None
        else parse("BUFFER_SIZE", str(options.buffer_size), "Options(buffer_size)"),
        TIMEOUT=parse("TIMEOUT", str(seconds(options.timeout)), "Options(timeout)")
        if options.timeout is not None
        else own
        if given or not settings.source("TIMEOUT")
        else None,
        INIT_TIMEOUT=own if given or not settings.source("INIT_TIMEOUT") else None,
    )


def seconds(time: float | timedelta) -> float:
    """A duration in seconds."""
    return time.total_seconds() if isinstance(time, timedelta) else float(time)
