"""Starts the ranks of a measurement on this host, listens to rank 0, and leaves nobody behind."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from hcomm.errors import HcommError
from hcomm.topology.cpus import format_cpulist

#: Variables by which launchers tell a process its place: the processes started here have their own.
_LAUNCHER_NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_LAUNCHER_PREFIXES = ("TORCHELASTIC_", "OMPI_", "PMIX_", "PMI_", "MPI_", "SLURM_", "JOB_COMPLETION_")


class MeasurementFailed(HcommError):
    """The processes that measure did not come to an end; the message tells what they said."""


class LocalJob:
    """Ranks on this host, as a context manager; every process is gone when the context is left.

    Args:
        ranks: how many.
        cpus: CPUs that they may use; empty: those of this process.
        seconds: the longest that the whole measurement may take.
        module: what each rank runs.
        environment: further variables for all ranks.
        arguments: of the module.
        launcher: words, such as `mpiexec -n 2`, of a command that starts all ranks; without it they are started here.
    """

    def __init__(
        self,
        ranks: int,
        cpus: Sequence[int],
        seconds: float,
        module: str = "hcomm.cli.probe_worker",
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        launcher: Sequence[str] = (),
    ) -> None:
        self._ranks = ranks
        self._module = module
        self._environment = dict(environment or {})
        self._arguments = list(arguments)
        self._launcher = list(launcher)
        self._cpus = cpus
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._processes: list[subprocess.Popen[str]] = []
        self._errors: list[IO[str]] = []
        self._lines: queue.Queue[str | None] = queue.Queue()

    def __enter__(self) -> LocalJob:
        job_id = uuid.uuid4().hex
        try:
            for rank in range(1 if self._launcher else self._ranks):
                self._errors.append(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
                self._processes.append(self._start(rank, job_id))
        except BaseException:
            self.__exit__()
            raise
        threading.Thread(target=self._listen, name="hcomm-check-listen", daemon=True).start()
        return self

    def _start(self, rank: int, job_id: str) -> subprocess.Popen[str]:
        command = [*self._launcher, sys.executable, "-m", self._module, *self._arguments]
        if self._cpus:
            command += ["--cpus", format_cpulist(self._cpus)]
        environment = worker_environment(rank, self._ranks, job_id)
        if self._launcher:
            environment = {name: text for name, text in environment.items() if name not in _LAUNCHER_NAMES}
        return subprocess.Popen(
            command,
            env=environment | self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=self._errors[rank],
            text=True,
        )

    def _listen(self) -> None:
        """Pass rank 0's lines on; None at their end. A thread, so that waiting for a line can have a deadline."""
        output = self._processes[0].stdout
        assert output is not None
        with contextlib.suppress(ValueError):  # closed while reading
            for line in output:
                self._lines.put(line)
        self._lines.put(None)

    def messages(self) -> Iterator[dict[str, Any]]:
        """What rank 0 says, up to its end.

        Raises:
            MeasurementFailed: a process failed, or the time is over.
        """
        while True:
            try:
                line = self._lines.get(timeout=0.2)
            except queue.Empty:
                self._check()
                continue
            if line is None:
                return
            try:
                message = json.loads(line)
            except ValueError:
                continue  # something that a library printed
            if isinstance(message, dict):
                yield message

    def _check(self) -> None:
        """Raise when a rank has failed or the time is over."""
        for rank, process in enumerate(self._processes):
            if process.poll() not in (None, 0):
                # rank 0 gets a moment to tell what it saw: that is better than a bare exit code
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._processes[0].wait(timeout=3)
                raise MeasurementFailed(
                    self.explain(f"rank {rank} ended with exit code {process.returncode}", rank)
                )
        if time.monotonic() > self._deadline:
            raise MeasurementFailed(self.explain(f"the measurement took longer than {self._seconds:g} s", 0))

    def explain(self, what: str, rank: int) -> str:
        """`what`, with the last words of that rank."""
        stream = self._errors[rank]
        stream.seek(0)
        words = [line.rstrip() for line in stream.read().splitlines() if line.strip()][-12:]
        return "\n".join([what, *(f"  rank {rank}: {line}" for line in words)])

    def __exit__(self, *exception: object) -> None:
        until = time.monotonic() + (0.0 if any(exception) else 5.0)
        for process in self._processes:
            try:
                process.wait(timeout=max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process in self._processes:
            if process.stdout is not None:
                process.stdout.close()
        for stream in self._errors:
            stream.close()


def worker_environment(rank: int, ranks: int, job_id: str) -> dict[str, str]:
    """The environment of one rank: this process's without its launcher, with a place of its own."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _LAUNCHER_NAMES and not name.startswith(_LAUNCHER_PREFIXES)
    }
    environment.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
        HCOMM_JOB_ID=job_id,
        PYTHONUNBUFFERED="1",
    )
    environment.setdefault("HCOMM_INIT_TIMEOUT", "30")
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment
