"""The libraries that are measured: each makes, of a case, the call that is timed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from hcomm.bench.cases import Case
from hcomm.bench.order import Line
from hcomm.communicator import Communicator

Call = Callable[[], object]


class Unsupported(Exception):
    """The library has no such operation, or not in this form or for this type."""


class Library(Protocol):
    """What a measurement needs of a library.

    Attributes:
        version: in its own words.
        keeps_input: a reduce leaves the tensors of other ranks than the root as they were.
    """

    version: str
    keeps_input: bool

    def call(self, case: Case, line: Line) -> Call:
        """The operation on the buffers of `case`: it returns when the result is there. Raises Unsupported."""

    def leave(self) -> None:
        """Leave the group."""


class Hcomm:
    """hcomm's own interface."""

    keeps_input = True

    def __init__(self, world: Communicator) -> None:
        from hcomm import __version__

        self.version = __version__
        self._world = world

    def call(self, case: Case, line: Line) -> Call:
        """See Library. Of operations that work in place the out-of-place form copies first, which is timed."""
        world, point, source, target = self._world, case.point, case.source, case.target
        name, op, root = point.operation, point.operator, point.root
        options: dict[str, Any] = {"algorithm": line.algorithm} if line.algorithm else {}
        if case.in_place and name in ("reduce_scatter", "scatter"):
            raise Unsupported(f"hcomm's {name} has no in-place form")
        into = target if case.rank == root else None
        given = source if case.rank == root else None
        # The input of other ranks than the root is not changed by a reduce, so it needs no copy.
        reduced = source if name == "reduce" and case.rank != root else target
        calls: dict[str, Call] = {
            "all_reduce": lambda: world.all_reduce(target, op, **options),
            "reduce": lambda: world.reduce(reduced, root, op, **options),
            "broadcast": lambda: world.broadcast(target, root, **options),
            "all_gather": lambda: world.all_gather(source, target, **options),
            "reduce_scatter": lambda: world.reduce_scatter(source, target, op, **options),
            "all_to_all": lambda: world.all_to_all(source, target, **options),
            "gather": lambda: world.gather(source, root, out=into, **options),
            "scatter": lambda: world.scatter(given, root, out=target, **options),
            "barrier": lambda: world.barrier(**options),
            "send_recv": self._exchange(case),
            "ping_pong": self._ping_pong(case),
        }
        if name == "all_reduce" and op == "sum" and not options:
            calls["all_reduce"] = lambda: world.all_reduce(target)  # as a user writes it
        return copied_first(case, calls[name])

    def _exchange(self, case: Case) -> Call:
        world, source, target = self._world, case.source, case.target
        after, before = neighbours(case)

        def exchange() -> None:
            sending = world.send(source, after)
            world.recv(target, before)
            sending.wait()

        return exchange

    def _ping_pong(self, case: Case) -> Call:
        world, source, target = self._world, case.source, case.target

        def serve() -> None:
            world.send(source, 1).wait()
            world.recv(target, 1)

        def give_back() -> None:
            world.recv(target, 0)
            world.send(target, 0).wait()

        return by_rank(case, serve, give_back)

    def leave(self) -> None:
        """The job is left by whoever joined it."""


class Gloo:
    """torch.distributed's gloo, in the same processes; hcomm carries its meeting point."""

    keeps_input = False

    def __init__(self, world: Communicator) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        alone = len(world.hosts) == 1
        if alone:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host's name need not resolve
        host = "127.0.0.1" if alone else os.environ.get("MASTER_ADDR", world.host_names[0])
        port = np.zeros(1, "int64")
        master = world.rank == 0
        # TCPStore's server picks a port that is free, which the others must learn.
        store = TCPStore(host, 0, world.size, is_master=True, wait_for_workers=False) if master else None
        if store is not None:
            port[0] = store.port
        world.broadcast(port)
        if store is None:
            store = TCPStore(host, int(port[0]), world.size, is_master=False)
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
        self._dist = dist
        self.version = f"of torch {torch.__version__}"

    def call(self, case: Case, line: Line) -> Call:
        """See Library."""
        dist, point, source, target = self._dist, case.point, case.source, case.target
        name, root = point.operation, point.root
        if point.operator == "avg":
            raise Unsupported("gloo has no avg")
        if case.in_place and name in ("reduce_scatter", "scatter", "gather"):
            raise Unsupported(f"gloo's {name} has no in-place form")
        names = {"prod": "PRODUCT"}
        op = getattr(dist.ReduceOp, names.get(point.operator, point.operator.upper()), None)
        root_parts = list(target.chunk(case.ranks)) if name == "gather" and case.rank == root else None
        given = list(source.chunk(case.ranks)) if name == "scatter" and case.rank == root else None
        calls: dict[str, Call] = {
            "all_reduce": lambda: dist.all_reduce(target, op),
            "reduce": lambda: dist.reduce(target, root, op),
            "broadcast": lambda: dist.broadcast(target, root),
            "all_gather": lambda: dist.all_gather_into_tensor(target, source),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(target, source, op),
            "all_to_all": lambda: dist.all_to_all_single(target, source),
            "gather": lambda: dist.gather(source, root_parts, root),
            "scatter": lambda: dist.scatter(target, given, root),
            "barrier": dist.barrier,
            "send_recv": self._exchange(case),
            "ping_pong": self._ping_pong(case),
        }
        return copied_first(case, calls[name], reads_target=name == "reduce")

    def _exchange(self, case: Case) -> Call:
        dist, source, target = self._dist, case.source, case.target
        after, before = neighbours(case)

        def exchange() -> None:
            sending, receiving = dist.isend(source, after), dist.irecv(target, before)
            receiving.wait()
            sending.wait()

        return exchange

    def _ping_pong(self, case: Case) -> Call:
        dist, source, target = self._dist, case.source, case.target

        def serve() -> None:
            dist.send(source, 1)
            dist.recv(target, 1)

        def give_back() -> None:
            dist.recv(target, 0)
            dist.send(target, 0)

        return by_rank(case, serve, give_back)

    def leave(self) -> None:
        """Leave the group."""
        self._dist.destroy_process_group()


def copied_first(case: Case, run: Call, reads_target: bool = False) -> Call:
    """`run`, preceded by a copy of the input where an operation works in place only and is asked for out of place.

    Args:
        case: the operation.
        run: its in-place form, on the target.
        reads_target: also on other ranks than the root of a reduce.
    """
    name, root = case.point.operation, case.point.root
    if case.in_place or name not in ("all_reduce", "reduce", "broadcast"):
        return run
    if name != "all_reduce" and case.rank != root and not reads_target:
        return run
    target, source = case.target_view, case.source_view

    def copied() -> None:
        np.copyto(target, source)
        run()

    return copied


def by_rank(case: Case, serve: Call, give_back: Call) -> Call:
    """What ranks 0 and 1 do of a ping-pong; the others watch."""
    return (serve, give_back)[case.rank] if case.rank < 2 else lambda: None


def neighbours(case: Case) -> tuple[int, int]:
    """The next rank and the one before, in a ring."""
    return (case.rank + 1) % case.ranks, (case.rank - 1) % case.ranks
