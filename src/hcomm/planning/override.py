"""What users say about the choice of algorithms: `HCOMM_ALLREDUCE_ALGO`, `algorithm=` of a group or a call.

::

    ring                                     this one
    torus2d(grid=2x4)                        with options
    recursive_doubling:0-8KB;ring:8KB-max    by size in bytes: from the first, up to but not the second
    ^star,ring                               any but these

Sizes that no rule names are left to the table; of several rules that do, the first counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..config import parse_size
from ..errors import ConfigError, UnknownAlgorithm
from .registry import Algorithm, Options, lookup

_RULE = re.compile(r"\s*([^\s:;()^]+)\s*(?:\(([^()]*)\))?\s*(?::\s*([^-:;]+)-([^-:;]+))?\s*")
_GRAMMAR = (
    "an algorithm, `name(option=value)`, ranges `name:0-8KB;other:8KB-max`, or exclusions `^name,other`"
)


@dataclass(frozen=True)
class Rule:
    """An algorithm for sizes from `low` up to, but not, `high` bytes (None: no end)."""

    entry: Algorithm
    options: Options
    low: int = 0
    high: int | None = None

    def serves(self, nbytes: int) -> bool:
        """Whether the rule is about vectors of `nbytes`."""
        return self.low <= nbytes and (self.high is None or nbytes < self.high)


@dataclass(frozen=True)
class Override:
    """What was asked for: rules, or names that may not be used. Neither: nothing."""

    rules: tuple[Rule, ...] = ()
    excluded: frozenset[str] = frozenset()

    def rule(self, nbytes: int) -> Rule | None:
        """The first rule about vectors of `nbytes`."""
        return next((rule for rule in self.rules if rule.serves(nbytes)), None)


def parse(operation: str, text: object, source: str) -> Override:
    """What `text` says about `operation`. `source` names the variable or argument, for errors.

    Raises:
        UnknownAlgorithm: a name, or an option, is not known; the message lists the known.
        ConfigError: the text is not understood.
    """
    if not isinstance(text, str):
        raise ConfigError(f"{source}={text!r} is not understood: expected {_GRAMMAR}")
    text = text.strip()
    if text.startswith("^"):
        names = [name.strip().removeprefix("^") for name in re.split("[,;]", text)]
        return Override(excluded=frozenset(_find(operation, name).name for name in names if name))
    if not text:
        return Override()
    return Override(tuple(_rule(operation, part, source, text) for part in text.split(";") if part.strip()))


def names(text: str) -> list[str]:
    """The algorithms that `text` names."""
    parts = re.split("[,;]", text[1:]) if text.startswith("^") else text.split(";")
    return [re.split("[(:]", part.strip().removeprefix("^"))[0].strip() for part in parts if part.strip()]


def _rule(operation: str, part: str, source: str, text: str) -> Rule:
    match = _RULE.fullmatch(part)
    if match is None:
        raise ConfigError(f"{source}={text!r} is not understood at {part!r}: expected {_GRAMMAR}")
    name, options, low, high = match.groups()
    entry = _find(operation, name)
    given = {}
    for item in filter(str.strip, (options or "").split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"{source}={text!r} is not understood at {item!r}: expected option=value")
        given[key.strip()] = value.strip()
    try:
        first = parse_size(low) if low else 0
        last = None if not high or high.strip().lower() == "max" else parse_size(high)
    except ValueError as error:
        raise ConfigError(f"{source}={text!r} is not understood at {part!r}: expected {error}") from None
    if last is not None and last <= first:
        raise ConfigError(f"{source}={text!r}: the range {low}-{high} of {name} is empty")
    return Rule(entry, entry.options(given), first, last)


def _find(operation: str, name: str) -> Algorithm:
    """By its exact name, or whatever the case."""
    try:
        return lookup(operation, name)
    except UnknownAlgorithm:
        if name == name.lower():
            raise
        return lookup(operation, name.lower())
