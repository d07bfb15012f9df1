"""Measuring what links and memory cost, with a running communicator.

What is timed are programs, run by the same engine as everything else: exchanges for α, round trips for β, copies and
reductions in memory, meetings. So Python's part of a call is in none of the figures but `call`.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hcomm import _native
from hcomm.planning.builder import Builder, Requirement
from hcomm.planning.cost import DEFAULT_LINKS, LOOPBACK, SHM, TCP, Costs, LinkCost
from hcomm.stopwatch import ITEM, REPEATS, OutOfTime, Stopwatch
from hcomm.topology.measure import Pair, load, representatives, store

if TYPE_CHECKING:
    from hcomm.communicator import Communicator

#: Seconds after which no other program is begun.
BUDGET = 0.09
#: Exchanges of an empty message, whose mean is α.
_ROUNDS = 16
#: Bytes that find out how many are affordable.
_TRIAL = 64 << 10
#: Seconds that two large messages over a network should take.
_NETWORK_SHARE = 0.03
_LARGEST = 1 << 20
#: Bytes of copies and reductions: more than a core keeps to itself.
_MEMORY = 2 << 20
#: Bytes that caches do not keep.
_FAR = 16 << 20
#: Bytes that a pair of ranks shows each other in its windows, and how often.
_SHOWN = 512 << 10
_SHOWS = 3
_STEP = Costs().step
#: Seconds until a post is seen by a rank that looks; where ranks share processors nobody can measure it.
_SEEN = 0.05e-6


@dataclass(frozen=True)
class _Local:
    """What one host's processors and memory cost: see `planning.cost.Costs`."""

    copy: float
    reduce: float
    memory: float
    meet: float
    call: float
    cores: float
    turn: float
    far: float
    fetch: float
    reach: float
    access: float

    @property
    def row(self) -> tuple[float, ...]:
        """In the order of the fields."""
        return tuple(getattr(self, name) for name in _FIELDS)


_FIELDS = tuple(_Local.__dataclass_fields__)
#: (α, β, seconds per byte of a processor at each end).
_LINK_WIDTH = 3


def measure(world: Communicator, *, fresh: bool = False, seconds: float = 60.0, times: int = 1) -> Costs:
    """The costs of a communicator's links and hosts, the same on every rank. Collective: every rank calls it.

    Takes up to 100 ms, or a few messages where all of it is kept from an earlier run: no program is begun when the
    budget is spent, on no rank. What was not measured is assumed, and measured next time.

    Args:
        world: the communicator.
        fresh: measure even what is kept.
        seconds: that any one program may take.
        times: how often all of it is measured, each time within the budget, of which the least counts: for busy
            machines.

    Raises:
        CommunicatorError: a rank failed meanwhile.
    """
    return _Meter(world, seconds).run(fresh, times)


