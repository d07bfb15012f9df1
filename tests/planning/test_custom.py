"""Users' own algorithms: proved when they are registered, then as good as any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hcomm
from hcomm.planning import registry
from hcomm.planning.planner import Planner
from hcomm.planning.verify import VerificationError


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    registry.algorithms()
    before = dict(registry._algorithms)
    yield
    registry._algorithms.clear()
    registry._algorithms.update(before)


def relay(p: hcomm.Builder) -> None:
    """A chain up and a chain down."""
    if p.rank > 0:
        p.recv_reduce(p.rank - 1, p.output())
    if p.rank < p.size - 1:
        p.send(p.rank + 1, p.output())
        p.recv(p.rank + 1, p.output())
    else:
        p.finish(p.output())
    if p.rank > 0:
        p.send(p.rank - 1, p.output())


def ask(name: str, **settings: str) -> str:
    planner = Planner(0, 3, ((0, 1, 2),), window_bytes=1 << 20, access=False, settings=settings)
    return planner.choose("all_reduce", "float32", "sum", 8, None, name or None).algorithm


def test_registered_and_chosen() -> None:
    with pytest.raises(hcomm.UnknownAlgorithm, match="unknown all_reduce algorithm 'mine'"):
        ask("mine")
    assert hcomm.algorithm("all_reduce", name="mine")(relay) is relay
    assert ask("mine") == "mine"
    assert ask("", ALLREDUCE_ALGO="mine:0-1MB") == "mine"


def test_a_formula_is_proved_too() -> None:
    def formula(p: hcomm.Builder) -> hcomm.Volume:
        messages = (p.rank > 0) + (p.rank < p.size - 1)
        return hcomm.Volume(messages, messages)

    hcomm.algorithm("all_reduce", name="mine", formula=formula)(relay)
    with pytest.raises(
        VerificationError, match=r"rank 1 has 2 messages of 2 n bytes, .* the formula says 1 messages"
    ):
        hcomm.algorithm("all_reduce", name="yours", formula=lambda p: hcomm.Volume(*(1, 1) * (p.size > 1)))(
            relay
        )


def test_a_wrong_one_is_refused_and_not_registered() -> None:
    with pytest.raises(VerificationError, match=r"'mine' for 2 ranks .*rank 0.*finish.*without ranks 1"):

        @hcomm.algorithm("all_reduce", name="mine")
        def nothing(p: hcomm.Builder) -> None:
            p.finish(p.output())

    with pytest.raises(hcomm.UnknownAlgorithm):
        ask("mine")


def test_only_the_sizes_asked_for() -> None:
    @hcomm.algorithm("all_reduce", name="pair", sizes=[2])
    def pair(p: hcomm.Builder) -> None:
        if p.size != 2:
            p.fail("made for two ranks")
        if p.rank:
            p.send(0, p.output())
            p.recv(0, p.output())
        else:
            p.recv_reduce(1, p.output())
            p.finish(p.output())
            p.send(1, p.output())

    with pytest.raises(
        hcomm.UnknownAlgorithm, match=r"'pair' \(asked for by the call\) cannot run: .*made for two ranks"
    ):
        ask("pair")
    with pytest.raises(ValueError, match="algorithm 'pair2', rank 0 of 1, step 0: made for two ranks"):
        hcomm.algorithm("all_reduce", name="pair2")(pair)


def test_it_is_proved_on_many_hosts() -> None:
    """What leans on shared memory must say so."""
    with pytest.raises(ValueError, match="rank 1 of 2, step 0: rank 0 shares no memory with this one"):

        @hcomm.algorithm("broadcast", name="mine")
        def shown(p: hcomm.Builder) -> None:
            window = p.window(0, like=p.output(), of=p.root)
            if p.rank == p.root:
                p.move(dst=window, src=p.output())
            p.meet()
            if p.rank != p.root:
                p.move(dst=p.output(), src=window)


def test_names_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"all_reduce algorithm 'ring' is taken by hcomm.*all_reduce\.ring"):
        hcomm.algorithm("all_reduce", name="ring")(relay)
    with pytest.raises(ValueError, match="unknown operation 'all_sum'; known: all_reduce"):
        hcomm.algorithm("all_sum")
    for name in ("", "my ring", "a;b", "^a", "a:b", "a(b)"):
        with pytest.raises(ValueError, match="is no name for an algorithm"):
            hcomm.algorithm("all_reduce", name=name or " ")(relay)


def test_a_module_may_replace_its_own() -> None:
    hcomm.algorithm("all_reduce", name="mine")(relay)
    hcomm.algorithm("all_reduce", name="mine", sizes=[2, 3])(relay)
    assert ask("mine") == "mine"


def test_options_of_ones_own() -> None:
    @hcomm.algorithm("all_reduce", name="mine")
    def tiled(p: hcomm.Builder, *, chunk: int = 0) -> None:
        with p.tiles(chunk):
            relay(p)

    planner = Planner(0, 3, ((0, 1, 2),), window_bytes=1 << 20, access=False, settings={})
    plain, cut = (
        planner.choose("all_reduce", "float32", "sum", 8, None, text) for text in ("mine", "mine(chunk=64KB)")
    )
    assert plain.hash != cut.hash
    with pytest.raises(hcomm.UnknownAlgorithm, match=r"cannot run: .*multiple of 64 bytes"):
        planner.choose("all_reduce", "float32", "sum", 8, None, "mine(chunk=65)")
