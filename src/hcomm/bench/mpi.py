"""MPI through mpi4py, on the same buffers, in the processes that mpiexec started."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

from hcomm.bench.cases import Case
from hcomm.bench.libraries import Call, Unsupported, by_rank, neighbours
from hcomm.bench.order import Line
from hcomm.communicator import Communicator
from hcomm.errors import HcommError

_VERSION_SECONDS = 20.0


def launcher(ranks: int) -> list[str]:
    """The words that start `ranks` processes of what follows under the MPI of this machine.

    Raises:
        HcommError: there is no mpiexec.
    """
    command = shutil.which("mpiexec")
    if command is None:
        raise HcommError("--peer mpi4py needs mpiexec, and there is none in PATH: install an MPI")
    words = [command, "-n", str(ranks)]
    told = ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [command, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False
        )
        told = done.stdout + done.stderr
    if "Open MPI" in told or "OpenRTE" in told:
        words += ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            words.append("--allow-run-as-root")
    return words


class Mpi:
    """The MPI library that mpi4py finds."""

    keeps_input = True

    def __init__(self, world: Communicator) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise HcommError(
                f"--peer mpi4py: mpi4py cannot be used: {error}; it takes another MPI from MPI4PY_LIBMPI"
            ) from None
        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        if self._comm.size != world.size:
            raise HcommError(
                f"--peer mpi4py: rank {world.rank}: MPI sees {self._comm.size} ranks where hcomm sees {world.size}: "
                "start the job with the mpiexec of the MPI that mpi4py uses"
            )
        # Ranks of hcomm in the order of MPI's.
        self._comm = self._comm.Split(0, world.rank)
        words = MPI.Get_library_version().strip("\0").splitlines()[0].split(",")[0]
        self.version = " ".join(words.split())

    def call(self, case: Case, line: Line) -> Call:
        """See libraries.Library."""
        mpi, comm, point = self._mpi, self._comm, case.point
        name, root, at_root = point.operation, point.root, case.rank == point.root
        if point.dtype in ("float16", "bfloat16"):
            raise Unsupported(f"MPI has no {point.dtype}")
        if point.operator == "avg":
            raise Unsupported("MPI has no avg")
        if point.dtype == "bool" and point.operator in ("sum", "prod", "min", "max"):
            raise Unsupported(f"MPI has no {point.operator} of bool")
        source, target = case.source_view, case.target_view
        names = {"band": "LAND", "bor": "LOR", "bxor": "LXOR"} if point.dtype == "bool" else {}
        op = getattr(mpi, names.get(point.operator, point.operator.upper()), None)
        place = mpi.IN_PLACE
        given = place if case.in_place else source
        calls: dict[str, Call] = {
            "all_reduce": lambda: comm.Allreduce(given, target, op),
            "reduce": lambda: comm.Reduce(
                given if at_root else source, target if at_root else None, op, root
            ),
            "broadcast": lambda: comm.Bcast(source if at_root or case.in_place else target, root),
            "all_gather": lambda: comm.Allgather(given, target),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(source, target, op),
            "all_to_all": lambda: comm.Alltoall(source, target),
            "gather": lambda: comm.Gather(given if at_root else source, target if at_root else None, root),
            "scatter": lambda: comm.Scatter(source if at_root else None, given_out(case, place), root),
            "barrier": comm.Barrier,
            "send_recv": self._exchange(case),
            "ping_pong": self._ping_pong(case),
        }
        if case.in_place and name == "reduce_scatter":
            raise Unsupported("MPI's in-place form leaves the result at the start of the input")
        if not case.in_place and name == "broadcast":
            raise Unsupported("MPI's Bcast has no out-of-place form")
        return calls[name]

    def _exchange(self, case: Case) -> Call:
        after, before = neighbours(case)
        return lambda: self._comm.Sendrecv(case.source_view, after, recvbuf=case.target_view, source=before)

    def _ping_pong(self, case: Case) -> Call:
        comm, source, target = self._comm, case.source_view, case.target_view

        def serve() -> None:
            comm.Send(source, 1)
            comm.Recv(target, 1)

        def give_back() -> None:
            comm.Recv(target, 0)
            comm.Send(target, 0)

        return by_rank(case, serve, give_back)

    def leave(self) -> None:
        """Give the communicator back; mpi4py ends MPI when Python exits."""
        self._comm.Free()


def given_out(case: Case, place: object) -> object:
    """The output of a scatter: the root's own block stays where it is in place."""
    return place if case.in_place and case.rank == case.point.root else case.target_view
