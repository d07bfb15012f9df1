"""Start the ranks of a job as real processes, wait for them, and leave nobody behind."""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TESTS = Path(__file__).resolve().parent.parent
WORKER = TESTS / "support" / "worker.py"

#: Variables of launchers and of hcomm that must not leak from the shell that runs the tests into a job.
_LEAKY = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_LEAKY_PREFIXES = ("HCOMM_", "HCCL_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_")


@dataclass(frozen=True)
class Failure:
    """An exception that a rank met, in words that survive the process."""

    kind: str  # class name
    kinds: tuple[str, ...]  # class names of the whole ancestry
    text: str
    ranks: tuple[int, ...]  # `ranks` of a CommunicatorError
    seconds: float  # from the call to the exception


@dataclass(frozen=True)
class Outcome:
    """How one rank ended."""

    rank: int
    code: int | None  # exit code, negative for a signal
    out: str
    err: str
    seconds: float  # from the start of the job to the end of this rank
    value: Any  # what the function returned
    error: Failure | None  # the exception that left the function or init
    survived: bool  # it had to be killed by the fixture

    def __str__(self) -> str:
        head = f"rank {self.rank}: exit code {self.code} after {self.seconds:.1f} s"
        if self.survived:
            head += " (killed by the test: it never ended)"
        error = f"\n  {self.error.kind}: {self.error.text}" if self.error else ""
        return f"{head}{error}\n--- stdout\n{self.out[-2000:]}\n--- stderr\n{self.err[-3000:]}"


def clean_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without anything that tells a process it belongs to a job."""
    env = {k: v for k, v in os.environ.items() if k not in _LEAKY and not k.startswith(_LEAKY_PREFIXES)}
    env["OMP_NUM_THREADS"] = "1"
    env["PYTHONFAULTHANDLER"] = "1"
    env["PYTHONUNBUFFERED"] = "1"
    env.update(extra or {})
    return env


def free_port() -> int:
    """A port that nobody used a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _target(function: Callable[..., Any] | str) -> str:
    if isinstance(function, str):
        return function
    return f"{inspect.getfile(function)}:{function.__qualname__}"


class Job:
    """A job of `world` ranks on this host.

    Args:
        world: number of ranks to describe in the environment.
        function: a module-level function of a test file, or "path.py:name"; every rank calls it after `hcomm.init()`.
        args: what to call it with; must pickle.
        env: settings for all ranks; `rank_env` for single ones. A value of None removes the variable.
        transport: forced with HCOMM_TRANSPORT when given.
        timeout: seconds until the ranks that are left are killed.
        init: call `hcomm.init()` before and `hcomm.finalize()` after the function.
        ranks: which ranks to start now (default: all); the others with `start`.
        prefix: words to put before a rank's command line (`unshare`, `taskset`, …).
        address: MASTER_ADDR; with `port`=0 the job is found by its id.
    """

    def __init__(
        self,
        world: int,
        function: Callable[..., Any] | str,
        *,
        args: Sequence[Any] = (),
        env: Mapping[str, str | None] | None = None,
        rank_env: Mapping[int, Mapping[str, str | None]] | None = None,
        transport: str | None = None,
        timeout: float = 60.0,
        init: bool = True,
        ranks: Sequence[int] | None = None,
        prefix: Callable[[int], Sequence[str]] | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.world = world
        self.timeout = timeout
        self.directory = Path(tempfile.mkdtemp(prefix="job-"))
        self._prefix = prefix
        self._rank_env = rank_env or {}
        self._env: dict[str, str | None] = {
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "HCOMM_JOB_ID": uuid.uuid4().hex,
            "HCOMM_TIMEOUT": "30",
            "HCOMM_INIT_TIMEOUT": "30",
            "JOB_DIR": str(self.directory),
        }
        if transport is not None:
            self._env["HCOMM_TRANSPORT"] = transport
        self._env.update(env or {})
        order = {"target": _target(function), "args": tuple(args), "init": init}
        (self.directory / "order").write_bytes(pickle.dumps(order))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.ended: dict[int, float] = {}
        self._survived: set[int] = set()
        self.started = time.monotonic()
        for rank in range(world) if ranks is None else ranks:
            self.start(rank)

    def start(self, rank: int) -> None:
        """Start one rank's process."""
        env: dict[str, str | None] = {"RANK": str(rank), "LOCAL_RANK": str(rank), **self._env}
        env.update(self._rank_env.get(rank, {}))
        words = [*(self._prefix(rank) if self._prefix else ()), sys.executable, str(WORKER)]
        with (
            (self.directory / f"out-{rank}").open("wb") as out,
            (self.directory / f"err-{rank}").open("wb") as err,
        ):
            self.processes[rank] = subprocess.Popen(
                [*words, str(self.directory), str(rank)],
                env={k: v for k, v in clean_env().items() if k not in env}
                | {k: v for k, v in env.items() if v is not None},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def pid(self, rank: int) -> int:
        """Process id of a rank."""
        return self.processes[rank].pid

    def signal(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to one rank (SIGKILL unless told)."""
        if self.processes[rank].poll() is None:
            self.processes[rank].send_signal(number)

    def marked(self, mark: str, ranks: Sequence[int] | None = None, timeout: float = 30.0) -> None:
        """Wait until ranks have called `support.inside.mark(mark)`."""
        end = time.monotonic() + timeout
        for rank in self.processes if ranks is None else ranks:
            while not (self.directory / f"mark-{mark}-{rank}").exists():
                if time.monotonic() > end or self.processes[rank].poll() is not None:
                    raise AssertionError(f"rank {rank} did not reach {mark!r}\n{self.report()}")
                time.sleep(0.005)

    def tell(self, mark: str) -> None:
        """Let ranks go on that called `support.inside.told(mark)`."""
        (self.directory / f"tell-{mark}").touch()

    def alive(self) -> list[int]:
        """Ranks whose process runs."""
        now = time.monotonic()
        for rank, process in self.processes.items():
            if process.poll() is not None:
                self.ended.setdefault(rank, now - self.started)
        return [r for r, p in self.processes.items() if p.poll() is None]

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Outcomes of all started ranks, in rank order, once they ended or were killed because their time was over."""
        end = self.started + self.timeout if timeout is None else time.monotonic() + timeout
        while self.alive() and time.monotonic() < end:
            time.sleep(0.005)
        self._survived |= set(self.alive())
        self.close()
        return [self._outcome(rank) for rank in sorted(self.processes)]

    def close(self) -> None:
        """Kill whoever is left, and their children."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()
        self.alive()

    def discard(self) -> None:
        """Kill whoever is left and remove the job's directory."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def report(self) -> str:
        """Everything the ranks said, for a failing assertion."""
        return "\n".join(str(self._outcome(rank)) for rank in sorted(self.processes))

    def _outcome(self, rank: int) -> Outcome:
        result: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError, EOFError):
            result = pickle.loads((self.directory / f"result-{rank}").read_bytes())
        return Outcome(
            rank=rank,
            code=self.processes[rank].poll(),
            out=(self.directory / f"out-{rank}").read_text(errors="replace"),
            err=(self.directory / f"err-{rank}").read_text(errors="replace"),
            seconds=self.ended.get(rank, time.monotonic() - self.started),
            value=result.get("value"),
            error=result.get("error"),
            survived=rank in self._survived,
        )


def report(outcomes: Sequence[Outcome]) -> str:
    """All outcomes in words."""
    return "\n" + "\n".join(map(str, outcomes))


def values(outcomes: Sequence[Outcome]) -> list[Any]:
    """The returned values in rank order, after asserting that every rank ended well."""
    assert all(o.code == 0 and o.error is None and not o.survived for o in outcomes), report(outcomes)
    return [o.value for o in outcomes]
