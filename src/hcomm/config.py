"""One table of settings: name, environment names, type, default and help.

`HCOMM_<NAME>` is the name of a setting; some are also known under the name another library uses. Sizes are in
bytes, or with a suffix in powers of two (`256KB` = 262144, `25MB`, `1GB`); durations are in seconds (`300`,
`0.5`, `500ms`, `5min`). Settings given to `init` and `new_group` as arguments win over the environment.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hcomm.errors import ConfigError

Value = str | int | float | bool

_PREFIX = "HCOMM_"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|[KMGT]?I?B?)", re.IGNORECASE)
_SECONDS = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(|ms|s|sec|m|min|h)", re.IGNORECASE)
#: Group hints come in any number; `topology.discover` reads them.
_GROUP = re.compile(r"HCOMM_GROUP_\d+")
_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_size(text: str) -> int:
    """Bytes of `4096`, `256KB`, `25MB`, `1.5GiB` (powers of two). Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("a number of bytes, or a size such as 256KB or 25MB")
    number, unit = match.groups()
    power = " KMGT".index(unit[0].upper()) if unit and unit[0].upper() != "B" else 0
    return int(float(number) * 1024**power)


def parse_seconds(text: str) -> float:
    """Seconds of `300`, `0.5`, `500ms`, `5min`. Raises ValueError."""
    match = _SECONDS.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2].lower()] if match else math.nan
    if not seconds > 0 or math.isinf(seconds):
        raise ValueError("a positive number of seconds, such as 300, 0.5 or 5min")
    return seconds


def _buffer_size(text: str) -> int:
    size = parse_size(text)
    if not 64 << 10 <= size <= 1 << 40:
        raise ValueError(f"a size from 64KB to 1TB, found {size} bytes")
    return size


def _text(text: str) -> str:
    return text.strip()


def _choice(*names: str, **synonyms: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.strip().lower()
        word = synonyms.get(word, word)
        if word not in names:
            raise ValueError("one of " + ", ".join(names))
        return word

    return parse


_SWITCH = {"1": "on", "true": "on", "yes": "on", "0": "off", "false": "off", "no": "off"}


def _positive(text: str) -> int:
    number = int(text) if text.strip().isdecimal() else 0
    if number < 1:
        raise ValueError("a whole number, at least 1")
    return number


@dataclass(frozen=True)
class Setting:
    """One line of the table.

    Attributes:
        name: without the prefix; `HCOMM_<name>` is the variable.
        parse: text → value; raises ValueError whose text says what would be accepted.
        default: the value when no variable is set.
        help: one line for people.
        aliases: further environment variables that are accepted, after the main one.
        secret: never shown.
    """

    name: str
    parse: Callable[[str], Value]
    default: Value
    help: str
    aliases: tuple[str, ...] = ()
    secret: bool = False

    @property
    def variable(self) -> str:
        """The environment variable, `HCOMM_<name>`."""
        return _PREFIX + self.name

    @property
    def variables(self) -> tuple[str, ...]:
        """Every environment variable that sets it, the strongest first."""
        return (self.variable, *self.aliases)


def _algorithm(operation: str) -> Setting:
    short = operation.replace("_", "").upper()
    spelled = operation.upper()
    aliases = [f"{_PREFIX}{spelled}_ALGO"] if spelled != short else []
    return Setting(
        f"{short}_ALGO",
        _text,
        "",
        f"Algorithm for every {operation}: `ring`, `ring:8KB-max`, `^star`; empty: chosen by size and topology.",
        (*aliases, f"HCCL_{short}_ALGO"),
    )


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "INIT_TIMEOUT", parse_seconds, 300.0, "Seconds that init() and new_group() wait for the other ranks."
    ),
    Setting("TIMEOUT", parse_seconds, 300.0, "Seconds that one operation may take before CollectiveTimeout."),
    Setting(
        "TRANSPORT",
        _choice("auto", "shm", "tcp"),
        "auto",
        "auto: shared memory where a pair proves it has it, TCP otherwise. shm, tcp: force; impossible is an error.",
    ),
    Setting(
        "SOCKET_IFNAME", _text, "", "Interfaces to use: `eth` (prefix), `=eth0` (exact), `^docker` (all but)."
    ),
    Setting(
        "BUFFER_SIZE",
        _buffer_size,
        16 << 20,
        "Bytes of shared memory each rank gives to each communicator, 64KB to 1TB.",
        ("HCCL_BUFFER_SIZE",),
    ),
    Setting(
        "AUTO_REGISTER",
        _choice("on", "off", **_SWITCH),
        "on",
        "Share the memory of large tensors of torch that come back with the same storage, in place: on or off (1, 0).",
    ),
    Setting(
        "OVERLAP_MEMCPY",
        _choice("on", "off", **_SWITCH),
        "on",
        "Copies into and out of shared memory overlap with each other; off: tile after tile. Alike on all ranks.",
        ("HCCL_OVERLAP_MEMCPY",),
    ),
    Setting(
        "MAX_CONCURRENT",
        _positive,
        4,
        "Communicators whose asynchronous operations advance side by side, by priority.",
        ("HCCL_MAX_CONCURRENT",),
    ),
    Setting("JOB_SECRET", _text, "", "Secret that every connection must prove to know.", secret=True),
    Setting("JOB_ID", _text, "", "Name of the job; connections from another job are refused."),
    Setting(
        "VISIBLE_DEVICES",
        _text,
        "",
        "Devices that hcomm-check measures with and reports: numbers such as 0,1 or 0-3; empty: all.",
    ),
    Setting(
        "DETERMINISTIC",
        _choice(
            "off", "strict", **{"0": "off", "1": "strict", "false": "off", "true": "strict", "on": "strict"}
        ),
        "off",
        "strict: only algorithms that add in rank order, so bits do not depend on size or transport.",
    ),
    Setting(
        "TOPOLOGY",
        _text,
        "",
        "File that describes hosts, devices and links (JSON, or NCCL's XML); empty: look.",
    ),
    Setting(
        "NVLINK_MAP",
        _text,
        "",
        "Pairs of devices with fast links, such as 0:1,1:2; `HCOMM_GROUP_<n>`=0,1,2,3 names whole groups.",
        ("HCCL_NVLINK_MAP",),
    ),
    Setting(
        "DEBUG",
        _choice("off", "info", "trace", **{"0": "off", "1": "info", "version": "info", "warn": "off"}),
        "off",
        "On standard error, info: a line for each communicator and plan; trace: for each call, too; warn means off.",
        ("HCCL_DEBUG",),
    ),
    Setting(
        "RING_CHUNK_SIZE",
        parse_size,
        0,
        "Bytes of the pieces in which rings pass their chunks on; 0: 1MB (all_gather: whole chunks).",
        ("HCCL_RING_CHUNK_SIZE",),
    ),
    Setting(
        "MEASURE_COSTS",
        _choice("auto", "on", "off", **{"0": "off", "1": "on"}),
        "auto",
        "Choose algorithms by measured costs (100 ms, kept for a week). auto: ranks of several hosts, up to 16.",
    ),
    _algorithm("all_reduce"),
    _algorithm("broadcast"),
    _algorithm("reduce"),
    _algorithm("all_gather"),
    _algorithm("reduce_scatter"),
    _algorithm("all_to_all"),
    _algorithm("gather"),
    _algorithm("scatter"),
    _algorithm("barrier"),
)

