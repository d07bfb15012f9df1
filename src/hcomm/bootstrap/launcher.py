"""Which launcher started this process, and what it says about the job."""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hcomm.bootstrap.ancestry import process_manager
from hcomm.bootstrap.hostlist import first_host
from hcomm.errors import LaunchError

#: How ranks meet: not at all (a world of one), at rank 0's port, at torchrun's agent, or through a file on
#: one host, or at a store that was handed to us.
NONE, TCP, AGENT, FILE, HANDED = "none", "tcp", "agent", "file", "handed"

#: Names of the sources.
ARGUMENTS, TORCHRUN, PLAIN = "the arguments of init", "torchrun", "RANK/WORLD_SIZE"
OPEN_MPI, PMI, SLURM, KUBERNETES = "Open MPI", "PMI (MPICH, Intel MPI)", "Slurm", "a Kubernetes indexed job"


@dataclass(frozen=True)
class _Local:
    """Variables that say where on its node a process is; the first that is set counts."""

    rank: tuple[str, ...]
    size: tuple[str, ...]
    node: tuple[str, ...] = ()


_LOCAL = {
    TORCHRUN: _Local(("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",), ("GROUP_RANK",)),
    PLAIN: _Local(("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",), ("GROUP_RANK", "NODE_RANK")),
    OPEN_MPI: _Local(("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_LOCAL_SIZE",)),
    PMI: _Local(
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
    ),
    SLURM: _Local(("SLURM_LOCALID",), (), ("SLURM_NODEID",)),
    KUBERNETES: _Local(("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",), ("JOB_COMPLETION_INDEX",)),
}


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of a job meet.

    Attributes:
        kind: `none`, `tcp` (rank 0 hosts a store at `host`:`port`), `agent` (torchrun's agent does), `file`
            (rank 0 writes its address into a file), `handed` (a store that somebody else has connected;
            `host` is its address, if it has one).
        host: name or address of the meeting point; "" if none is needed.
        port: its port; 0 if none is needed.
        job: what tells this job from others; "" if the launcher does not say.
    """

    kind: str
    host: str = ""
    port: int = 0
    job: str = ""

    def describe(self) -> str:
        """In words, for messages."""
        if self.kind == NONE:
            return "no rendezvous (a world of one)"
        if self.kind == TCP:
            return f"a store hosted by rank 0 at {self.host}:{self.port}"
        if self.kind == AGENT:
            return f"the store of torchrun's agent at {self.host}:{self.port}"
        if self.kind == HANDED:
            return "a store that was handed over"
        return f"a file on this host, for the job {self.job or '(HCOMM_JOB_ID)'}"


@dataclass(frozen=True)
class Launch:
    """What the launcher says about this process.

    Attributes:
        rank: global rank.
        world_size: number of ranks.
        local_rank: rank on this node, or None if it does not say.
        local_size: ranks on this node, or None if it does not say.
        node: number of this node, or None if it does not say.
        source: its name.
        meeting: where the ranks meet.
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_size: int | None
    node: int | None
    source: str
    meeting: Meeting


@dataclass(frozen=True)
class _Claim:
    """What one source says: its variables for rank and size and what they hold."""

    source: str
    rank: int
    size: int
    names: tuple[str, str]

    def describe(self) -> str:
        says = "say" if self.source == ARGUMENTS else "says"
        return f"{self.source} {says} rank {self.rank} of {self.size} ({self.names[0]}, {self.names[1]})"


class _Environment:
    """Variables, read as what they must be."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, *names: str) -> str:
        """The first of these variables that is set; "" if none is."""
        return next((self._environ[name] for name in names if self._environ.get(name)), "")

    def number(self, *names: str) -> int | None:
        """Likewise, as a number that is not negative.

        Raises:
            LaunchError: it is not one.
        """
        for name in names:
            value = self._environ.get(name)
            if value:
                if re.fullmatch(r"-\d+", value.strip()):
                    raise LaunchError(f"{name}={value.strip()} is negative; it must be 0 or more")
                if not re.fullmatch(r"\d{1,10}", value.strip()):
                    raise LaunchError(f"{name}={value!r} is not a number; it must be an integer, 0 or more")
                return int(value)
        return None

    def claim(self, source: str, rank: str, size: str) -> _Claim | None:
        """What a source with these two variables says; None if it is absent.

        Raises:
            LaunchError: one of the variables is missing or not a number, or the rank is not below the size.
        """
        r, n = self.number(rank), self.number(size)
        if r is None and n is None:
            return None
        if r is None or n is None:
            there, absent = (size, rank) if r is None else (rank, size)
            raise LaunchError(
                f"{source}: {there}={self.text(there)} is set, but {absent} is missing; set both or neither"
            )
        return _checked(_Claim(source, r, n, (rank, size)))


def _checked(claim: _Claim) -> _Claim:
    if claim.size < 1:
        raise LaunchError(f"{claim.source}: {claim.names[1]} is {claim.size}, expected at least 1")
    if claim.source == ARGUMENTS and claim.rank >= claim.size:
        raise LaunchError(
            f"{claim.describe()}: rank must be in 0..{claim.size - 1}, for world_size counts all ranks"
        )
    if claim.size == 1 and claim.rank > 0:
        raise LaunchError(f"{claim.describe()}: expected rank 0 in a world of one")
    # Otherwise a rank outside its world is not refused here: at the meeting point all ranks hear of it.
    return claim


def detect(
    environ: Mapping[str, str],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    local_size: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
) -> Launch:
    """Find out who this process is.

    Explicit arguments come first, then torchrun, RANK and WORLD_SIZE, Open MPI, MPICH and other PMI
    launchers, Slurm, Kubernetes indexed jobs. Nothing of all
    that: a world of one.

    Args:
        environ: the environment.
        rank: global rank, if the caller says it.
        world_size: number of ranks, if the caller says it.
        local_rank: rank on this node; wins over the environment.
        local_size: ranks on this node; wins over the environment.
        master_addr: host of rank 0; wins over the environment.
        master_port: rank 0's port; wins over the environment.

    Raises:
        LaunchError: something is missing, is not a number, or two sources contradict each other.
    """
    rank, world_size = _whole("rank", rank), _whole("world_size", world_size, least=1)
    local_rank, local_size = _whole("local_rank", local_rank), _whole("local_size", local_size, least=1)
    master_port = _whole("master_port", master_port)
    if master_addr is not None and not isinstance(master_addr, str):
        raise LaunchError(f"master_addr must be a name or an address, found {master_addr!r}")
    env = _Environment(environ)
    claims = _claims(env, rank, world_size)
    _compare(claims)
    if not claims:
        launch = Launch(0, 1, None, None, None, "no launcher", Meeting(NONE))
        orphan = env.text("MASTER_ADDR")
        if orphan:
            raise LaunchError(
                f"MASTER_ADDR={orphan} is set, but RANK and WORLD_SIZE are missing: set them, or unset "
                "MASTER_ADDR for a world of one"
            )
    else:
        launch = _complete(env, claims, master_addr, master_port)
    if local_rank is not None or local_size is not None:
        launch = replace(
            launch,
            local_rank=launch.local_rank if local_rank is None else local_rank,
            local_size=launch.local_size if local_size is None else local_size,
        )
        if launch.local_size is not None and (launch.local_rank or 0) >= launch.local_size:
            raise LaunchError(
                f"local_rank={launch.local_rank} is outside 0..{launch.local_size - 1} (local_size={launch.local_size})"
            )
        if launch.local_size is not None and launch.local_size > launch.world_size:
            raise LaunchError(f"local_size={launch.local_size} is more than world_size={launch.world_size}")
    return launch


def _whole(name: str, value: object, least: int = 0) -> int | None:
    """An argument of `init` that is a number, or None.

    Raises:
        LaunchError: it is something else, or too small.
    """
    if value is None:
        return None
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise LaunchError(
            f"init: {name} must be an integer, found {value!r} ({type(value).__name__})"
        ) from None
    if isinstance(value, bool) or number < least:
        raise LaunchError(f"init: {name}={value!r}: it must be {least} or more")
    return number


def _claims(env: _Environment, rank: int | None, world_size: int | None) -> list[_Claim]:
    found: list[_Claim | None] = []
    if (rank is None) != (world_size is None):
        absent = "rank" if rank is None else "world_size"
        raise LaunchError(f"init was given only one of rank and world_size: {absent} is missing")
    if rank is not None and world_size is not None:
        found.append(_checked(_Claim(ARGUMENTS, rank, world_size, ("rank", "world_size"))))
    run = env.text("TORCHELASTIC_RUN_ID")
    found.append(
        env.claim(TORCHRUN if run else PLAIN, "RANK", "WORLD_SIZE")
        if env.text("RANK") or not _indexed(env)
        else None
    )
    found.append(env.claim(OPEN_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
    found.append(env.claim(PMI, "PMI_RANK", "PMI_SIZE"))
    size = "SLURM_STEP_NUM_TASKS" if env.text("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    # A batch script without srun has SLURM_PROCID=0 and the allocation's SLURM_NTASKS, but it is one process: only
    # the tasks of a step were started by rank.
    step = env.text("SLURM_STEP_ID", "SLURM_STEPID")
    found.append(env.claim(SLURM, "SLURM_PROCID", size) if step and env.text("SLURM_PROCID") else None)
    if _indexed(env):
        found.append(env.claim(KUBERNETES, "JOB_COMPLETION_INDEX", "WORLD_SIZE"))
    return [claim for claim in found if claim is not None]


def _indexed(env: _Environment) -> bool:
    return bool(env.text("JOB_COMPLETION_INDEX")) and bool(env.text("WORLD_SIZE")) and not env.text("RANK")


def _compare(claims: list[_Claim]) -> None:
    """Sources that launched *this process* must agree.

    What launched torchrun's agents speaks of the agents. Slurm's variables inside mpirun speak of MPI's daemons, and
    with one task of an allocation.
    """
    inner = {claim.source for claim in claims}
    if TORCHRUN in inner:
        claims = [claim for claim in claims if claim.source in (ARGUMENTS, TORCHRUN)]
    within = bool(inner & {OPEN_MPI, PMI})
    speaking = [
        claim
        for claim in claims
        if claim.source != SLURM or not (within or (claim.size == 1 and len(claims) > 1))
    ]
    for other in speaking[1:]:
        first = speaking[0]
        if (first.rank, first.size) != (other.rank, other.size):
            raise LaunchError(
                f"two launchers contradict each other: {first.describe()}, but {other.describe()}. Unset "
                "the variables of the one that is not meant"
            )


def _complete(
    env: _Environment, claims: list[_Claim], master_addr: str | None, master_port: int | None
) -> Launch:
    claim = claims[0]
    # Arguments say who this is; where it runs is still best known to the launcher that agrees with them.
    source = claims[1].source if claim.source == ARGUMENTS and len(claims) > 1 else claim.source
    step = next((c for c in claims if c.source == SLURM), None)
    if (
        source == PMI
        and step
        and (step.rank, step.size) == (claim.rank, claim.size)
        and not env.text("MPI_LOCALNRANKS")
    ):
        source = SLURM  # srun speaks PMI too, and knows the hosts
    local = _LOCAL.get(source, _LOCAL[PLAIN])
    local_rank, local_size = env.number(*local.rank), env.number(*local.size)
    node = env.number(*local.node) if local.node else None
    if claim.size == 1:
        return Launch(claim.rank, 1, local_rank, local_size, node, claim.source, Meeting(NONE))
    address = (master_addr or env.text("MASTER_ADDR")).strip("[] ")
    port = master_port if master_port is not None else env.number("MASTER_PORT")
    if port is not None and not 0 <= port <= 65535:
        raise LaunchError(f"MASTER_PORT={port} is not a port; expected 0..65535")
    meeting = _meeting(env, source, claim, address, port)
    if source == OPEN_MPI and local_size is not None and local_size < claim.size and meeting.kind == FILE:
        raise _several_hosts(source, local_size, claim.size)
    return Launch(claim.rank, claim.size, local_rank, local_size, node, claim.source, meeting)


def _several_hosts(source: str, local: int, size: int) -> LaunchError:
    return LaunchError(
        f"{source}: the job spans several hosts ({local} of {size} ranks are on this one), so the ranks "
        "need to be told where rank 0 is: "
        "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, on all ranks (mpirun "
        "-x MASTER_ADDR=… -x MASTER_PORT=…)"
    )


def _meeting(env: _Environment, source: str, claim: _Claim, address: str, port: int | None) -> Meeting:
    job = _job(env, source)
    if source == TORCHRUN and env.text("TORCHELASTIC_USE_AGENT_STORE") == "True":
        _need(claim, address, port)
        return Meeting(AGENT, address, port or 0, job)
    if port == 0:
        return Meeting(FILE, job=job)
    if source == SLURM:
        host = address or _first_slurm_host(env)
        return Meeting(TCP, host, port if port is not None else _port_of(job), job)
    if source in (OPEN_MPI, PMI) and not address:
        if port is not None and claim.source != ARGUMENTS:
            raise LaunchError(
                f"{claim.source}: MASTER_PORT={port} is set, but MASTER_ADDR is missing; set both or neither"
            )
        return Meeting(FILE, job=job)
    if source == OPEN_MPI and port is None:
        port = _port_of(job)
    _need(claim, address, port)
    return Meeting(TCP, address, port or 0, job if source != PMI else "")


def _need(claim: _Claim, address: str, port: int | None) -> None:
    absent = [name for name, gone in (("MASTER_ADDR", not address), ("MASTER_PORT", port is None)) if gone]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        raise LaunchError(
            f"{claim.describe()}, but {' and '.join(absent)} {verb} missing: the ranks need the address and a "
            "free port of rank 0's host to meet"
        )


def _job(env: _Environment, source: str) -> str:
    """What tells the job from others on the same host; the same on all its ranks."""
    if source == TORCHRUN:
        return f"torchrun {env.text('TORCHELASTIC_RUN_ID')} restart {env.text('TORCHELASTIC_RESTART_COUNT') or 0}"
    if source == OPEN_MPI:
        name = env.text("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
        return f"ompi {name}" if name else ""
    if source == PMI:
        name = env.text("PMI_JOBID", "HYDRA_JOBID")
        return f"pmi {name}" if name else f"pmi {process_manager()}"
    if source == SLURM:
        return f"slurm {env.text('SLURM_JOB_ID', 'SLURM_JOBID')}.{env.text('SLURM_STEP_ID', 'SLURM_STEPID') or 0}"
    return ""


def _port_of(job: str) -> int:
    """A port that all ranks derive from the job alike, below the range from which the system serves outgoing
    connections.
    """
    return 15000 + int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "little") % 15000


def _first_slurm_host(env: _Environment) -> str:
    names = ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
    nodes = env.text(*names)
    if not nodes:
        raise LaunchError(
            f"{SLURM}: none of {', '.join(names)} is set; set MASTER_ADDR to the host of rank 0"
        )
    return first_host(nodes)
