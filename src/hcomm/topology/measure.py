"""Measured links, kept between runs: which pairs are measured, and the cache in the user's folder.

A link is measured between the first ranks of two hosts, or two ranks of a host, and kept by the names of the hosts
under `$XDG_CACHE_HOME/hcomm` (`~/.cache/hcomm`). The measuring itself is in `hcomm.costs`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

#: Seconds after which a measurement is made again.
KEEP_SECONDS = 7 * 86400.0
#: Grows when the meaning of what is kept changes.
VERSION = 3


@dataclass(frozen=True)
class Pair:
    """Two ranks whose link is measured, for the class of links it stands for."""

    a: int
    b: int
    link: str


def representatives(hosts: Sequence[Sequence[int]], cliques: Sequence[Sequence[int]]) -> list[list[Pair]]:
    """The pairs to measure, in phases; the pairs of one phase have no rank in common.

    Of each host one pair that shares memory and one that does not, where there are such; between hosts each with the
    next.
    """
    shm = [Pair(c[0], c[1], "shm") for c in cliques if len(c) > 1]
    clique = {rank: number for number, members in enumerate(cliques) for rank in members}
    loopback = []
    for members in hosts:
        other = [rank for rank in members if clique[rank] != clique[members[0]]]
        if other:
            loopback.append(Pair(members[0], other[0], "loopback"))
    firsts = [members[0] for members in hosts]
    between = [Pair(a, b, "tcp") for a, b in pairwise(firsts)]
    return [phase for phase in (shm, loopback, between[::2], between[1::2]) if phase]


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """`$XDG_CACHE_HOME/hcomm`, or `~/.cache/hcomm` where that is not set or not absolute."""
    environ = os.environ if environ is None else environ
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path(environ.get("HOME", "/tmp")) / ".cache") / "hcomm"


def load(name: str, now: float | None = None, folder: Path | None = None) -> tuple[float, ...]:
    """What was kept under a name; empty when there is nothing, it is old, or it cannot be understood."""
    try:
        text = _file(name, folder).read_text(encoding="utf-8")
        kept = json.loads(text)
        values = tuple(float(value) for value in kept["values"])
        age = (time.time() if now is None else now) - float(kept["time"])
        good = kept["version"] == VERSION and kept["name"] == name and 0 <= age < KEEP_SECONDS
    except (OSError, ValueError, TypeError, KeyError):
        return ()
    return values if good and all(0 <= value < 1e12 for value in values) else ()


def store(name: str, values: Sequence[float], now: float | None = None, folder: Path | None = None) -> bool:
    """Keep values under a name; False where the folder cannot be written, which costs a measurement next time."""
    path = _file(name, folder)
    document = {
        "version": VERSION,
        "name": name,
        "time": time.time() if now is None else now,
        "values": list(values),
    }
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            temporary = file.name
            json.dump(document, file)
        os.replace(temporary, path)
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    return True


def _file(name: str, folder: Path | None) -> Path:
    """Names hold host names, which may hold anything: files are named by their hash."""
    digest = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
    return (folder or cache_folder()) / f"{digest}.json"
