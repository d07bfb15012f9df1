"""Planner: from a call to the program that this rank runs, with a cache in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

from ..codes import OPERATIONS
from . import sharing
from .builder import ROOTED, Requirement
from .cost import Scene
from .registry import Algorithm, Options
from .select import Request, Setting, fallback, select, window_need

#: Choices kept before the cache is emptied: sizes may be different in every call of a job, memory may not grow.
_CACHE_LIMIT = 256


@dataclass(frozen=True)
class Choice:
    """What a rank will run.

    Attributes:
        algorithm: name of the algorithm.
        options: its options, where they differ from its own defaults.
        program: this rank's program, encoded.
        fallback: the program to run when, in one operation, not every rank offers what `program` needs; empty if it
            needs nothing. Where tensors may lie in shared memory, it is the one of `algorithm`.
        hash: 64 bits, the same on all ranks that chose alike.
        tile_bytes: tile size that replaces the program's own; 0: none.
        why: the reason, in words.
        reaches_input, reaches_output: per rank, whether others reach into its buffer in `program`, so that it must
            offer it; empty if nobody's.
        through_process: reaching it through its process is good enough, it need not be shared memory.
    """

    algorithm: str
    options: Options
    program: bytes
    fallback: bytes
    hash: int
    tile_bytes: int
    why: str
    reaches_input: Sequence[bool] = ()
    reaches_output: Sequence[bool] = ()
    through_process: bool = True


class _Written(NamedTuple):
    """A program of this rank, and how much of a window it needs: see `select.window_need`."""

    data: bytes
    window_need: tuple[int, int]


class Planner:
    """Chooses algorithms for one communicator and keeps the programs of this rank.

    Args:
        rank, size: this rank and the number of ranks.
        cliques: the host cliques, a partition of the ranks; ranks of a clique share memory.
        window_bytes: bytes of window that one operation may use.
        access: all ranks of all cliques can reach each other's ordinary memory.
        settings: names without prefix; ALLREDUCE_ALGO and the like force an algorithm, DETERMINISTIC=strict restricts
            to algorithms that add in rank order.
        prefer_direct: use peer access for large vectors wherever there is any.
        crowded: on some host ranks outnumber the processors that they may use.
        groups: groups of fast links that the user described, and how they exchange `inside`: see `select.Setting`.

    Attributes:
        built: programs written so far.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        cliques: tuple[tuple[int, ...], ...],
        *,
        window_bytes: int,
        access: bool,
        settings: Mapping[str, str],
        prefer_direct: bool = False,
        crowded: bool = False,
        groups: str = "",
        inside: str = "direct",
    ) -> None:
        self.built = 0
        self._rank = rank
        self._world = Setting(
            size,
            tuple(tuple(c) for c in cliques),
            window_bytes,
            access,
            prefer_direct,
            dict(settings),
            self._window_need,
            crowded,
            groups,
            inside,
        )
        self._choices: dict[tuple[object, ...], Choice] = {}
        self._programs: dict[tuple[Algorithm, Options, int], _Written] = {}
        self._reaches: dict[tuple[Algorithm, Options, int], tuple[list[bool], list[bool]]] = {}

    @property
    def world(self) -> Setting:
        """What the communicator offers, as the selection sees it."""
        return self._world

    def use_costs(self, scene: Scene) -> None:
        """From now on choose by what `scene` says that things cost. All ranks do so before the same call."""
        self._world = replace(self._world, scene=scene)
        self._choices.clear()

    def choose(
        self,
        operation: str,
        dtype: str,
        op: str | None,
        nbytes: int,
        root: int | None,
        algorithm: str | None = None,
    ) -> Choice:
        """The program for one call; the same question gets the same object.

        Args:
            nbytes: of the whole vector (all_reduce, broadcast, reduce) or of the big side; 0 if ranks may differ.
            root: the root of a rooted operation, else None.
            algorithm: what to use, over every setting; see `override` for all that may be said.

        Raises:
            UnknownAlgorithm: the algorithm asked for is not registered, or cannot run in this communicator.
            ConfigError: what was asked for is not understood.
            ValueError: there is no such operation, or no such root.
        """
        key = (operation, dtype, op, nbytes, root, algorithm)
        choice = self._choices.get(key)
        if choice is None:
            if len(self._choices) >= _CACHE_LIMIT:
                self._choices.clear()
            choice = self._choices[key] = self._decide(
                self._request(operation, dtype, op, nbytes, root), algorithm
            )
        return choice

    def _request(self, operation: str, dtype: str, op: str | None, nbytes: int, root: int | None) -> Request:
        if operation not in OPERATIONS:
            raise ValueError(f"unknown operation '{operation}'; known: {', '.join(OPERATIONS)}")
        if operation in ROOTED and (root is None or not 0 <= root < self._world.size):
            raise ValueError(
                f"{operation} needs a root among the ranks 0..{self._world.size - 1}, got {root}"
            )
        return Request(operation, dtype, op, nbytes, root if operation in ROOTED and root is not None else 0)

    def _decide(self, request: Request, asked: str | None) -> Choice:
        entry, options, why = select(self._world, request, asked)
        program = self._written(entry, options, request.root).data
        if entry.requires is Requirement.ACCESS:
            instead = self._written(fallback(request.operation), (), request.root).data
            reach = self._reach(entry, options, request.root)
            return Choice(
                entry.name,
                options,
                program,
                instead,
                self._hash(entry, options, request),
                0,
                why,
                *reach,
                True,
            )
        number = self._hash(entry, options, request)
        shared = sharing.candidate(self._world, request, asked)
        if shared is None:
            return Choice(entry.name, options, program, b"", number, 0, why)
        reach = self._reach(shared, (), request.root)
        first = self._written(shared, (), request.root).data
        why += f"; {shared.name} when all tensors are in shared memory"
        return Choice(entry.name, options, first, program, number, 0, why, *reach, False)

    def _reach(self, entry: Algorithm, options: Options, root: int) -> tuple[list[bool], list[bool]]:
        key = (entry, options, root)
        reach = self._reaches.get(key)
        if reach is None:
            reach = self._reaches[key] = sharing.reach(entry, self._world, root, options)
        return reach

    def _written(self, entry: Algorithm, options: Options, root: int) -> _Written:
        key = (entry, options, root)
        written = self._programs.get(key)
        if written is None:
            self.built += 1
            world = self._world
            program = entry.program(self._rank, world.size, world.cliques, root, options)
            written = self._programs[key] = _Written(program.encode(), window_need(program))
        return written

    def _window_need(self, entry: Algorithm, options: Options, root: int) -> tuple[int, int]:
        return self._written(entry, options, root).window_need

    def _hash(self, entry: Algorithm, options: Options, request: Request) -> int:
        world = self._world
        agreed = (entry.operation, entry.name, options, request.root, world.size, world.cliques)
        return int.from_bytes(blake2b(repr(agreed).encode(), digest_size=8).digest(), "little")
