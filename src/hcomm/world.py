"""The default communicator: all ranks of the job, from `init` to `finalize`."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, NoReturn, cast

from hcomm import _native, config, ending, memory
from hcomm.communicator import Communicator, agreed_settings
from hcomm.errors import AlreadyInitialized, ForkedProcess, NotInitialized
from hcomm.surroundings import described_groups

if TYPE_CHECKING:
    from hcomm.bootstrap import BootstrapSettings, Probes, World


class _Absent:
    """Stands where no default communicator is: any use raises, so that no call has to ask first."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        raise NotInitialized(self._reason)


_BEFORE = _Absent("hcomm is not initialised in this process: call hcomm.init() first")
_AFTER = _Absent("hcomm was finalized: finalize() has been called; call init() to start again")


class State:
    """What `init` made.

    Attributes:
        communicator: of all ranks; between `finalize` and `init`, an object that raises NotInitialized on any
            use.
        job: where the links come from; None between `finalize` and `init`.
        engine: what drives all communicators of this process.
    """

    def __init__(self) -> None:
        self.communicator = cast(Communicator, _BEFORE)
        self.job: World | None = None
        self.engine: _native.Engine | None = None
        self.registered = False

    @property
    def present(self) -> bool:
        """Whether there is a default communicator."""
        return isinstance(self.communicator, Communicator)

    def of(self, group: Communicator | None) -> Communicator:
        """The communicator that was given as `group=`, or (None) the default one. Raises ValueError."""
        if group is None:
            return self.communicator
        if isinstance(group, Communicator):
            return group
        raise ValueError(
            f"group must be an hcomm.Communicator (hcomm.new_group(ranks) makes one), or None for all ranks; found "
            f"{group!r}. Of a process group of torch take hcomm.torch.communicator(group)"
        )


VERSION = "0.1.0"

#: Of this process.
state = State()


def init(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    local_size: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    transport: str | None = None,
    timeout: float | None = None,
    init_timeout: float | None = None,
) -> Communicator:
    """Join the job that this process was started for, and connect to all its ranks. Every rank calls it.

    Arguments that are not given are found from the launcher: torchrun, Open MPI, MPICH and other PMI
    launchers, Slurm, Kubernetes indexed jobs, or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without any
    of them: a world of one.

    Arguments that contradict the launcher are an error.

    Args:
        rank: this process among all, from 0.
        world_size: number of processes.
        local_rank: this process among those of its host, from 0.
        local_size: number of processes on this host.
        master_addr: where rank 0 listens.
        master_port: the port it listens on.
        transport: `auto`, `shm` or `tcp`; wins over HCOMM_TRANSPORT.
        timeout: default seconds for one operation; wins over HCOMM_TIMEOUT (300).
        init_timeout: seconds to wait for the other ranks; wins over HCOMM_INIT_TIMEOUT (300).

    Returns:
        The communicator of all ranks; the functions of this package use it by default.

    Raises:
        AlreadyInitialized: called before, without `finalize` since.
        ForkedProcess: called in a child forked after the parent's `init`.
        ConfigError: a setting does not parse.
        TopologyError: HCOMM_TOPOLOGY, or a hint of groups, is wrong.
        InitError: the job could not be brought up; its subclasses say why (LaunchError: impossible arguments).
    """
    _refuse_second_init()
    config.warn_unknown()
    settings = config.load().replace(
        TRANSPORT=None if transport is None else config.parse("TRANSPORT", transport, "transport"),
        TIMEOUT=None if timeout is None else config.parse("TIMEOUT", str(timeout), "timeout"),
        INIT_TIMEOUT=None
        if init_timeout is None
        else config.parse("INIT_TIMEOUT", str(init_timeout), "init_timeout"),
    )
    _check_devices(settings.text("VISIBLE_DEVICES"))
    # Sockets, selectors and the like are loaded when they are needed, so that `import hcomm` stays cheap.
    from hcomm import bootstrap

    launch = bootstrap.detect(
        os.environ,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_size=local_size,
        master_addr=master_addr,
        master_port=master_port,
    )
    fast = described_groups(os.environ, launch.world_size)
    job = bootstrap.start(launch, _bootstrap_settings(settings), _probes(), _notify, version=VERSION)
    try:
        engine = _native.Engine(settings.size("MAX_CONCURRENT"))
        wiring = job.wire_world(agreed_settings(settings, groups=fast))
        communicator = Communicator(engine, job, wiring, settings, fast=fast)
        communicator.settle_costs()
    except BaseException:
        job.close()
        raise
    state.job, state.engine, state.communicator = job, engine, communicator
    if not state.registered:
        state.registered = True
        atexit.register(_at_exit)
    communicator.announce(launch.source)
    communicator.warn_slow_links()
    return communicator


