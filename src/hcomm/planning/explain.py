"""Why this algorithm: the choice, what every candidate is predicted to cost, and why each lost."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .cost import Price, Scene, price
from .select import Request, Setting, _rounds_once, select, settled
from .simulate import candidates, programs_of

#: Predictions this close count as equal.
_ALIKE = 1.05


@dataclass(frozen=True)
class Explanation:
    """Why an algorithm runs; `str()` is a table for people.

    Attributes:
        operation: name of the collective.
        nbytes: of the whole vector, or of the big side.
        world: ranks and hosts in words.
        choice: name of the algorithm that runs.
        why: the reason for the choice.
        prices: every registered algorithm of the operation, cheapest first, those that cannot run last.
        verdicts: algorithm → in words why it was chosen or lost.
        basis: where the costs are from.
    """

    operation: str
    nbytes: int
    world: str
    choice: str
    why: str
    prices: tuple[Price, ...]
    verdicts: dict[str, str]
    basis: str

    def price(self, algorithm: str) -> Price:
        """The price of one algorithm. Raises KeyError."""
        return {p.algorithm: p for p in self.prices}[algorithm]

    def __str__(self) -> str:
        lines = [
            f"{self.operation} of {_bytes(self.nbytes)} on {self.world}",
            f"choice: {self.choice} ({self.why})",
            f"costs:  {self.basis}",
        ]
        width = max(len(p.algorithm) for p in self.prices)
        for p in self.prices:
            mark = "*" if p.algorithm == self.choice else " "
            seconds = "-" if p.obstacle else seconds_text(p.seconds)
            lines.append(f"{mark} {p.algorithm:<{width}}  {seconds:>9}  {self.verdicts[p.algorithm]}")
        return "\n".join(lines)


def explain(world: Setting, scene: Scene, request: Request, asked: str | None = None) -> Explanation:
    """The choice for one call, beside what every algorithm is predicted to cost.

    Args:
        world: what the communicator offers.
        scene: where its ranks are, and what things cost; measured costs count in the choice.
        request: the call.
        asked: an algorithm asked for by the call.

    Raises:
        UnknownAlgorithm: the one asked for (by `asked` or a setting) is not registered, or cannot run here.
    """
    if scene.costs.measured and world.scene is None:
        world = replace(world, scene=scene)
    chosen, options, why = select(world, request, asked)
    once = _rounds_once(world, request)
    prices, unfit = [], {}
    found = candidates(
        request.operation, scene, request.nbytes, request.root, access=world.access, dtype=request.dtype
    )
    for candidate in found:
        if candidate.obstacle:
            prices.append(Price(candidate.name, float("inf"), obstacle=candidate.obstacle))
            continue
        given = options if candidate.entry is chosen else settled(candidate.entry, (), world, request)
        programs = programs_of(candidate.entry, scene, request.root, given)
        prices.append(price(candidate.name, programs, scene, request.operation, request.nbytes, request.root))
        if once and not candidate.entry.reduces_once:
            unfit[candidate.name] = f"not considered: rounds {request.dtype} more than once"
    prices.sort(key=lambda p: (p.seconds, p.algorithm))
    best = next(p for p in prices if p.algorithm == chosen.name)
    verdicts = {p.algorithm: unfit.get(p.algorithm) or _verdict(p, best) for p in prices}
    size, hosts = scene.size, len(scene.hosts)
    measured = ", ".join(scene.costs.measured)
    return Explanation(
        request.operation,
        request.nbytes,
        f"{size} rank{'s' * (size != 1)} on {hosts} host{'s' * (hosts != 1)}",
        chosen.name,
        why,
        tuple(prices),
        verdicts,
        f"measured ({measured})" if measured else "assumed, nothing was measured",
    )


def _verdict(p: Price, best: Price) -> str:
    """Why an algorithm was chosen or lost, in words."""
    if p.obstacle:
        return f"cannot run: {p.obstacle}"
    if p.algorithm == best.algorithm:
        return "chosen"
    ratio = p.seconds / best.seconds if best.seconds else 1.0
    if ratio < 1 / _ALIKE:
        return (
            f"predicted {1 / ratio:.2f}× as fast as the choice, which was made by rule and not by these costs"
        )
    if ratio < _ALIKE:
        return "predicted alike"
    return f"{ratio:.2f}× as slow: {_cause(p, best)}"


def _cause(p: Price, best: Price) -> str:
    waits, bytes_ = p.latency - best.latency, (p.seconds - p.latency) - (best.seconds - best.latency)
    if waits >= bytes_:
        return (
            f"{seconds_text(p.latency)} of latency, the choice has {seconds_text(best.latency)} "
            f"({p.messages} messages per rank, not {best.messages})"
        )
    if p.outside > best.outside * _ALIKE:
        return f"a host sends {_bytes(p.outside)} to others, not {_bytes(best.outside)}"
    if p.traffic > best.traffic * _ALIKE:
        return f"{_bytes(p.traffic)} go through a host's memory, not {_bytes(best.traffic)}"
    return "its bytes wait for each other longer"


def seconds_text(seconds: float) -> str:
    """`0.45 µs`, `2.1 ms`, `1.5 s`."""
    for scale, unit in ((1e-6, "µs"), (1e-3, "ms")):
        if seconds < 1000 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def _bytes(count: int) -> str:
    """Powers of ten: `25 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