TABLE: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True)
class Changed:
    """A setting that differs from its default: what `hcomm check` lists."""

    variable: str
    value: str
    default: str
    help: str


class Settings(Mapping[str, Value]):
    """Parsed settings: short name (`TIMEOUT`) → value."""

    def __init__(self, values: Mapping[str, Value], sources: Mapping[str, str]) -> None:
        self._values = dict(values)
        self._sources = dict(sources)

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def text(self, name: str) -> str:
        """The value of a textual setting."""
        return str(self._values[name])

    def seconds(self, name: str) -> float:
        """The value of a duration, in seconds."""
        return float(self._values[name])

    def size(self, name: str) -> int:
        """The value of a size, in bytes."""
        return int(self._values[name])

    def algorithm(self, operation: str) -> str:
        """The algorithm asked for, for an operation such as `all_reduce`; '' if none was."""
        return self.text(operation.replace("_", "").upper() + "_ALGO")

    def source(self, name: str) -> str:
        """The environment variable that set it; '' for a default or an argument."""
        return self._sources.get(name, "")

    def replace(self, **values: Value | None) -> Settings:
        """A copy in which the values that are not None are replaced."""
        given = {name: value for name, value in values.items() if value is not None}
        unknown = given.keys() - TABLE.keys()
        if unknown:
            raise KeyError(f"no such setting: {', '.join(sorted(unknown))}")
        sources = {name: source for name, source in self._sources.items() if name not in given}
        return Settings({**self._values, **given}, sources)

    def changed(self) -> list[Changed]:
        """The settings whose value differs from the default, in table order; secrets are not shown."""
        return [
            Changed(
                self.source(setting.name) or setting.variable,
                "(set)" if setting.secret else str(self._values[setting.name]),
                "(none)" if setting.secret else str(setting.default),
                setting.help,
            )
            for setting in SETTINGS
            if self._values[setting.name] != setting.default
        ]


def parse(name: str, text: str, source: str = "") -> Value:
    """The value that `text` means for the setting `name`.

    Raises:
        ConfigError: names `source` (the environment variable or argument), the text found and what is
            accepted.
    """
    setting = TABLE[name]
    try:
        return setting.parse(text)
    except ValueError as error:
        found = "(secret)" if setting.secret else repr(text)
        raise ConfigError(
            f"{source or setting.variable}={found} is not understood: expected {error}"
        ) from None


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read every setting from the environment. An empty variable counts as unset.

    Raises:
        ConfigError: a value does not parse; the message names the variable.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS:
        values[setting.name] = setting.default
        for variable in setting.variables:
            if environ.get(variable, "").strip():
                values[setting.name] = parse(setting.name, environ[variable], variable)
                sources[setting.name] = variable
                break
    return Settings(values, sources)


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """`HCOMM_*` variables that no setting has → the closest known name ('' if none is close)."""
    environ = os.environ if environ is None else environ
    known = [variable for setting in SETTINGS for variable in setting.variables]
    return {
        name: next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), "")
        for name in sorted(environ)
        if name.startswith(_PREFIX) and name not in known and not _GROUP.fullmatch(name)
    }


def warn_unknown(environ: Mapping[str, str] | None = None) -> None:
    """Warn once, in one warning, about `HCOMM_*` variables that mean nothing."""
    unknown = unknown_variables(environ)
    if unknown:
        listed = ", ".join(
            f"{name} (did you mean {near}?)" if near else name for name, near in unknown.items()
        )
        warnings.warn(f"hcomm ignores unknown environment variables: {listed}", RuntimeWarning, stacklevel=3)