def _check_devices(setting: str) -> None:
    """Raise ConfigError for devices that this machine does not have, so that a slip does not go unnoticed."""
    if setting:
        from hcomm.topology.accelerators import probe_accelerators, visible_devices

        # A launcher may have bound this rank to some CPUs; the setting speaks of the machine.
        cpus = sorted({*range(os.cpu_count() or 1), *os.sched_getaffinity(0)})
        visible_devices(setting, probe_accelerators(), cpus)


def _bootstrap_settings(settings: config.Settings) -> BootstrapSettings:
    from hcomm.bootstrap import BootstrapSettings

    return BootstrapSettings(
        init_timeout=settings.seconds("INIT_TIMEOUT"),
        transport=settings.text("TRANSPORT"),
        socket_ifname=settings.text("SOCKET_IFNAME") or None,
        job_secret=settings.text("JOB_SECRET") or None,
        job_id=settings.text("JOB_ID") or None,
        buffer_bytes=settings.size("BUFFER_SIZE"),
    )


def _probes() -> Probes:
    from hcomm.bootstrap import Probes

    return Probes(_native.window_bytes, _native.cma_read, _native.address_of)


def _notify(line: str) -> None:
    """While ranks are missing: a line for the person who waits."""
    print(line, file=sys.stderr, flush=True)


def _refuse_second_init() -> None:
    if not state.present:
        return
    ended = state.communicator._ended
    if isinstance(ended, ForkedProcess):
        raise ForkedProcess(str(ended))
    raise AlreadyInitialized(
        f"init() was called before: this is rank {state.communicator.rank} of {state.communicator.size}; "
        "call finalize() first"
    )


def finalize(*, timeout: float = 10.0) -> None:
    """Leave the job: close every communicator. Does nothing before `init`, after `finalize`, and in a forked
    child.

    Operations that were started and still run are waited for; those that are not over in time, or never will be
    because a peer has finalised, are dropped with a RuntimeWarning. Messages that nobody has received vanish. When
    Python exits without it, nothing is waited for.

    Args:
        timeout: seconds to wait, for all operations together.

    Raises:
        CommunicatorError: a communicator, or an operation that nobody waited for, failed and nobody has been told;
            raised after everything has been closed, and only warned about while another exception is on its way.
        ValueError: `timeout` is not a number of seconds, or negative.
    """
    if not _ours():
        return
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise ValueError(f"timeout must be a number of seconds, 0 or more, not {timeout!r}")
    me, failing = state.communicator.rank, sys.exc_info()[0] is not None
    dropped: list[str] = []
    error = None
    communicators = ending.still_open()
    try:
        dropped = ending.wait_for_running(timeout)
        error = ending.unheard()
    finally:
        _close(exiting=False)
    error = error or ending.stale(communicators)
    if dropped:
        warnings.warn(
            f"hcomm rank {me}: finalize() dropped operations that were not complete: {'; '.join(dropped)}",
            RuntimeWarning,
            stacklevel=2,
        )
    if error is None:
        return
    if not failing:
        raise error
    warnings.warn(f"hcomm: nobody has been told of this failure: {error}", RuntimeWarning, stacklevel=2)


def _ours() -> bool:
    """Whether there is something to leave, in this very process."""
    return state.present and not isinstance(state.communicator._ended, ForkedProcess)


def _at_exit() -> None:
    """Python exits and nobody has called `finalize`: wait for nothing, raise nothing, tell the peers."""
    if _ours():
        with contextlib.suppress(Exception):
            _close(exiting=True)


def _close(*, exiting: bool) -> None:
    ending.close_all(exiting=exiting)
    if state.engine is not None:
        memory.release_all(state.engine)
        state.engine.close()
    if state.job is not None:
        state.job.close()
    state.engine = state.job = None
    state.communicator = cast(Communicator, _AFTER)


def is_initialized() -> bool:
    """Whether `init` has been called and `finalize` has not, in this process."""
    return state.present and state.communicator._ended is None


def default_communicator() -> Communicator:
    """The communicator of all ranks. Raises NotInitialized."""
    return state.communicator


def _job() -> World:
    state.communicator._check_alive()
    assert state.job is not None
    return state.job


def rank(group: Communicator | None = None) -> int:
    """This process's rank in the job, or in `group`. Raises NotInitialized."""
    return state.of(group).rank


def world_size(group: Communicator | None = None) -> int:
    """Number of ranks in the job, or in `group`. Raises NotInitialized."""
    return state.of(group).size


def local_rank() -> int:
    """This process's rank among those of its host, from 0. Raises NotInitialized."""
    return _job().local_rank


def local_size() -> int:
    """Number of ranks of the job on this host. Raises NotInitialized."""
    return _job().local_size


def node() -> str:
    """The name of this host. Raises NotInitialized."""
    job = _job()
    return job.contacts[job.rank].hostname


def get_backend_name(group: Communicator | None = None) -> str:
    """How the ranks are joined: `shm`, `tcp`, `shm+tcp`, or `self` for a single rank. Raises NotInitialized."""
    return state.of(group).backend_name