class _Meter:
    """The measurement of one communicator, on one rank."""

    def __init__(self, world: Communicator, seconds: float) -> None:
        self._world = world
        self._seconds = seconds
        # Written, for the kernel shows pages that never were as one and the same, which stays in the nearest cache.
        self._memory = bytearray(b"\0\x40\x80\x3f") * (max(_LARGEST, _MEMORY, _FAR) // ITEM + 16)
        self._address = -(-_native.address_of(self._memory, True)[0] // 64) * 64
        self._watch = Stopwatch(world, self._address, seconds, BUDGET)
        self._hosts = world.hosts
        self._names = world.host_names
        self._window = world._chooser.world.window_bytes
        self._access = world._chooser.world.access
        #: On some host ranks share processors, as all ranks know alike.
        self._crowded = world._chooser.world.crowded
        self._phases = representatives(self._hosts, world.cliques)
        self._pairs = [pair for phase in self._phases for pair in phase]
        self._home = next(members for members in self._hosts if world.rank in members)
        self._clique = next(c for c in world.cliques if self._home[0] in c)

    def run(self, fresh: bool, times: int) -> Costs:
        """The agreed costs."""
        if self._world.size == 1:
            return Costs()
        mine = {pair for pair in self._pairs if self._owner(pair) == self._world.rank}
        leads = {self._home} if self._home[0] == self._world.rank else set()
        links: dict[Pair, tuple[float, ...]] = {}
        hosts: dict[tuple[int, ...], tuple[float, ...]] = {}
        if not fresh:
            links = _found({pair: load(self._pair_name(pair)) for pair in mine}, _LINK_WIDTH)
            hosts = _found({home: load(self._host_name()) for home in leads}, len(_FIELDS))
        lacks_links, lacks_hosts = self._watch.total([len(mine - links.keys()), len(leads - hosts.keys())])
        for time in range(times):
            if time:
                self._watch = Stopwatch(self._world, self._address, self._seconds, BUDGET)
            with contextlib.suppress(OutOfTime):
                if lacks_links:
                    self._measure_links(links)
                if lacks_hosts:
                    _keep_least(hosts, {self._home: self._local(links)})
        for pair in mine & links.keys() if lacks_links else ():
            store(self._pair_name(pair), links[pair])
        for home in leads & hosts.keys() if lacks_hosts else ():
            store(self._host_name(), hosts[home])
        return self._costs(
            self._shared(self._pairs, {pair: links[pair] for pair in mine & links.keys()}, _LINK_WIDTH),
            self._shared(self._hosts, {home: hosts[home] for home in leads & hosts.keys()}, len(_FIELDS)),
        )

    @staticmethod
    def _owner(pair: Pair) -> int:
        """The rank that times a pair, keeps the result and tells it."""
        return pair.a

    def _pair_name(self, pair: Pair) -> str:
        return f"{pair.link} {self._names[pair.a]} {self._names[pair.b]}"

    def _host_name(self) -> str:
        return f"memory {self._names[self._home[0]]} {len(self._home)} ranks"

    def _shared(
        self, keys: Sequence[Key], rows: Mapping[Key, tuple[float, ...]], width: int
    ) -> dict[Key, tuple[float, ...]]:
        """The rows of all ranks, of which each key has one at most."""
        table = [v for key in keys for v in ((1.0, *rows[key]) if key in rows else (0.0,) * (1 + width))]
        summed = self._watch.total(table)
        cut = {key: summed[place * (1 + width) :][: 1 + width] for place, key in enumerate(keys)}
        return {key: tuple(row[1:]) for key, row in cut.items() if row[0]}

    # What is timed

    def _measure_links(self, links: dict[Pair, tuple[float, ...]]) -> None:
        """Put (α, β, processor) of every pair into `links`, or the least of what is there and what is measured."""
        for phase in self._phases:
            found = self._phase(phase)
            if self._crowded and phase[0].link != TCP:
                # The two may have to share a processor; then another one does not.
                others = [replace(pair, b=self._another(pair)) for pair in phase]
                again = self._phase(others)
                _keep_least(found, {pair: again[other] for pair, other in zip(phase, others, strict=True)})
            _keep_least(links, found)

    def _another(self, pair: Pair) -> int:
        """A rank that is to `pair.a` what `pair.b` is; `pair.b` if there is no other."""
        cliques = self._world.cliques
        near = next(c for c in cliques if pair.a in c)
        home = next(h for h in self._hosts if pair.a in h)
        alike = [r for r in home if r != pair.a and (r in near) == (pair.link == SHM)]
        return next((r for r in alike if r != pair.b), pair.b)

    def _phase(self, phase: Sequence[Pair]) -> dict[Pair, tuple[float, ...]]:
        """(α, β, processor) of pairs that are measured at the same time."""
        time = self._watch.time
        latency = time(partial(_exchanges, pairs=phase, rounds=_ROUNDS), ITEM) / _ROUNDS
        network = phase[0].link == TCP
        once = partial(_deliveries if network else _round_trips, pairs=phase)
        ways, repeats = (1, 3) if network else (2, REPEATS)
        nbytes = _LARGEST
        if network:
            mine = any(self._world.rank == self._owner(pair) for pair in phase)
            trial = (time(once, _TRIAL, repeats=repeats) - latency) / _TRIAL
            slowest = self._watch.slowest(trial if mine else 0.0)
            if slowest > 0:
                nbytes = min(_LARGEST, max(_TRIAL, int(_NETWORK_SHARE / slowest / 2) // 128 * 128))
        large = time(once, nbytes, repeats=repeats) / ways
        # On a busy machine the small ones may have waited longer than the large ones took.
        beta = max(large - latency, large / 2) / nbytes
        if network:  # What it saved up in a pause passes at once: in both of these, so not in the difference.
            beta = max(beta, (large - time(once, nbytes // 2, repeats=repeats)) / (nbytes // 2))
            # A processor's share does not grow when the network is slow.
            cpu = min(DEFAULT_LINKS[TCP].cpu, beta)
        elif phase[0].link == LOOPBACK:  # The kernel copies for both, and both wait for it.
            cpu = beta
        else:  # Whoever waits also moves the bytes; here each rank does so at both ends.
            both = time(partial(_exchanges, pairs=phase, rounds=1), nbytes)
            cpu = max(both - latency, both / 2) / (2 * nbytes)
        return dict.fromkeys(phase, (max(latency - 2 * _STEP, 1e-8), beta, cpu))

    def _local(self, links: Mapping[Pair, tuple[float, ...]]) -> tuple[float, ...]:
        """The row of this host, in the order of _FIELDS; `links`: what was measured of those it owns."""
        cores = len(os.sched_getaffinity(0))
        busy, clique, time = self._home[:cores], self._clique, self._watch.time

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

        call = time(lambda p: None, ITEM)
        copied = max(time(copy, _MEMORY) - call, 1e-9) / (2 * _MEMORY)
        away = max(time(copy_far, _FAR, repeats=3) - call, 1e-9) / _FAR
        sources = 1 if self._world.size > 2 else 2
        added = max(time(add, _MEMORY) - call, 1e-9) / (2 * _MEMORY)
        met = max(time(meet, ITEM) - call, 0.0) / _ROUNDS if len(clique) > 1 else Costs().meet
        fetch, reach, access = self._remote(clique, copied, met)
        crowd, turn = len(self._home) / cores, Costs().turn
        if self._crowded:
            turn = self._turn(crowd, met, links)
        local = _Local(
            copy=copied,
            reduce=max(added - copied, 0.1 * copied) / sources,
            memory=copied / (2 * len(busy)),
            meet=max(met - _STEP, 1e-8) if crowd <= 1 else _SEEN,
            call=call,
            cores=float(cores),
            turn=turn,
            far=max(away / copied, 1.0),
            fetch=fetch,
            reach=reach,
            access=access,
        )
        return local.row

    def _turn(self, crowd: float, met: float, links: Mapping[Pair, tuple[float, ...]]) -> float:
        """Seconds until a rank that waited has the processor again that it shares with others.

        Where all wait once, each rank on a processor has a turn: in a meeting, or when messages go round a ring.
        """

        def exchange(p: Builder) -> None:
            home = next(members for members in self._hosts if p.rank in members)
            place = home.index(p.rank)
            for _ in range(_ROUNDS if len(home) > 1 else 0):
                p.send(home[(place + 1) % len(home)], p.output())
                p.recv(home[place - 1], p.scratch(0, like=p.output()))

        exchanged = self._watch.time(exchange, ITEM) / _ROUNDS
        if crowd <= 1:
            return Costs().turn
        if len(self._clique) > 1:
            return max(met / crowd - _SEEN - _STEP, 1e-8)
        own = [pair for pair in links if pair.a == self._home[0] and pair.link == LOOPBACK]
        alpha = links[own[0]][0] if own else 0.0
        return max(exchanged / crowd - alpha - 2 * _STEP, 1e-8)

    def _remote(self, clique: Sequence[int], copied: float, met: float) -> tuple[float, float, float]:
        """(fetch, reach, access): what the memory of the other rank of a pair costs."""
        usual = Costs()
        if all(len(members) < 2 for members in self._world.cliques):
            return usual.fetch, usual.reach, usual.access
        pair = clique[:2] if len(clique) > 1 else ()
        nbytes = min(_SHOWN, self._window // (64 * _SHOWS) * 64)

        def show(p: Builder) -> None:
            p.windows(_SHOWS)
            if p.rank in pair:
                peer = pair[p.rank == pair[0]]
                for slot in range(
                    _SHOWS
                ):  # one after the other, as tiles do: what was read last is not written next
                    p.move(dst=p.window(slot, like=p.output()), src=p.output())
                    p.meet(pair)
                    p.move(dst=p.scratch(0, like=p.output()), src=p.window(slot, like=p.output(), of=peer))
                    p.meet(pair)

        def reach(p: Builder) -> None:
            p.meet()
            if p.rank in pair:
                peer = pair[p.rank == pair[0]]
                for _ in range(_SHOWS):
                    p.move(dst=p.scratch(0, like=p.output()), src=p.at(peer, p.output()))
            p.meet()

        # Every rank of the job takes part in every operation, whether or not it has anything to do.
        shown = (self._watch.time(show, nbytes) / _SHOWS - 2 * met) / nbytes - 2 * copied
        reached, accessed = usual.reach, usual.access
        if self._access:
            small = self._watch.time(reach, 64, Requirement.ACCESS) - 2 * met
            large = self._watch.time(reach, nbytes, Requirement.ACCESS) - 2 * met
            reached = small / _SHOWS
            accessed = (large - small) / _SHOWS / nbytes - copied
        if not pair:
            return usual.fetch, usual.reach, usual.access
        return max(shown, 0.0), max(reached, 0.0), max(accessed, 0.0)

    def _costs(
        self, links: Mapping[Pair, tuple[float, ...]], hosts: Mapping[tuple[int, ...], tuple[float, ...]]
    ) -> Costs:
        """Medians of what all ranks have alike; what is missing is assumed."""
        costs = Costs()
        if hosts:
            columns = map(statistics.median, zip(*hosts.values(), strict=True))
            values: dict[str, Any] = dict(zip(_FIELDS, columns, strict=True))
            costs = replace(costs, **{**values, "cores": round(values["cores"])})
        classes: dict[str, LinkCost] = {}
        for name in dict.fromkeys(pair.link for pair in links):
            rows = [row for pair, row in links.items() if pair.link == name]
            alpha, beta, cpu = map(statistics.median, zip(*rows, strict=True))
            if name == SHM and costs.cores and max(map(len, self._hosts)) > costs.cores:
                alpha = max(alpha - costs.turn, 1e-8)  # it was waited for
            classes[name] = LinkCost(alpha, beta, cpu)
        nic = classes[TCP].beta if TCP in classes else costs.nic
        measured = (*sorted(classes), *(["memory"] if hosts else []))
        return costs.with_links(classes, nic=nic, measured=measured)


Key = TypeVar("Key")


def _found(rows: Mapping[Key, tuple[float, ...]], width: int) -> dict[Key, tuple[float, ...]]:
    """Rows that are complete."""
    return {key: row for key, row in rows.items() if len(row) == width}


def _keep_least(known: dict[Key, tuple[float, ...]], more: Mapping[Key, tuple[float, ...]]) -> None:
    """Put rows into `known`, or the least of both."""
    for key, row in more.items():
        known[key] = tuple(map(min, row, known.get(key, row)))


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
