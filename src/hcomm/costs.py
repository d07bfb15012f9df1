"""Measuring what links and memory cost, with a running communicator.

What is timed are programs, run by the same engine as everything else: exchanges for α, round trips for β, copies and
reductions in memory, meetings. So Python's part of a call is in none of the figures but `call`.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hcomm import _native
from hcomm.codes import DTYPES, OPERATIONS, OPERATORS
from hcomm.diagnose.callsite import caller
from hcomm.diagnose.report import Call
from hcomm.planning.builder import Builder, Requirement
from hcomm.planning.cost import DEFAULT_LINKS, Costs, LinkCost
from hcomm.planning.program import Program
from hcomm.plans import Signature, agreement
from hcomm.topology.measure import Pair, load, representatives, store

if TYPE_CHECKING:
    from hcomm.communicator import Communicator

_ITEM = 4
#: Exchanges of an empty message, whose mean is α.
_ROUNDS = 16
#: Bytes that find out how many are affordable.
_TRIAL = 64 << 10
#: Seconds that all runs of one program should take, after the first two.
_SHARE = 0.005
#: Seconds that two large messages over a network should take.
_NETWORK_SHARE = 0.03
_LARGEST = 1 << 20
#: Bytes of copies and reductions: more than a core keeps to itself.
_MEMORY = 2 << 20
#: How often a program runs.
_REPEATS = 8
#: Bytes that caches do not keep.
_FAR = 16 << 20
#: Bytes that a pair of ranks shows each other in its windows, and how often.
_SHOWN = 512 << 10
_SHOWS = 3
#: Per host: copy, reduce, memory, meet, call, cores, far, fetch, reach, access.
_LOCAL = 10
_STEP = Costs().step


def measure(world: Communicator, *, fresh: bool = False, seconds: float = 60.0, times: int = 1) -> Costs:
    """The costs of a communicator's links and hosts, the same on every rank. Collective: every rank calls it.

    Takes up to 100 ms, or a few messages where all of it is kept from an earlier run.

    Args:
        world: the communicator.
        fresh: measure even what is kept.
        seconds: that any one program may take.
        times: how often all of it is measured, of which the least counts: for busy machines.

    Raises:
        CommunicatorError: a rank failed meanwhile.
    """
    return _Meter(world, seconds).run(fresh, times)


def largest(world: Communicator, value: float, seconds: float = 60.0) -> float:
    """The largest of all ranks' values. Collective."""
    cells = array("d", [value])
    plan = world._plan(Signature("all_reduce", "float64", "max", -1, 1, 1, 1, 8))
    address = _native.address_of(cells, True)[0]
    status = world._native.run(plan, address, address, seconds)
    if status:
        raise world._fail(status, Call("agreeing on a measurement", caller(), seconds))
    return cells[0]


