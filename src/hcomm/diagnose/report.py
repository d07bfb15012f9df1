"""Status codes of the core → exceptions that name the ranks, what they were doing and where."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from hcomm import _native
from hcomm.errors import (
    BrokenCommunicator,
    CollectiveMismatch,
    CollectiveTimeout,
    CommunicatorError,
    MessageMismatch,
    PeerLost,
)

#: Seconds given to the other ranks to say what they called, when calls differ: they are about to raise, too.
MISMATCH_SECONDS = 2.0
#: Seconds given to them after a timeout: the core has asked them before, and a stopped rank never answers.
TIMEOUT_SECONDS = 0.25
#: What Python says of a shape and the core does not know.
_SHAPE = re.compile(r" of shape \(.*?\)")


class Call:
    """One call of the user, in words, for messages.

    Attributes:
        what: `all_reduce(float32, 100 elements, sum)`; may be given as a function that finds these words when they
            are needed.
        where: `train.py:10`, or ''.
        timeout: seconds it was given.
        peers: for point-to-point, the group ranks that could have served it; None for a collective.
        message: for point-to-point, how the core names it: `recv from rank 1, tag 0`.
    """

    __slots__ = ("_what", "message", "peers", "timeout", "where")

    def __init__(self, what: str | Callable[[], str], where: str, timeout: float,
                 peers: tuple[int, ...] | None = None, message: str = "") -> None:  # fmt: skip
        self._what = what
        self.where = where
        self.timeout = timeout
        self.peers = peers
        self.message = message

    @property
    def what(self) -> str:
        return self._what if isinstance(self._what, str) else self._what()

    def __str__(self) -> str:
        return _at(self.what, self.where)


def describe(operation: str, dtype: str, shape: Sequence[int], detail: str = "") -> str:
    """`all_reduce(float32, 100 elements, sum)`; shapes of other than one dimension are spelled out."""
    parts = []
    if dtype:
        count = 1
        for size in shape:
            count *= size
        spelled = "" if len(shape) == 1 else f" of shape {tuple(shape)}"
        parts = [dtype, f"{count} element{'' if count == 1 else 's'}{spelled}"]
    if detail:
        parts.append(detail)
    return f"{operation}({', '.join(parts)})"


class Reporter:
    """Makes the exceptions of one communicator.

    Args:
        comm: the native communicator.
        rank: own rank in the group.
        ranks: global ranks in group order, for names.
        pids: process of each rank, in its own numbering.
        label: the name of the group; '' for the world.
    """

    def __init__(
        self, comm: _native.Comm, rank: int, ranks: Sequence[int], pids: Sequence[int], label: str
    ) -> None:
        self._comm = comm
        self._rank = rank
        self._ranks = tuple(ranks)
        self._pids = tuple(pids)
        self._label = label
        self._plain = self._ranks == tuple(range(len(self._ranks)))

    def error(self, status: int, call: Call, text: str = "") -> CommunicatorError:
        """The exception for a failed `call`; may ask the other ranks, which takes up to half a second.

        Args:
            status: what the core answered.
            call: in words.
            text: what the core says about a message that does not fit.
        """
        failure = self._comm.failure()
        kind = failure.kind if failure is not None and status == _native.ABORTED else status
        if kind == _native.MESSAGE_MISMATCH:
            text = text or "the message has another element type or size than the tensor"
            return MessageMismatch(self._prefix(call) + text, call.peers or ())
        if kind == _native.TIMEOUT:
            return self._timeout(call, failure)
        if kind == _native.MISMATCH and call.peers is None:
            return self._mismatch(call, failure)
        ranks = tuple(failure.ranks) if failure is not None else ()
        if kind == _native.PEER_LOST:
            return PeerLost(self._prefix(call) + self._lost(failure), ranks[:1])
        said = failure.text if failure is not None else ""
        said = said or "the communicator was closed or aborted"
        if kind == _native.MISMATCH:
            return CollectiveMismatch(self._prefix(call) + f"failed with its communicator: {said}", ranks)
        error = CommunicatorError if kind == _native.SYSTEM else BrokenCommunicator
        return error(self._prefix(call) + said, ranks)

    def still_running(self, call: Call, seconds: float) -> CollectiveTimeout:
        """For `Work.wait(timeout)`: the wait is over, the operation goes on."""
        reports = self._comm.reports(call.what, call.where, TIMEOUT_SECONDS)
        missing, states = self._laggards(call, None, reports)
        text = f"still running after waiting {seconds:g} s; the operation goes on and can be waited for again"
        return CollectiveTimeout(self._prefix(call) + text + states, missing)

    def _prefix(self, call: Call) -> str:
        group = f" in group {self._label}" if self._label else ""
        return f"rank {self._ranks[self._rank]}{group}: {call}: "

    def name(self, rank: int) -> str:
        """`rank 3`, with the global rank when the group counts differently."""
        if self._plain or not 0 <= rank < len(self._ranks):
            return f"rank {rank}"
        return f"rank {rank} (global {self._ranks[rank]})"

    def names(self, ranks: Sequence[int]) -> str:
        """`rank 1, rank 2`, or `ranks 1, 2, 3`."""
        if len(ranks) < 2 or not self._plain:
            return ", ".join(self.name(rank) for rank in ranks) or "no rank"
        return "ranks " + ", ".join(str(rank) for rank in ranks)

    def _mismatch(self, call: Call, failure: _native.Failure | None) -> CollectiveMismatch:
        reports = self._comm.reports(call.what, call.where, MISMATCH_SECONDS)
        found = failure.seq if failure is not None else 0
        histories = {report.rank: _history(report.recent) for report in reports if report.heard}
        # Where a rank only sends, nothing is compared until ranks meet again: the fault may lie further back.
        number = min(_first_difference(histories) or found, found or 2**63)
        calls: dict[str, list[int]] = {}
        silent = []
        said = {report.rank: (report.what, report.where) for report in reports if report.heard}
        said[self._rank] = (call.what, call.where)
        for rank in range(len(self._ranks)):
            what, where = said.get(rank, ("", ""))
            past = histories.get(rank, {}).get(number, "")
            if past and not _SHAPE.sub("", what).startswith(past.removesuffix(")")):
                what, where = past, ""
            if what:
                calls.setdefault(_at(what, where), []).append(rank)
            else:
                silent.append(rank)
        lines = [
            f"{self.names(sorted(ranks))}: {what}"
            for what, ranks in sorted(calls.items(), key=lambda item: min(item[1]))
        ]
        if silent:
            lines.append(f"{self.names(silent)}: did not say what it called")
        text = f"operation #{number} differs between ranks{self._in_group()}: " + "; ".join(lines)
        alike = len(calls) < 2 or (failure is not None and "different algorithms" in failure.text)
        if number < found:
            text += f"; noticed in operation #{found}, here in {call}"
        elif failure is not None and failure.text and (silent or alike):
            text += f" ({failure.text})"
        ranks = tuple(failure.ranks) if failure is not None else ()
        return CollectiveMismatch(text + ". Every rank must make the same calls in the same order.", ranks)

    def _timeout(self, call: Call, failure: _native.Failure | None) -> CollectiveTimeout:
        reports = self._comm.reports(call.what, call.where, TIMEOUT_SECONDS)
        if failure is not None and not self._is_own(call, failure, reports):
            text = f"given up, because another operation of the communicator timed out: {failure.text}"
            return CollectiveTimeout(self._prefix(call) + text, tuple(failure.ranks))
        missing, states = self._laggards(call, failure, reports)
        text = f"not complete in time (the timeout here is {call.timeout:g} s)"
        return CollectiveTimeout(self._prefix(call) + text + states, missing)

    def _is_own(self, call: Call, failure: _native.Failure, reports: Sequence[_native.Report]) -> bool:
        """Whether the timeout that broke the communicator is that of `call`, here or on another rank."""
        if call.message or failure.text.startswith(("send to ", "recv from ")):
            return bool(call.message) and failure.text.startswith(call.message)
        mine = [report.posted for report in reports if report.rank == self._rank]
        return not mine or mine[0] == failure.seq

    def _laggards(
        self, call: Call, failure: _native.Failure | None, reports: Sequence[_native.Report]
    ) -> tuple[tuple[int, ...], str]:
        """The ranks that did not come, and what each of them is doing."""
        others = [report for report in reports if report.rank != self._rank]
        if call.peers is not None:
            late = [report for report in others if report.rank in call.peers]
        elif failure is not None and failure.ranks:
            late = [report for report in others if report.rank in failure.ranks]
        elif failure is not None:
            late = [report for report in others if report.posted < failure.seq]
        else:
            late = [report for report in others if report.posted == report.done]
        late = late or [report for report in others if not report.heard]
        if not late:
            return (), "; every rank has arrived" if call.peers is None else ""
        missing = tuple(sorted(report.rank for report in late))
        verb = "waiting for" if call.peers is not None else "did not arrive:"
        states = ". ".join(self._state(report) for report in sorted(late, key=lambda report: report.rank))
        return missing, f"; {verb} {self.names(missing)}. {states}"

    def _lost(self, failure: _native.Failure | None) -> str:
        """Who died first, and how."""
        if failure is None or not failure.ranks:
            return (failure.text if failure is not None else "") or "a rank was lost"
        first = failure.ranks[0]
        how = failure.text.removeprefix(f"rank {first}").strip() or "was lost"
        return f"{self.name(first)} (pid {self._pids[first]}) {how}; the communicator must be rebuilt"

    def _state(self, report: _native.Report) -> str:
        """What one rank is doing, in words."""
        who = f"{self.name(report.rank)} (pid {self._pids[report.rank]})"
        done = _operations(report.done)
        if not report.heard and report.alive and not report.done:
            done = "an unknown number of operations"
        if report.left:
            return f"{who} left after {done}"
        if not report.alive:
            return f"{who} is gone; it had completed {done}"
        if not report.heard:
            return f"{who} is alive but does not answer (stopped?); it had completed {done}"
        if report.what.startswith("in "):
            return f"{who} is {_at(report.what, report.where)}"
        # What does not begin so was said by a call that is failing there, too.
        if report.what:
            return f"{who} was in {_at(report.what, report.where)}"
        return f"{who} has completed {done} and is not in any hcomm call"

    def _in_group(self) -> str:
        return f" of group {self._label}" if self._label else ""


def _at(what: str, where: str) -> str:
    return f"{what} at {where}" if where else what


def _history(recent: str) -> dict[int, str]:
    """The collectives a rank began last: number → in words."""
    pairs = (line.split(" ", 1) for line in recent.splitlines())
    return {int(number): what for number, what in pairs}


def _first_difference(histories: Mapping[int, Mapping[int, str]]) -> int | None:
    """The first operation that two ranks remember differently."""
    known: dict[int, str] = {}
    differing = [
        number
        for history in histories.values()
        for number, what in history.items()
        if known.setdefault(number, what) != what
    ]
    return min(differing, default=None)


def _operations(count: int) -> str:
    return f"{count} operation{'' if count == 1 else 's'}"
