"""A native core that moves nothing: it records what it is asked and answers what a test tells it to."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hcomm.communicator import Communicator
from hcomm.config import Settings, load

OK, MISMATCH, TIMEOUT, PEER_LOST, INTERRUPTED, ABORTED, MESSAGE_MISMATCH, SYSTEM = range(8)


@dataclass
class Failure:
    kind: int
    ranks: list[int] = field(default_factory=list)
    seq: int = 1
    text: str = ""


@dataclass
class Report:
    rank: int
    heard: bool = True
    alive: bool = True
    left: bool = False
    pid: int = 0
    posted: int = 0
    done: int = 0
    what: str = ""
    where: str = ""
    recent: str = ""


class Op:
    """An operation that is complete when the test says so."""

    def __init__(self) -> None:
        self.done = False
        self.status = -1
        self.source = 0
        self.nbytes = 0
        self.text = ""

    @property
    def over(self) -> bool:
        return self.done

    def finish(self, status: int = OK, source: int = 0, text: str = "") -> None:
        self.done, self.status, self.source, self.text = True, status, source, text

    def wait(self, timeout: float) -> int:
        return self.status if self.done else -1


class Comm:
    """Stands in for `_native.Comm`."""

    def __init__(self, engine: Any = None, **config: Any) -> None:
        self.config = config
        self.plans: list[dict[str, Any]] = []
        self.runs: list[tuple[dict[str, Any], int, int, float]] = []
        self.ops: list[Op] = []
        self.remembered: dict[Any, dict[str, Any]] = {}
        self.messages: list[tuple[Any, ...]] = []
        self.status = OK
        self.on_run: Any = None
        self.first_failure: Failure | None = None
        self.told: list[Report] = []
        self.asked: list[tuple[str, str]] = []
        self.closed = 0
        self.gone: list[int] = []

    def plan(self, program: bytes, fallback: bytes, **sizes: Any) -> dict[str, Any]:
        self.plans.append(sizes)
        return sizes

    def run(self, plan: dict[str, Any], in_ptr: int, out_ptr: int, timeout: float) -> int:
        self.runs.append((plan, in_ptr, out_ptr, timeout))
        if self.on_run is not None:
            self.on_run(plan, in_ptr, out_ptr)
        return self.status

    def know(self, tensor: Any) -> None:
        return

    def send_tensor(self, tensor: Any, dst: int, tag: int) -> bool:
        return False

    def start_send(self, tensor: Any, dst: int, tag: int, timeout: float, where: str) -> None:
        return

    def recv_tensor(self, tensor: Any, src: int, tag: int, timeout: float) -> None:
        return

    @staticmethod
    def _key(operation: int, tensor: Any, out: Any, op: Any, root: Any) -> Any:
        """What `remember` keeps a call under; None unless its tensors are ordinary and lie apart."""
        shown: list[Any] = []
        spans = []
        for part in (tensor, out):
            if part is None:
                shown.append(None)
                continue
            if not hasattr(part, "is_neg") or part.is_nested or part.is_neg() or not part.is_contiguous():
                return None
            shown.append((type(part), part.dtype, part.shape))
            spans.append((part.data_ptr(), part.data_ptr() + part.nbytes))
        if len(spans) == 2 and max(spans)[0] < min(spans)[1]:
            return None
        return operation, *shown, op, root

    def remember(
        self, operation: int, tensor: Any, out: Any, op: Any, root: int, plan: dict[str, Any], inside: Any
    ) -> None:
        self.remembered[self._key(operation, tensor, out, op, root)] = plan

    def forget(self) -> None:
        self.remembered.clear()

    def call(self, operation: int, tensor: Any, out: Any, op: Any, root: Any, timeout: float) -> int:
        key = self._key(operation, tensor, out, op, root)
        if key is None or key not in self.remembered:
            return -1
        source, target = (0 if part is None else part.data_ptr() for part in (tensor, out))
        plan = self.remembered[key]
        return self.run(plan, source, target or (source if plan["n_out"] else 0), timeout)

    def start(self, plan: dict[str, Any], in_ptr: int, out_ptr: int, timeout: float, where: str) -> Op:
        self.runs.append((plan, in_ptr, out_ptr, timeout))
        self.ops.append(Op())
        return self.ops[-1]

    def send(self, dst: int, tag: int, ptr: int, nbytes: int, dtype: int, timeout: float, where: str) -> Op:
        return self._message("send", dst, tag, ptr, nbytes, dtype, timeout, where)

    def recv(self, src: int, tag: int, ptr: int, nbytes: int, dtype: int, timeout: float, where: str) -> Op:
        return self._message("recv", src, tag, ptr, nbytes, dtype, timeout, where)

    def _message(self, *what: Any) -> Op:
        self.messages.append(what)
        self.ops.append(Op())
        return self.ops[-1]

    def failure(self) -> Failure | None:
        return self.first_failure

    def reports(self, what: str, where: str, timeout: float) -> list[Report]:
        self.asked.append((what, where))
        return self.told

    def abort(self, text: str) -> None:
        self.first_failure = Failure(ABORTED, text=text)

    def lost(self) -> list[int]:
        return self.gone

    def close(self, exiting: bool = False) -> None:
        self.closed += 1


class World:
    """Stands in for the bootstrap: every group is wired at once."""

    def wire_group(self, parent: int, members: tuple[int, ...], **how: Any) -> Any:
        return wiring(members.index(0) if 0 in members else 0, len(members), ranks=members)


def wiring(
    rank: int,
    size: int,
    *,
    cliques: tuple[tuple[int, ...], ...] | None = None,
    ranks: tuple[int, ...] | None = None,
    reasons: dict[int, str] | None = None,
    boot_ids: list[str] | None = None,
) -> Any:
    """What bootstrap hands over; one clique of everybody unless told otherwise."""
    nowhere = [-1] * size
    return SimpleNamespace(
        rank=rank,
        size=size,
        uid=7,
        ranks=ranks or tuple(range(size)),
        cliques=cliques or (tuple(range(size)),),
        access=True,
        windows=nowhere,
        control=nowhere,
        coll=nowhere,
        p2p=nowhere,
        pids=[1] * size,
        reasons=reasons or {},
        hosts=[
            SimpleNamespace(hostname="h", boot_id=boot, pid=100 + place, cpus="")
            for place, boot in enumerate(boot_ids or ["b"] * size)
        ],
    )


class Planner:
    """Stands in for the planner, so that these tests do not depend on any algorithm."""

    def choose(self, *asked: Any) -> Any:
        return SimpleNamespace(
            algorithm="fake",
            why="there is no other",
            program=b"",
            fallback=b"",
            hash=1,
            tile_bytes=0,
            reaches_input=(),
            reaches_output=(),
            through_process=True,
        )


def communicator(
    rank: int = 0, size: int = 3, settings: Settings | None = None, **how: Any
) -> tuple[Communicator, Comm]:
    """A communicator on a recording core; the `fake` fixture has put `Comm` in place of the real one."""
    comm = Communicator(None, World(), wiring(rank, size, **how), settings or load({}))  # type: ignore[arg-type]
    comm._planner = Planner()
    native = comm._native
    assert isinstance(native, Comm)
    return comm, native
