"""Communicator: a fixed, ordered set of ranks and what they can do together."""

from __future__ import annotations

import contextlib
import operator
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hcomm import _native, memory
from hcomm.buffers import Buffer
from hcomm.codes import OPERATIONS
from hcomm.config import Settings, parse
from hcomm.costed import Costed
from hcomm.diagnose import telling
from hcomm.errors import InitError, UnknownAlgorithm
from hcomm.exchanges import Exchanges
from hcomm.planning import override
from hcomm.planning.planner import Planner
from hcomm.planning.registry import algorithms as registered
from hcomm.planning.select import option_name
from hcomm.point_to_point import PointToPoint
from hcomm.surroundings import crowded

if TYPE_CHECKING:
    # Sockets and their kin are loaded by init(), so that `import hcomm` stays cheap.
    from hcomm.bootstrap import Wiring, World
    from hcomm.planning.groups import GroupPlan


class Link(NamedTuple):
    """How a pair of ranks is joined: `shm`, `tcp` or `self`, and why it is not shared memory ('' if it is)."""

    transport: str
    reason: str


class Statistics(NamedTuple):
    """What this rank has sent since its communicator was made; see `Communicator.statistics`."""

    sent: dict[int, int]
    network: int

    @property
    def total(self) -> int:
        """Bytes to all ranks."""
        return sum(self.sent.values())


