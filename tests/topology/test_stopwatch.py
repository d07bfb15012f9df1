"""Measurements keep their budget, all ranks alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hcomm.stopwatch import OutOfTime, Stopwatch


class World:
    """One rank whose programs take `seconds` of its clock; `slower`: what the slowest other rank's shows on top."""

    rank, size, cliques = 0, 2, ((0, 1),)

    def __init__(self, seconds: float, slower: float = 0.0) -> None:
        self.runs = 0
        self.now = 0.0
        self._seconds = seconds
        self.slower = slower
        self._native = SimpleNamespace(plan=lambda *_, **__: "program", run=self._run)

    def barrier(self, timeout: float) -> None: ...

    def _plan(self, signature: Any) -> Any:
        return signature

    def _run(self, plan: Any, source: int, target: int, patience: float) -> int:
        if plan == "program":
            self.runs += 1
            self.now += self._seconds
        return 0


def watch(world: World, budget: float, monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    monkeypatch.setattr("hcomm.stopwatch.time", SimpleNamespace(perf_counter=lambda: world.now))
    found = Stopwatch(world, 0, 60.0, budget)  # type: ignore[arg-type]
    monkeypatch.setattr(found, "_combine", lambda op, values: [v + world.slower for v in values])
    return found


def test_cheap_programs_run_often_and_dear_ones_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, runs in ((0.02, 2), (0.002, 3), (0.0001, 8)):  # as many more as 5 ms allow, 8 at most
        world = World(seconds)
        assert watch(world, 1e9, monkeypatch).time(lambda p: None, 4) == pytest.approx(seconds)
        assert world.runs == runs


def test_nothing_is_begun_when_the_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0.02)
    stopwatch = watch(world, 0.01, monkeypatch)
    stopwatch.time(lambda p: None, 4)
    assert world.runs == 1  # a second run would not have fitted
    with pytest.raises(OutOfTime):
        stopwatch.time(lambda p: None, 4)
    assert world.runs == 1


def test_the_slowest_clock_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0.0, slower=5.0)
    stopwatch = watch(world, 1.0, monkeypatch)
    stopwatch.time(lambda p: None, 4)
    assert stopwatch.used >= 5
    with pytest.raises(OutOfTime):
        stopwatch.time(lambda p: None, 4)
