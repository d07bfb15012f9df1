"""`compression="auto"`: what the cost model finds cheapest, and why."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hcomm.codes import DTYPES
from hcomm.compression.hierarchical import is_hierarchical
from hcomm.compression.quantised import check_quantisable, wire_bytes
from hcomm.diagnose import telling

if TYPE_CHECKING:
    from hcomm.communicator import Communicator

#: Quantising, adding and dequantising a vector takes as long as copying it this many times (measured: 5.0 ms and
#: 2.4 ms for 25 MB).
_QUANTISING = 2.1
#: Adding up inside a host before, and handing out after.
_INSIDE = 2.0
#: Rounding a vector to half its bytes and back.
_CASTING = 1.5
#: What loses precision must be predicted to be at least this much faster.
_WORTH = 0.9


@dataclass(frozen=True)
class Choice:
    """What `auto` chose for vectors of one length; `str()` says why.

    Attributes:
        scheme: None, `bf16` or `uint8`.
        nbytes: of the vector.
        seconds: scheme → predicted seconds of the all_reduce, compression included. The cheapest is only chosen when
            it saves at least 10 %.
        basis: what the prediction rests on.
    """

    scheme: str | None
    nbytes: int
    seconds: dict[str | None, float]
    basis: str

    def __str__(self) -> str:
        from hcomm.planning.explain import seconds_text

        listed = ", ".join(f"{name or 'none'} {seconds_text(t)}" for name, t in self.seconds.items())
        return (
            f"compression 'auto' chose {self.scheme or 'none'} for {self.nbytes / 1e6:.3g} MB: predicted {listed} "
            f"({self.basis})"
        )


def choose(communicator: Communicator, count: int, dtype: str = "float32") -> Choice:
    """The cheapest scheme for an all_reduce of `count` elements. The same on all ranks.

    Collective where the communicator's costs were not measured yet: then it measures them.

    Raises:
        UnsupportedBuffer: elements of this type cannot be compressed.
    """
    check_quantisable(dtype, "auto")
    if not communicator.costs.measured and communicator.size > 1:
        communicator.measure_costs()
    nbytes = count * DTYPES[dtype][1]
    seconds: dict[str | None, float] = {None: _price(communicator, "all_reduce", nbytes, dtype)}
    costs = communicator.costs
    crowd = max(map(len, communicator.hosts)) / (costs.cores or max(map(len, communicator.hosts)))
    handled = nbytes * costs.copy * max(1.0, crowd)
    # Between hosts of several ranks, only one of each sends what is compressed, to each other host's one.
    near = is_hierarchical(communicator, dtype)
    inside = _INSIDE if near else 0.0
    if DTYPES[dtype][1] > 2:
        wire = _price(communicator, "all_reduce", 2 * count, "int16" if near else "bfloat16")
        seconds["bf16"] = (_CASTING + inside) * handled + wire
    rounds = (
        ["all_reduce"] if near else ["all_gather"] if communicator.size == 2 else ["all_to_all", "all_gather"]
    )
    sent = wire_bytes(1 if near else communicator.size, count)
    wire = sum(_price(communicator, r, sent, "uint8") for r in rounds)
    seconds["uint8"] = (_QUANTISING + inside) * handled + wire
    best = min(seconds, key=lambda scheme: seconds[scheme])
    if seconds[best] > _WORTH * seconds[None]:
        best = None
    measured = ", ".join(costs.measured)
    basis = (
        f"{communicator.size} ranks on {len(communicator.hosts)} host(s); measured: {measured or 'nothing'}"
    )
    return Choice(best, nbytes, seconds, basis)


_told: weakref.WeakKeyDictionary[Communicator, set[tuple[str | None, int]]] = weakref.WeakKeyDictionary()


def tell(choice: Choice, communicator: Communicator) -> None:
    """Say on rank 0's standard error what was chosen, once for each length."""
    told = _told.setdefault(communicator, set())
    if communicator.rank == 0 and (choice.scheme, choice.nbytes) not in told:
        told.add((choice.scheme, choice.nbytes))
        telling.tell(str(choice))


def _price(communicator: Communicator, operation: str, nbytes: int, dtype: str) -> float:
    """Predicted seconds of what would run."""
    explanation = communicator.explain(operation, nbytes, dtype=dtype)
    return explanation.price(explanation.choice).seconds