class Communicator(Exchanges, PointToPoint, Costed):
    """Ranks that communicate: made by `hcomm.init()` (all ranks) and `new_group` (some of them).

    Inside a communicator ranks are counted from 0 in its own order; `ranks` translates to ranks of the job.
    """

    def __init__(self, engine: _native.Engine, job: World, wiring: Wiring, settings: Settings, name: str = "",
                 algorithm: str | Mapping[str, str] | None = None, priority: int = 0,
                 fast: GroupPlan | None = None) -> None:  # fmt: skip
        """Made by `init` and `new_group`. Takes over the descriptors of `wiring`.

        `fast` are the groups of fast links that the user described, of all ranks of the job.
        """
        clique = next(members for members in wiring.cliques if wiring.rank in members)
        buffer_bytes = settings.size("BUFFER_SIZE")
        chosen = _algorithms(algorithm)
        self._sockets = [
            (fd, os.fstat(fd).st_ino) for fd in (*wiring.control, *wiring.coll, *wiring.p2p) if fd >= 0
        ]
        native = _made_native(
            wiring,
            settings,
            engine,
            uid=wiring.uid,
            rank=wiring.rank,
            size=wiring.size,
            local=sorted(clique),
            windows=wiring.windows,
            control=wiring.control,
            coll=wiring.coll,
            p2p=wiring.p2p,
            pids=wiring.pids,
            buffer_bytes=buffer_bytes,
            crowded=len(clique) > len(os.sched_getaffinity(0)),
            overlap=settings.text("OVERLAP_MEMCPY") == "on",
            priority=priority,
            label=name,
        )
        near = fast.restricted(wiring.ranks) if fast else None
        self._chooser = Planner(
            wiring.rank,
            wiring.size,
            wiring.cliques,
            window_bytes=_native.operation_window_bytes(buffer_bytes),
            access=wiring.access,
            settings={key: str(value) for key, value in settings.items()},
            crowded=crowded(wiring.hosts),
            groups=near.text if near else "",
            inside="ring" if near and near.inside == "ring" else "direct",
        )
        level = settings.text("DEBUG")
        who = f"rank {wiring.ranks[wiring.rank]}" + (f" in {_quoted(name)}" if name else "")
        super().__init__(
            native,
            self._chooser,
            rank=wiring.rank,
            ranks=wiring.ranks,
            pids=[host.pid for host in wiring.hosts],
            name=name,
            timeout=settings.seconds("TIMEOUT"),
            algorithms=chosen,
        )
        self._telling = level != "off"
        if level == "trace":
            self._tracing = True
            self._remember = lambda *call: None  # every call is told, so none is cut short
        self._who = who
        self._engine = engine
        self._uid = wiring.uid
        self._job = job
        self._cliques = wiring.cliques
        self._clique = clique
        self._reasons = dict(wiring.reasons)
        self._hosts = tuple(wiring.hosts)
        self._settings = settings
        self._described = fast
        #: Groups of its ranks that were made to do its work; their bytes are its own.
        self._helpers: list[Communicator] = []
        if settings.text("AUTO_REGISTER") == "on" and len(clique) == wiring.size > 1:
            self._automatic = memory.Automatic(self, engine)
            self._noted_bytes = native.noted_bytes = memory.Automatic.LEAST

    def _note(self, source: Buffer | None, target: Buffer | None) -> None:
        for buffer in (source, target):
            if buffer is not None and buffer.family.name == "torch" and not buffer.is_copy and buffer.count:
                self._automatic.note(buffer.array)
            if source is target:
                break

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """A tensor or array in memory that this communicator's ranks on one host share; see `hcomm.empty`."""
        return memory.empty(self, self._engine, shape, dtype)

    def zeros(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """The same, filled with zeros."""
        return self.empty(shape, dtype)  # new files in memory are zero

    def register(self, tensor: Any) -> Any:
        """Share the memory of `tensor` in place; see `hcomm.register`."""
        return memory.register(self, self._engine, tensor)

    def unregister(self, tensor: Any) -> None:
        """Undo one `register` of `tensor`; see `hcomm.unregister`."""
        memory.unregister(self, self._engine, tensor)

    def _held(self) -> list[object]:
        return [*super()._held(), self._engine]

    def _forked(self) -> None:
        super()._forked()
        # As long as a child holds these, the others would not notice the parent's death.
        for fd, inode in self._sockets:
            with contextlib.suppress(OSError):
                if os.fstat(fd).st_ino == inode:
                    os.close(fd)

    @property
    def rank(self) -> int:
        """This process's rank in this communicator."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the job that belong to it, in its order."""
        return self._ranks

    @property
    def name(self) -> str:
        """Its name in messages; '' for the communicator of the whole job."""
        return self._name

    @property
    def cliques(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that share memory with each other: a partition of all ranks."""
        return self._cliques

    @property
    def backend_name(self) -> str:
        """How its ranks are joined: `shm`, `tcp`, `shm+tcp` (memory inside hosts, TCP between), or `self` (alone)."""
        if self._size == 1:
            return "self"
        if len(self._cliques) == 1:
            return "shm"
        return "tcp" if len(self._cliques) == self._size else "shm+tcp"

    @property
    def links(self) -> dict[int, Link]:
        """How this rank is joined to each rank, and why not by shared memory."""
        return {rank: self._link(rank) for rank in range(self._size)}

    def _link(self, rank: int) -> Link:
        if rank == self._rank:
            return Link("self", "")
        if rank in self._clique:
            return Link("shm", "")
        return Link("tcp", self._reasons.get(rank, ""))

    def close(self) -> None:
        """Leave the communicator. Does not wait: operations still running fail here; other ranks are told."""
        for helper in self._helpers:
            helper.close()
        super().close()

    def statistics(self) -> Statistics:
        """Bytes that this rank has sent over its links, headers included: per rank, and to other hosts alone.

        What ranks of a host read from each other's memory passes no link and is not counted.
        """
        sent = {rank: self._native.bytes_sent(rank) for rank in range(self._size) if rank != self._rank}
        for helper in self._helpers:
            for rank, nbytes in helper.statistics().sent.items():
                sent[self._ranks.index(helper._ranks[rank])] += nbytes
        return Statistics(sent, sum(sent[rank] for rank in sent if rank not in self._clique))

    @property
    def timeout(self) -> float:
        """Seconds an operation may take when it is not given its own `timeout`."""
        return self._timeout

    def new_group(
        self,
        ranks: Sequence[int],
        *,
        transport: str | None = None,
        algorithm: str | Mapping[str, str] | None = None,
        timeout: float | None = None,
        buffer_size: int | str | None = None,
        name: str | None = None,
        priority: int = 0,
    ) -> Communicator:
        """A communicator of some ranks of this one. Its members, and only they, call this with the same
        arguments.

        Groups of the same ranks without a name are told apart by the order in which they are made: make them
        in one order on all members, that is from one thread. Threads that make groups at the same time give
        each its `name`.

        Args:
            ranks: ranks of this communicator; their order is the order of the group.
            transport: `auto`, `shm` or `tcp`; wins over HCOMM_TRANSPORT.
            algorithm: for every operation that has one of this name, or {operation: name}; wins over
                HCOMM_*_ALGO, and may be written like them (`ring:8KB-max`, `^star`).
            timeout: seconds that making it may take (default: HCOMM_INIT_TIMEOUT), and the default for its
                operations.
            buffer_size: bytes (or `8MB`) of shared memory per rank.
            name: for messages, and to tell apart groups that are made at the same time in several threads.
            priority: asynchronous operations of groups with a higher one advance first; may differ between ranks.
                The communicator of the job has 0.

        Raises:
            ValueError: empty, duplicate or foreign ranks; this rank is not among them; a setting that does
                not parse.
            InitError: the members could not be joined; it says which did not come.
            PeerLost: a member has ended, or left the communicator.
            CollectiveMismatch: the members' lists or settings differ; it says how.
        """
        self._check()
        members = self._members(ranks)
        label = name or "group " + str(list(members))
        seconds = None if timeout is None else self._seconds(timeout)
        settings = self._settings.replace(
            TRANSPORT=None if transport is None else parse("TRANSPORT", transport, "transport"),
            TIMEOUT=seconds,
            BUFFER_SIZE=None
            if buffer_size is None
            else parse("BUFFER_SIZE", str(buffer_size), "buffer_size"),
        )
        wiring = self._job.wire_group(
            self._uid,
            members,
            transport=settings.text("TRANSPORT"),
            buffer_bytes=settings.size("BUFFER_SIZE"),
            timeout=settings.seconds("INIT_TIMEOUT") if seconds is None else seconds,
            agree=agreed_settings(settings, algorithm),
            name=name or "",
            lost=self._lost,
        )
        group = Communicator(
            self._engine,
            self._job,
            wiring,
            settings,
            label,
            algorithm,
            operator.index(priority),
            self._described,
        )
        group.settle_costs(self)
        group._apart = self._apart
        group.announce()
        group.warn_slow_links()
        return group

    def _lost(self) -> list[int]:
        """Global ranks whose connection in this communicator has ended."""
        return [self._ranks[rank] for rank in self._native.lost()]

    def announce(self, launcher: str = "") -> None:
        """With HCOMM_DEBUG=info: a line that says who this rank is and how it is joined to the others."""
        if self._settings.text("DEBUG") == "off":
            return
        host = self._hosts[self._rank]
        place = f" (global {self._ranks[self._rank]})" if self._name else ""
        started = f", started by {launcher}" if launcher else ""
        who = f"{_quoted(self._name) + ': ' if self._name else ''}rank {self._rank} of {self._size}{place}{started}"
        tcp = {
            rank: self._reasons.get(rank, "") for rank in range(self._size) if self._link(rank)[0] == "tcp"
        }
        telling.tell(telling.arrival(who, self.backend_name, host.hostname, os.getpid(), tcp, self._cliques))

    def _members(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Global ranks of a new group. Raises ValueError."""
        try:
            if isinstance(ranks, (str, bytes)):
                raise TypeError
            chosen = [operator.index(rank) for rank in ranks]
        except TypeError:
            raise ValueError(
                f"ranks must be a list of ranks (integers in 0..{self._size - 1}), found {ranks!r}"
            ) from None
        if not chosen:
            raise ValueError("a group needs at least one rank")
        foreign = sorted({rank for rank in chosen if not 0 <= rank < self._size})
        if foreign:
            raise ValueError(
                f"ranks {foreign} are not in this communicator, whose ranks are 0..{self._size - 1}"
            )
        twice = sorted({rank for rank in chosen if chosen.count(rank) > 1})
        if twice:
            raise ValueError(f"ranks {twice} are listed more than once in {chosen}")
        if self._rank not in chosen:
            raise ValueError(f"rank {self._rank} is not in {chosen}: only members of a group call new_group")
        return tuple(self._ranks[rank] for rank in chosen)

    def warn_slow_links(self) -> None:
        """Warn once when pairs could have shared memory (same host) but use TCP without having been told to."""
        if self._settings.text("TRANSPORT") == "tcp":
            return
        causes: dict[str, list[int]] = {}
        for rank, reason in self._reasons.items():
            same_host = self._hosts[rank].boot_id == self._hosts[self._rank].boot_id
            if reason and same_host and rank not in self._clique:
                causes.setdefault(reason, []).append(rank)
        if causes:
            listed = "; ".join(
                f"with {self._reporter.names(ranks)}: {reason}" for reason, ranks in causes.items()
            )
            warnings.warn(
                f"hcomm rank {self._ranks[self._rank]}{self._in_group()} uses TCP on its own host, which is "
                f"slower than shared memory, {listed}",
                RuntimeWarning,
                stacklevel=3,
            )

    def __repr__(self) -> str:
        state = "closed" if self._ended else "broken" if self._broken else self.backend_name
        return f"<hcomm.Communicator{self._in_group()} rank {self._rank} of {self._size}: {state}>"


def _made_native(wiring: Wiring, settings: Settings, engine: _native.Engine, **config: Any) -> _native.Comm:
    """The communicator in the core. Raises InitError when the system refuses its memory."""
    try:
        return _native.Comm(engine, **config)
    except (OSError, MemoryError) as error:
        size = settings.size("BUFFER_SIZE")
        clique = sum(pid >= 0 for pid in wiring.windows)
        raise InitError(
            f"rank {wiring.ranks[wiring.rank]}: no memory for the windows of {clique} ranks, each of "
            f"{_native.window_bytes(clique, size)} bytes ({settings.source('BUFFER_SIZE') or 'HCOMM_BUFFER_SIZE'} "
            f"is {size}): {error}; set HCOMM_BUFFER_SIZE to less"
        ) from error


def _quoted(name: str) -> str:
    return name if name.startswith("group ") else f"group {name!r}"


def agreed_settings(
    settings: Settings,
    algorithm: str | Mapping[str, str] | None = None,
    groups: GroupPlan | None = None,
) -> dict[str, str | dict[str, str]]:
    """What all members must have alike, because they choose algorithms by it.

    Raises:
        UnknownAlgorithm: a name in a setting or in `algorithm` is not registered.
        ConfigError: one of them is not understood.
    """
    forced = {operation: text for operation in OPERATIONS if (text := settings.algorithm(operation))}
    for operation, text in forced.items():
        name = option_name(operation)
        override.parse(operation, text, settings.source(name) or f"HCOMM_{name}")
    return {
        "HCOMM_DETERMINISTIC": settings.text("DETERMINISTIC"),
        "HCOMM_RING_CHUNK_SIZE": settings.text("RING_CHUNK_SIZE"),
        "HCOMM_OVERLAP_MEMCPY": settings.text("OVERLAP_MEMCPY"),
        "HCOMM_MEASURE_COSTS": settings.text("MEASURE_COSTS"),
        "groups of fast links": f"{groups.inside} {groups.text}" if groups else "",
        "algorithms": {**forced, **_algorithms(algorithm)},
    }


def _algorithms(asked: str | Mapping[str, str] | None) -> dict[str, str]:
    """Operation → what `algorithm=` of a group says about it.

    Raises:
        UnknownAlgorithm: no operation has all the algorithms that are named; or one of a mapping is unknown.
        ConfigError: the text is not understood.
    """
    if asked is None:
        return {}
    if isinstance(asked, str):
        words = {name.lower() for name in override.names(asked)}
        having = {
            operation: {entry.name.lower() for entry in registered(operation)} for operation in OPERATIONS
        }
        asked = {operation: asked for operation in OPERATIONS if words <= having[operation]}
        if not asked:
            known = sorted({entry.name for entry in registered()})
            raise UnknownAlgorithm(
                f"no operation has an algorithm named {', '.join(map(repr, sorted(words)))}; known: {', '.join(known)}"
            )
    for operation, text in asked.items():
        if operation not in OPERATIONS:
            raise UnknownAlgorithm(
                f"algorithm= names the operation {operation!r}; known: {', '.join(OPERATIONS)}"
            )
        override.parse(operation, text, f"algorithm of {operation}")
    return dict(asked)
