"""Names, options, ranges and exclusions, as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcomm.errors import ConfigError, UnknownAlgorithm
from hcomm.planning.override import names, parse
from hcomm.planning.planner import Choice, Planner
from hcomm.planning.registry import lookup

KB, MB = 1 << 10, 1 << 20
FOUR_HOSTS = ((0,), (1,), (2,), (3,))


def choose(
    text: str, nbytes: int, *, operation="all_reduce", call=None, cliques=FOUR_HOSTS, dtype="float32", **more
) -> Choice:
    settings = {operation.replace("_", "").upper() + "_ALGO": text, **more}
    size = sum(map(len, cliques))
    planner = Planner(0, size, cliques, window_bytes=4 * MB, access=False, settings=settings)
    return planner.choose(operation, dtype, "sum", nbytes, None, call)


@pytest.mark.parametrize(
    ("nbytes", "algorithm"),
    [(0, "recursive_doubling"), (8 * KB - 4, "recursive_doubling"), (8 * KB, "ring"), (100 * MB, "ring")],
)
def test_ranges(nbytes: int, algorithm: str) -> None:
    choice = choose("recursive_doubling:0-8KB;ring:8KB-max", nbytes)
    assert (choice.algorithm, choice.why) == (algorithm, "asked for by the setting ALLREDUCE_ALGO")


def test_sizes_between_ranges_are_left_to_the_table() -> None:
    text = " Double_Binary_Tree : 1KB-2KB ; halving_doubling:1MB-2MB ; "
    assert choose(text, KB).algorithm == "double_binary_tree"
    assert choose(text, MB).algorithm == "halving_doubling"
    for nbytes in (8, 2 * KB, 2 * MB):
        assert choose(text, nbytes).algorithm == choose("", nbytes).algorithm


def test_the_first_rule_counts() -> None:
    assert choose("star:0-1MB;ring", KB).algorithm == "star"
    assert choose("star:0-1MB;ring", MB).algorithm == "ring"


def test_exclusions() -> None:
    assert choose("", 8).algorithm == "recursive_doubling"
    excluded = choose("^recursive_doubling", 8)
    assert excluded.algorithm not in ("recursive_doubling", "")
    assert excluded.why == "the choices before it are excluded"
    assert choose("^star,ring", MB).algorithm not in ("star", "ring")
    assert choose("^ring", 8).algorithm == "recursive_doubling"
    # What rounds once is only replaced by what rounds once.
    with pytest.raises(
        UnknownAlgorithm, match=r"no all_reduce algorithm is left .* ALLREDUCE_ALGO says \^pairwise"
    ):
        choose("^pairwise", MB, dtype="float16")
    everything = "^" + ",".join(["meet", "dissemination"])
    with pytest.raises(UnknownAlgorithm, match="no barrier algorithm is left"):
        choose(everything, 0, operation="barrier")


def test_a_call_wins_over_the_setting() -> None:
    assert choose("ring", 8, call="star").algorithm == "star"
    assert choose("ring", 8, call="^star").algorithm != "ring"


def test_options() -> None:
    tall, wide, default = (choose(t, MB) for t in ("torus2d(grid=1x4)", "torus2d( grid = 4x1 )", "torus2d"))
    assert tall.options == (("grid", "1x4"),)
    assert len({tall.hash, wide.hash, default.hash}) == 3
    assert choose("ring(chunk=256KB):1MB-max", MB).options == (("chunk", 256 * KB),)


def test_the_chunk_size_of_rings() -> None:
    plain = choose("ring", MB)
    chunked = choose("ring", MB, RING_CHUNK_SIZE="65536")
    assert (plain.options, chunked.options) == ((), (("chunk", 65536),))
    assert plain.hash != chunked.hash
    assert plain.program != chunked.program
    assert choose("", 8 * MB, RING_CHUNK_SIZE="65536").options == (("chunk", 65536),)
    assert choose("ring(chunk=4KB)", MB, RING_CHUNK_SIZE="65536").options == (("chunk", 4096),)
    assert choose("ring", MB, RING_CHUNK_SIZE="0").options == ()
    assert choose("star", MB, RING_CHUNK_SIZE="65536").options == ()


def test_unknown_names_and_options_list_the_known() -> None:
    for text in ("rong", "ring:0-8KB;rong:8KB-max", "^rong", "^ring,rong"):
        with pytest.raises(
            UnknownAlgorithm, match="unknown all_reduce algorithm 'rong'; known: direct, double_"
        ):
            choose(text, 8)
    with pytest.raises(UnknownAlgorithm, match="'torus2d' has no option 'size'; known: grid"):
        choose("torus2d(size=4)", 8)
    with pytest.raises(UnknownAlgorithm, match="'star' has no option 'chunk'; known: none"):
        choose("star(chunk=4)", 8)
    with pytest.raises(
        UnknownAlgorithm, match="'ring' does not understand chunk=big: expected a number of bytes"
    ):
        choose("ring(chunk=big)", 8)


@pytest.mark.parametrize("grid", ["2x3", "4", "ax1", "0x4", "2x2x1"])
def test_impossible_grids(grid: str) -> None:
    with pytest.raises(UnknownAlgorithm, match=rf"cannot run: .*grid={grid} is not X×Y with X·Y = 4 ranks"):
        choose(f"torus2d(grid={grid})", 8)


@pytest.mark.parametrize(
    "text",
    [
        "ring:8KB",
        "ring:a-b",
        "ring:8KB-8KB",
        "ring:2MB-1MB",
        "ring(chunk)",
        "ring)",
        "ring;^star",
        ":0-8",
        "ring:-8",
    ],
)
def test_what_is_not_understood_names_the_variable(text: str) -> None:
    with pytest.raises(ConfigError, match=r"HCOMM_ALLREDUCE_ALGO='.*"):
        choose(text, 8)


def test_only_text_is_understood() -> None:
    with pytest.raises(ConfigError, match="algorithm=3 is not understood: expected an algorithm, "):
        choose("", 8, call=3)


@given(st.text(alphabet="ring^;:,-()=08KBmax ", max_size=30))
def test_noise_never_ends_in_another_error(text: str) -> None:
    try:
        wish = parse("all_reduce", text, "algorithm")
    except (ConfigError, UnknownAlgorithm):
        return
    assert all(rule.entry == lookup("all_reduce", rule.entry.name) for rule in wish.rules)


def test_names() -> None:
    assert names("recursive_doubling:0-8KB; ring(chunk=4KB):8KB-max;") == ["recursive_doubling", "ring"]
    assert names("^star, ring") == ["star", "ring"]
