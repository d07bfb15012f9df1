"""What things cost: α, β and γ of the links and memory that programs run over, and the price of an algorithm.

A price is the time at which the last rank is done when all ranks' programs are played by `play`: so it is the sum
of steps along the critical path, waiting for shared resources included. `cheapest` ranks candidates by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .program import Program

#: Memory of one host, windows or the engine's rings.
SHM = "shm"
#: TCP between two ranks of one host.
LOOPBACK = "loopback"
#: TCP between hosts.
TCP = "tcp"


@dataclass(frozen=True)
class LinkCost:
    """One class of links.

    Attributes:
        alpha: seconds from a send to the arrival of an empty message.
        beta: seconds per byte of one stream.
        cpu: seconds per byte for which a processor is busy, at each end.
    """

    alpha: float
    beta: float
    cpu: float = 0.0


#: Used where nothing was measured: current server processors, 10 Gbit/s Ethernet.
DEFAULT_LINKS: Mapping[str, LinkCost] = {
    SHM: LinkCost(0.6e-6, 0.12e-9, 0.11e-9),
    LOOPBACK: LinkCost(12e-6, 0.35e-9, 0.35e-9),
    TCP: LinkCost(25e-6, 0.85e-9, 0.25e-9),
}


@dataclass(frozen=True)
class Costs:
    """The costs of all that a program does. Alike on all ranks, or they would choose differently.

    Attributes:
        links: class of link → its cost.
        call: seconds for starting a collective.
        step: seconds of a processor for one step.
        meet: seconds from a post to its being seen.
        copy: seconds per byte that one processor copies.
        reduce: seconds per byte and source that one processor adds to another (γ).
        fetch: further seconds per byte of a copy out of, or into, another rank's window: its processor wrote it last.
        reach: seconds for getting at another rank's ordinary memory, in each step and for each such region.
        access: further seconds per byte that is read or written there.
        memory: seconds per byte read or written by all processors of a host together.
        nic: seconds per byte that a host sends to other hosts; as much again may come in meanwhile.
        cores: processors of a host; 0: one for each rank.
        turn: seconds from when a rank that waited could go on until it has its processor, where ranks share one; on top
            of what the others need there.
        cache: bytes of a host's ranks' vectors that stay near; up to there `copy` and `reduce` hold.
        far: how many times as long a copy takes of what does not: half of the difference to read, half to write.
        measured: the classes (and `memory`) that were measured rather than assumed.
    """

    links: Mapping[str, LinkCost] = field(default_factory=lambda: dict(DEFAULT_LINKS))
    call: float = 1.5e-6
    step: float = 0.06e-6
    meet: float = 0.3e-6
    copy: float = 0.09e-9
    reduce: float = 0.05e-9
    fetch: float = 0.06e-9
    reach: float = 1.0e-6
    access: float = 0.12e-9
    memory: float = 0.01e-9
    nic: float = 0.8e-9
    cores: int = 0
    turn: float = 1.5e-6
    cache: int = 12 << 20
    far: float = 1.6
    measured: tuple[str, ...] = ()

    def link(self, name: str) -> LinkCost:
        """The cost of a class of links. Raises ValueError naming those there are."""
        found = self.links.get(name)
        if found is None:
            raise ValueError(
                f"no cost for links of class '{name}'; there are {', '.join(sorted(self.links))}"
            )
        return found

    def with_links(self, links: Mapping[str, LinkCost], **others: Any) -> Costs:
        """A copy in which some classes, and other fields, are replaced."""
        return replace(self, links={**self.links, **links}, **others)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["links"] = {k: [v.alpha, v.beta, v.cpu] for k, v in sorted(self.links.items())}
        plain["measured"] = list(self.measured)
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Costs:
        """What `as_dict` gave.

        Raises:
            ValueError: it is not such data: a field is missing, unknown, not a number, or negative.
        """
        try:
            links = {str(k): LinkCost(*map(float, v)) for k, v in plain["links"].items()}
            numbers = {f.name: plain[f.name] for f in fields(cls) if f.name not in ("links", "measured")}
            values: dict[str, Any] = {
                name: int(value) if name in ("cores", "cache") else float(value)
                for name, value in numbers.items()
            }
            measured = tuple(str(word) for word in plain["measured"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a table of costs: {error!r}") from None
        flat = [*values.values(), *(x for c in links.values() for x in (c.alpha, c.beta, c.cpu))]
        if not all(0 <= number < float("inf") for number in flat):
            raise ValueError("a table of costs holds a negative or infinite number")
        return cls(links=links, measured=measured, **values)


@dataclass(frozen=True)
class Scene:
    """Where ranks are and what joins them.

    Attributes:
        hosts: the ranks of each host, which share its processors, memory bandwidth and network.
        cliques: the ranks that share windows; a partition that is at least as fine as `hosts`.
        costs: what everything costs.
        classes: class of link of single pairs (a < b); other pairs are `shm` inside a clique, `loopback` inside
            a host, `tcp` between hosts.
        window_bytes: bytes of window that one operation may use.
    """

    hosts: tuple[tuple[int, ...], ...]
    cliques: tuple[tuple[int, ...], ...]
    costs: Costs = field(default_factory=Costs)
    classes: Mapping[tuple[int, int], str] = field(default_factory=dict)
    window_bytes: int = 4 << 20

    @classmethod
    def regular(
        cls, hosts: int, ranks_per_host: int, costs: Costs | None = None, *, shm: bool = True
    ) -> Scene:
        """`hosts` hosts of `ranks_per_host` ranks, counted host by host; `shm`: those of a host share memory."""
        if hosts < 1 or ranks_per_host < 1:
            raise ValueError(f"a world needs hosts and ranks, got {hosts} hosts of {ranks_per_host} ranks")
        places = tuple(tuple(range(h * ranks_per_host, (h + 1) * ranks_per_host)) for h in range(hosts))
        cliques = places if shm else tuple((r,) for r in range(hosts * ranks_per_host))
        return cls(places, cliques, costs or Costs())

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(map(len, self.hosts))

    def class_of(self) -> Callable[[int, int], str]:
        """A function from a pair of ranks to its class of link."""
        host = {r: h for h, members in enumerate(self.hosts) for r in members}
        clique = {r: c for c, members in enumerate(self.cliques) for r in members}
        classes = self.classes

        def of(a: int, b: int) -> str:
            if classes:
                named = classes.get((a, b) if a < b else (b, a))
                if named:
                    return named
            if clique[a] == clique[b]:
                return SHM
            return LOOPBACK if host[a] == host[b] else TCP

        return of


@dataclass(frozen=True)
class Price:
    """What an algorithm is predicted to cost.

    Attributes:
        algorithm: its name.
        seconds: until the last rank is done; infinite when it cannot run.
        latency: the seconds that would be left for an empty vector.
        messages: most messages that one rank sends.
        outside: most bytes that one host sends to others.
        traffic: most bytes read and written in one host's memory.
        obstacle: why it cannot run; empty if it can.
    """

    algorithm: str
    seconds: float
    latency: float = 0.0
    messages: int = 0
    outside: int = 0
    traffic: int = 0
    obstacle: str = ""


Programs = Callable[[int], Program]


def price(name: str, programs: Programs, scene: Scene, operation: str, nbytes: int, root: int = 0) -> Price:
    """The price of one algorithm.

    Args:
        name: of the algorithm.
        programs: rank → its program.
        scene: where the ranks are.
        nbytes: of the whole vector, or of the big side.

    An algorithm that cannot be written for this world, or that does not come to an end, has an `obstacle`.
    """
    from .simulate import simulate

    try:
        whole = simulate(programs, scene, operation, nbytes, root)
        empty = simulate(programs, scene, operation, 0, root)
    except ValueError as error:
        return Price(name, float("inf"), obstacle=str(error))
    return Price(name, whole.seconds, empty.seconds, whole.messages, whole.outside, whole.traffic)


def cheapest(
    candidates: Iterable[tuple[str, Programs]],
    scene: Scene,
    operation: str,
    nbytes: int,
    root: int = 0,
) -> list[Price]:
    """The candidates, cheapest first; those that cannot run last. Equal prices are ordered by name.

    A pure function: ranks with equal `scene.costs` get equal rankings.

    Args:
        candidates: (name, rank → program); `simulate.candidates` makes them from the register.
    """
    prices = [price(name, programs, scene, operation, nbytes, root) for name, programs in candidates]
    return sorted(prices, key=lambda p: (p.seconds, p.algorithm))
