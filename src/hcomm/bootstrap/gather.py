"""Many conversations at once, in the calling thread."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from hcomm.bootstrap.talk import Conversation

T = TypeVar("T")
#: Seconds without any news after which a gathering asks whether those it waits for are still there.
TICK = 0.15

#: A conversation: (peer's rank, channel).
Place = tuple[int, str]


class PeerFailed(Exception):
    """The conversation with one peer failed.

    Attributes:
        peer: its rank.
        cause: what happened.
    """

    def __init__(self, peer: int, cause: BaseException) -> None:
        super().__init__(f"rank {peer}: {cause}")
        self.peer = peer
        self.cause = cause


class Late(Exception):
    """The deadline came first.

    Attributes:
        peers: (rank, channel) of the conversations that had not ended.
    """

    def __init__(self, peers: list[Place]) -> None:
        super().__init__(f"{peers} did not answer in time")
        self.peers = peers


class Gathering(Generic[T]):
    """Runs conversations until all have ended; the first failure ends it.

    Args:
        deadline: on `time.monotonic`.
        expected: conversations that must end; those not given to `add` yet are brought by `more`.
        more: called first and whenever `watch` becomes readable; may `add`.
        watch: a descriptor, or -1.
        idle: called with the ranks that are waited for whenever nothing has happened for a moment; may raise.
    """

    def __init__(
        self,
        deadline: float,
        expected: set[Place],
        more: Callable[[], None] = lambda: None,
        watch: int = -1,
        idle: Callable[[set[int]], None] = lambda awaited: None,
    ) -> None:
        self.results: dict[Place, T] = {}
        self.ended: Callable[[Place], None] = lambda place: None
        self._deadline = deadline
        self._missing = set(expected)
        self._more = more
        self._watch = watch
        self._idle = idle
        self._selector = selectors.DefaultSelector()
        self._running: dict[Place, Conversation[T]] = {}
        self._events: dict[Place, int] = {}

    def add(self, place: Place, conversation: Conversation[T]) -> None:
        """Start a conversation."""
        self._running[place] = conversation
        self._advance(place)

    def run(self) -> dict[Place, T]:
        """Run to the end; the results by place. Ctrl-C interrupts it.

        Raises:
            PeerFailed: a conversation failed.
            Late: the deadline came.
        """
        try:
            if self._watch >= 0:
                self._selector.register(self._watch, selectors.EVENT_READ, -1)
            self._more()
            while self._missing:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    raise Late(sorted(self._missing))
                ready = self._selector.select(min(left, TICK))
                if not ready:
                    self._idle({place[0] for place in self._missing})
                for key, _ in ready:
                    if key.data == -1:
                        with suppress(BlockingIOError):
                            os.read(self._watch, 4096)
                        self._more()
                    elif key.data in self._running:
                        self._advance(key.data)
            return self.results
        finally:
            self.close()

    def close(self) -> None:
        """Cancel what still runs."""
        for conversation in self._running.values():
            conversation.cancel()
        self._running.clear()
        self._selector.close()

    def _advance(self, place: Place) -> None:
        conversation = self._running[place]
        if conversation.advance():
            del self._running[place]
            if self._events.pop(place, 0):
                self._selector.unregister(conversation.sock)
            if conversation.error is not None:
                raise PeerFailed(place[0], conversation.error)
            self.results[place] = conversation.result
            self._missing.discard(place)
            self.ended(place)
        elif self._events.get(place, 0) == 0:
            self._selector.register(conversation.sock, conversation.interest, place)
            self._events[place] = conversation.interest
        elif self._events[place] != conversation.interest:
            self._selector.modify(conversation.sock, conversation.interest, place)
            self._events[place] = conversation.interest


def gather(
    deadline: float,
    conversations: dict[int, Conversation[T]],
    idle: Callable[[set[int]], None] = lambda awaited: None,
) -> dict[int, T]:
    """Run conversations that all exist already.

    Raises:
        PeerFailed: one of them failed.
        Late: the deadline came.
    """
    gathering: Gathering[T] = Gathering(deadline, {(peer, "") for peer in conversations}, idle=idle)
    try:
        for peer, conversation in conversations.items():
            gathering.add((peer, ""), conversation)
        return {place[0]: result for place, result in gathering.run().items()}
    finally:
        gathering.close()