class _Meter:
    """The measurement of one communicator, on one rank."""

    def __init__(self, world: Communicator, seconds: float) -> None:
        self._world = world
        self._seconds = seconds
        # Written, for the kernel shows pages that never were as one and the same, which stays in the nearest cache.
        self._memory = bytearray(b"\0\x40\x80\x3f") * (max(_LARGEST, _MEMORY, _FAR) // _ITEM + 16)
        self._address = -(-_native.address_of(self._memory, True)[0] // 64) * 64
        self._hosts = world.hosts
        self._names = world.host_names
        self._window = world._chooser.world.window_bytes
        self._access = world._chooser.world.access
        self._phases = representatives(self._hosts, world.cliques)
        self._pairs = [pair for phase in self._phases for pair in phase]
        self._home = next(members for members in self._hosts if world.rank in members)

    def run(self, fresh: bool, times: int) -> Costs:
        """The agreed costs."""
        if self._world.size == 1:
            return Costs()
        kept = self._kept()
        complete = [float(all(kept) and not fresh), *(value for values in kept for value in values)]
        width = 2 * len(self._pairs) + _LOCAL * len(self._hosts)
        first = self._agree(complete if complete[0] else [0.0] * (1 + width))
        owners = len({self._owner(pair) for pair in self._pairs} | {members[0] for members in self._hosts})
        if round(first[0]) == owners:
            return self._costs(first[1:])
        links, own = self._links(), self._local()
        for _ in range(times - 1):
            links = {pair: _least(row, links[pair]) for pair, row in self._links().items()}
            own = _least(own, self._local())
        table = [0.0] * width
        for place, pair in enumerate(self._pairs):
            if self._owner(pair) == self._world.rank:
                table[2 * place : 2 * place + 2] = links[pair]
                store(self._pair_name(pair), links[pair])
        if self._home[0] == self._world.rank:
            place = 2 * len(self._pairs) + _LOCAL * self._hosts.index(self._home)
            table[place : place + _LOCAL] = own
            store(self._host_name(), own)
        return self._costs(self._agree(table))

    @staticmethod
    def _owner(pair: Pair) -> int:
        """The rank that times a pair, keeps the result and tells it."""
        return pair.a

    def _pair_name(self, pair: Pair) -> str:
        return f"{pair.link} {self._names[pair.a]} {self._names[pair.b]}"

    def _host_name(self) -> str:
        return f"memory {self._names[self._home[0]]} {len(self._home)} ranks"

    def _kept(self) -> list[tuple[float, ...]]:
        """Kept values in the order of the table, for what this rank owns; zeros for what others own.

        A value that is missing is an empty tuple.
        """
        rows: list[tuple[float, ...]] = []
        for pair in self._pairs:
            mine = self._owner(pair) == self._world.rank
            rows.append(load(self._pair_name(pair)) if mine else (0.0, 0.0))
        for members in self._hosts:
            mine = members[0] == self._world.rank
            rows.append(load(self._host_name()) if mine else (0.0,) * _LOCAL)
        widths = [2] * len(self._pairs) + [_LOCAL] * len(self._hosts)
        owns = any(self._owner(pair) == self._world.rank for pair in self._pairs)
        if not owns and self._home[0] != self._world.rank:
            return [()]  # nothing to say: does not count as complete
        return [row if len(row) == width else () for row, width in zip(rows, widths, strict=True)]

    # What is timed

    def _links(self) -> dict[Pair, tuple[float, ...]]:
        """(α, β) of every pair."""
        return {pair: costs for phase in self._phases for pair, costs in self._phase(phase).items()}

    def _phase(self, phase: Sequence[Pair]) -> dict[Pair, tuple[float, ...]]:
        """(α, β) of pairs that are measured at the same time."""
        latency = self._time(partial(_exchanges, pairs=phase, rounds=_ROUNDS), _ITEM) / _ROUNDS
        network = phase[0].link == "tcp"
        once = partial(_deliveries if network else _round_trips, pairs=phase)
        ways, repeats = (1, 3) if network else (2, _REPEATS)

        def seconds(nbytes: int) -> float:
            return self._time(once, nbytes, repeats=repeats) / ways

        nbytes = _LARGEST
        if network:
            mine = any(self._world.rank == self._owner(pair) for pair in phase)
            trial = (seconds(_TRIAL) - latency) / _TRIAL
            slowest = self._slowest(trial if mine else 0.0)
            if slowest > 0:
                nbytes = min(_LARGEST, max(_TRIAL, int(_NETWORK_SHARE / slowest / 2) // 128 * 128))
        large = seconds(nbytes)
        # On a busy machine the small ones may have waited longer than the large ones took.
        beta = max(large - latency, large / 2) / nbytes
        if network:  # What it saved up in a pause passes at once: in both of these, so not in the difference.
            beta = max(beta, (large - seconds(nbytes // 2)) / (nbytes // 2))
        return dict.fromkeys(phase, (max(latency - 2 * _STEP, 1e-8), beta))

    def _local(self) -> tuple[float, ...]:
        """The row of this host, in the order of _LOCAL."""
        cores = len(os.sched_getaffinity(0))
        busy = self._home[:cores]
        clique = next(c for c in self._world.cliques if self._home[0] in c)

        def copy(p: Builder) -> None:
            if p.rank in busy:
                for _ in range(2):
                    p.move(dst=p.scratch(0, like=p.output()), src=p.output())

        def copy_far(p: Builder) -> None:
            if p.rank in busy:
                p.move(dst=p.scratch(0, like=p.output()), src=p.output())

        def add(p: Builder) -> None:
            if p.rank in busy and p.size > 2:  # a move of as many sources as ranks would be a complete sum
                for _ in range(2):
                    p.move(dst=p.output(), src=[p.output(), p.scratch(0, like=p.output())])
            elif p.rank in busy:
                for _ in range(2):
                    p.move(dst=p.output(), src=[p.output(), p.scratch(0, like=p.output()), p.output()])

        def meet(p: Builder) -> None:
            for _ in range(_ROUNDS):
                if p.rank in clique:
                    p.meet()

        call = self._time(lambda p: None, _ITEM)
        copied = max(self._time(copy, _MEMORY) - call, 1e-9) / (2 * _MEMORY)
        away = max(self._time(copy_far, _FAR, repeats=3) - call, 1e-9) / _FAR
        sources = 1 if self._world.size > 2 else 2
        added = max(self._time(add, _MEMORY) - call, 1e-9) / (2 * _MEMORY)
        met = max(self._time(meet, _ITEM) - call, 0.0) / _ROUNDS if len(clique) > 1 else Costs().meet
        return (
            copied,
            max(added - copied, 0.1 * copied) / sources,
            copied / (2 * len(busy)),
            max(met - _STEP, 1e-8) / max(1.0, len(clique) / cores),
            call,
            float(cores),
            max(away / copied, 1.0),
            *self._remote(clique, copied, met),
        )

    def _remote(self, clique: Sequence[int], copied: float, met: float) -> tuple[float, float, float]:
        """(fetch, reach, access): what the memory of the other rank of a pair costs."""
        usual = Costs()
        if all(len(members) < 2 for members in self._world.cliques):
            return usual.fetch, usual.reach, usual.access
        pair = clique[:2] if len(clique) > 1 else ()
        nbytes = min(_SHOWN, self._window // 128 * 64)

        def show(p: Builder) -> None:
            p.windows(1)
            if p.rank in pair:
                peer = pair[p.rank == pair[0]]
                for _ in range(_SHOWS):
                    p.move(dst=p.window(0, like=p.output()), src=p.output())
                    p.meet(pair)
                    p.move(dst=p.scratch(0, like=p.output()), src=p.window(0, like=p.output(), of=peer))
                    p.meet(pair)

        def reach(p: Builder) -> None:
            p.meet()
            if p.rank in pair:
                peer = pair[p.rank == pair[0]]
                for _ in range(_SHOWS):
                    p.move(dst=p.scratch(0, like=p.output()), src=p.at(peer, p.output()))
            p.meet()

        # Every rank of the job takes part in every operation, whether or not it has anything to do.
        shown = (self._time(show, nbytes) / _SHOWS - 2 * met) / nbytes - 2 * copied
        reached, accessed = usual.reach, usual.access
        if self._access:
            small = self._time(reach, 64, Requirement.ACCESS) - 2 * met
            large = self._time(reach, nbytes, Requirement.ACCESS) - 2 * met
            reached = small / _SHOWS
            accessed = (large - small) / _SHOWS / nbytes - copied
        if not pair:
            return usual.fetch, usual.reach, usual.access
        return max(shown, 0.0), max(reached, 0.0), max(accessed, 0.0)

    # Running programs

    def _time(
        self,
        write: Callable[[Builder], None],
        nbytes: int,
        requires: Requirement = Requirement.LINKS,
        repeats: int = _REPEATS,
    ) -> float:
        """Seconds of the fastest of some runs of a program, on vectors of `nbytes`: other work only ever adds."""
        world = self._world
        cliques = world.cliques
        p = Builder(
            "all_reduce", world.rank, world.size, cliques=cliques, algorithm="measurement", requires=requires
        )
        write(p)
        count = nbytes // _ITEM
        plan = world._native.plan(
            p.build().encode(),
            Program(()).encode() if requires is Requirement.ACCESS else b"",
            operation=OPERATIONS["all_reduce"],
            dtype=DTYPES["float32"][0],
            op=OPERATORS["sum"],
            root=-1,
            count=count,
            n_in=count,
            n_out=count,
            bounds_in=[],
            bounds_out=[],
            algorithm=agreement("measurement", nbytes),
            agreed=0,
            tile_bytes=0,
        )

        def some(times: int) -> tuple[float, float]:
            best, begin = math.inf, time.perf_counter()
            for _ in range(times):
                world.barrier(timeout=self._seconds)
                start = time.perf_counter()
                self._run(plan, self._address)
                best = min(best, time.perf_counter() - start)
            return best, time.perf_counter() - begin

        first, took = some(2)
        more = min(repeats - 2, int(2 * _SHARE / self._slowest(took)))
        return min(first, some(more)[0])

    def _run(self, plan: _native.Plan, address: int) -> None:
        status = self._world._native.run(plan, address, address, self._seconds)
        if status:
            raise self._world._fail(status, Call("measuring the costs of links", caller(), self._seconds))

    def _agree(self, values: Sequence[float]) -> list[float]:
        """The sums of all ranks' values, the same bits everywhere."""
        cells = array("d", values)
        count = len(cells)
        plan = self._world._plan(
            Signature("all_reduce", "float64", "sum", -1, count, count, count, 8 * count)
        )
        self._run(plan, _native.address_of(cells, True)[0])
        return list(cells)

    def _slowest(self, value: float) -> float:
        return largest(self._world, value, self._seconds)

    def _costs(self, table: Sequence[float]) -> Costs:
        """Medians of the agreed table."""
        links: dict[str, LinkCost] = {}
        for name in dict.fromkeys(pair.link for pair in self._pairs):
            rows = [i for i, pair in enumerate(self._pairs) if pair.link == name]
            alpha = statistics.median(table[2 * i] for i in rows)
            beta = statistics.median(table[2 * i + 1] for i in rows)
            usual = DEFAULT_LINKS[name]
            # Inside a host whoever waits also moves the bytes; between hosts a processor's share does not grow
            # when the network is slow.
            share = beta * usual.cpu / usual.beta if name != "tcp" else min(usual.cpu, beta)
            links[name] = LinkCost(alpha, beta, share)
        rest = table[2 * len(self._pairs) :]
        columns = [statistics.median(rest[place::_LOCAL]) for place in range(_LOCAL)]
        names = ("copy", "reduce", "memory", "meet", "call", "cores", "far", "fetch", "reach", "access")
        values: dict[str, Any] = dict(zip(names, columns, strict=True))
        costs = replace(Costs(), **{**values, "cores": round(values["cores"])})
        nic = links["tcp"].beta if "tcp" in links else costs.nic
        return costs.with_links(links, nic=nic, measured=(*sorted(links), "memory"))


def _least(*rows: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(map(min, zip(*rows, strict=True)))


def _exchanges(p: Builder, pairs: Sequence[Pair], rounds: int) -> None:
    """The ranks of each pair send to each other at the same time, as collectives mostly do."""
    for pair in (pair for pair in pairs if p.rank in (pair.a, pair.b)):
        for _ in range(rounds):
            p.send(pair.b if p.rank == pair.a else pair.a, p.output())
            p.recv(pair.b if p.rank == pair.a else pair.a, p.scratch(0, like=p.output()))


def _deliveries(p: Builder, pairs: Sequence[Pair]) -> None:
    """Vectors go from the first of each pair to the second, which says when it has them."""
    word = p.chunk(0, of=1024)
    for pair in pairs:
        if p.rank == pair.a:
            p.send(pair.b, p.output())
            p.recv(pair.b, p.scratch(0, like=word))
        elif p.rank == pair.b:
            p.recv(pair.a, p.scratch(0, like=p.output()))
            p.send(pair.a, word)


def _round_trips(p: Builder, pairs: Sequence[Pair]) -> None:
    """Vectors go back and forth between the ranks of each pair."""
    for pair in pairs:
        if p.rank == pair.a:
            p.send(pair.b, p.output())
            p.recv(pair.b, p.scratch(0, like=p.output()))
        elif p.rank == pair.b:
            p.recv(pair.a, p.scratch(0, like=p.output()))
            p.send(pair.a, p.output())
