"""Connecting the members of a group: control links, proof of shared memory, host cliques, data connections.

In every pair the rank with the higher number in the world connects and the other accepts, whatever the
group's order, so that two ranks that
disagree about a group still meet and can tell each other. The phases, each run for all peers at once:

1. control: a Unix socket where the peer can be reached by one, otherwise TCP. The accepting side says `go`
   when it wants the same group.
2. probe (probing.py): windows and tokens are exchanged; what is shared is proven.
3. agreement: the lowest member collects everybody's findings and hands out the cliques.
4. data: two TCP connections for each pair that is not in one clique.
5. windows get their final size, and everybody waits until everybody is ready.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hcomm.bootstrap import window as windows
from hcomm.bootstrap.cliques import Agreement, agree
from hcomm.bootstrap.dialing import Contact, Group, Home, Lines
from hcomm.bootstrap.gather import Late, PeerFailed, gather
from hcomm.bootstrap.probing import Evidence, Finding, Link, complaint, hear, probe
from hcomm.bootstrap.talk import Conversation, Talk, send_message
from hcomm.bootstrap.vigil import Vigil
from hcomm.bootstrap.window import Window
from hcomm.errors import HcommError, InitError

SWITCHED_OFF = "shared memory is switched off (transport=tcp)"


@dataclass
class Wiring:
    """Everything that joins this rank to the other members of a group. Descriptors belong to the receiver.

    Attributes:
        rank: this rank in the group.
        size: members.
        uid: 64-bit id of the communicator, the same on all members, never used again.
        ranks: global ranks in group order.
        cliques: host cliques in group ranks.
        access: all members of each clique can read each other's ordinary memory (`process_vm_readv`); the
            same on all members.
        windows: per member, the window's descriptor for members of this rank's clique (with itself),
            otherwise -1.
        control: per member, a connected stream socket; -1 for itself.
        coll: likewise, for collectives; -1 inside the clique.
        p2p: likewise, for point-to-point messages; -1 inside the clique.
        pids: per member of the clique, its process as seen from here if its memory can be read, otherwise 0.
        reasons: per peer, why it is not reached through shared memory; "" if it is.
        hosts: the members' records.
    """

    rank: int
    size: int
    uid: int
    ranks: tuple[int, ...]
    cliques: tuple[tuple[int, ...], ...]
    access: bool
    windows: list[int]
    control: list[int]
    coll: list[int]
    p2p: list[int]
    pids: list[int]
    reasons: dict[int, str]
    hosts: list[Contact]

    def close(self) -> None:
        """Close all descriptors; for a wiring that was not handed on."""
        for fds in (self.windows, self.control, self.coll, self.p2p):
            for place, fd in enumerate(fds):
                if fd >= 0:
                    os.close(fd)
                fds[place] = -1


def wire(home: Home, group: Group, deadline: float, lost: Callable[[], Iterable[int]] = lambda: ()) -> Wiring:
    """Connect this rank with all other members, who do the same at about the same time.

    Args:
        home: this process.
        group: with this rank among its members.
        deadline: on `time.monotonic`.
        lost: global ranks that are known to be gone; asked again and again while members are missing.

    Raises:
        InitError: members did not come in time, or (in the world) left.
        PeerLost: a member of a group is gone.
        CollectiveMismatch: members named other lists of ranks, or other settings.
        TransportUnavailable: `transport="shm"`, but some pair cannot share memory.
    """
    work = _Wireup(home, group, deadline, lost)
    try:
        return work.run()
    except BaseException as error:
        work.give_up(error)
        raise


class _Wireup:
    def __init__(self, home: Home, group: Group, deadline: float, lost: Callable[[], Iterable[int]]) -> None:
        self.home = home
        self.group = group
        self.deadline = deadline
        self.me = group.ranks.index(home.rank)
        self.links: dict[int, Link] = {}
        self.window: Window | None = None
        self.findings: dict[int, Finding] = {}
        self.vigil = Vigil(home, group, lost)
        self.lines = Lines(home, group, deadline, self.vigil)

    def run(self) -> Wiring:
        """All phases."""
        try:
            self.links = self.lines.control()
            self._probe()
            agreement = self._agree()
            clique = next(c for c in agreement.cliques if self.me in c)
            outside = {rank for place, rank in enumerate(self.group.ranks) if place not in clique}
            self.lines.data(outside)
            self._finish(len(clique))
        except PeerFailed as error:
            if isinstance(error.cause, HcommError):
                raise error.cause from None
            self.lines.heed(0.3)
            raise self.vigil.error([error.peer]) from error.cause
        except Late as late:
            raise InitError(
                f"rank {self.home.rank}: connecting {self.group.title()} took too long: no answer from ranks "
                f"{sorted({place[0] for place in late.peers})}"
            ) from None
        return self._hand_over(agreement, clique)

    def give_up(self, error: BaseException) -> None:
        """Tell the peers why, and close everything."""
        known = (
            error
            if isinstance(error, HcommError)
            else InitError(
                f"rank {self.home.rank} gave up connecting {self.group.title()}: {type(error).__name__}"
            )
        )
        self.lines.abandon(complaint(known))
        for finding in self.findings.values():
            if finding.fd >= 0:
                os.close(finding.fd)
        if self.window is not None:
            self.window.close()

    def _probe(self) -> None:
        if self.group.transport == "tcp":
            self.window = windows.private()
            self.findings = {peer: Finding(reason=SWITCHED_OFF) for peer in self.links}
            return
        reason = ""
        try:
            self.window = self._open_window()
        except OSError as error:
            reason = error.strerror or str(error)
        evidence = Evidence(self.home.credentials.key, self.window, reason, self.home.probes)
        talks = {peer: Conversation(link.sock, probe(link, evidence)) for peer, link in self.links.items()}
        try:
            self.findings = gather(self.deadline, talks, self.vigil.look)
        except BaseException:
            for talk in talks.values():
                if talk.outcome is not None and talk.outcome.fd >= 0:
                    os.close(talk.outcome.fd)
            raise
        if self.window is None:
            self.window = windows.private()
        self.window.unlink()

    def _open_window(self) -> Window:
        mine = self.home.contacts[self.home.rank].boot_id
        kernel = [rank for rank in self.group.ranks if self.home.contacts[rank].boot_id == mine]
        size = self.home.probes.window_bytes(len(kernel), self.group.buffer_bytes)
        # A peer on this kernel that no descriptor can be passed to can still be met in /dev/shm.
        if any(not link.unix and peer in kernel for peer, link in self.links.items()):
            try:
                return windows.from_file(size)
            except OSError as error:
                for peer, link in self.links.items():
                    if not link.unix and peer in kernel:
                        link.reason = f"{link.reason}; {error.strerror}"
        try:
            return windows.from_memfd()
        except OSError as error:
            first = f"memfd_create: {os.strerror(error.errno or 0)}"
            try:
                return windows.from_file(size)
            except OSError as second:
                raise OSError(second.errno, f"{first}; {second.strerror}") from second

    def _agree(self) -> Agreement:
        ranks = self.group.ranks
        place = {rank: index for index, rank in enumerate(ranks)}
        row = {
            "shared": [place[p] for p, f in self.findings.items() if f.shared],
            "cma": [place[p] for p, f in self.findings.items() if f.cma],
            "reasons": {str(place[p]): f.reason for p, f in self.findings.items() if f.reason},
        }
        lowest = min(ranks)
        if self.home.rank != lowest:
            sock = self.links[lowest].sock
            answer = gather(self.deadline, {lowest: Conversation(sock, _report(row))}, self.vigil.look)[
                lowest
            ]
            return Agreement(tuple(tuple(clique) for clique in answer["cliques"]), bool(answer["access"]))
        hearing = {p: Conversation(link.sock, hear()) for p, link in self.links.items()}
        heard = gather(self.deadline, hearing, self.vigil.look)
        rows = [row if rank == lowest else heard[rank] for rank in ranks]
        agreement = agree(ranks, rows, self.group.transport)
        if isinstance(agreement, HcommError):
            raise agreement
        message = {"cliques": agreement.cliques, "access": agreement.access}
        gather(
            self.deadline,
            {p: Conversation(link.sock, send_message(message)) for p, link in self.links.items()},
            self.vigil.look,
        )
        return agreement

    def _finish(self, clique: int) -> None:
        assert self.window is not None
        size = self.home.probes.window_bytes(clique, self.group.buffer_bytes)
        try:
            self.window.finish(size)
        except OSError as error:
            raise InitError(
                f"rank {self.home.rank}: cannot have {size} bytes of shared memory for {self.group.title()} "
                f"(HCOMM_BUFFER_SIZE is {self.group.buffer_bytes}): {error.strerror}; set HCOMM_BUFFER_SIZE to less"
            ) from error
        ready = {p: Conversation(link.sock, _ready()) for p, link in self.links.items()}
        gather(self.deadline, ready, self.vigil.look)

    def _hand_over(self, agreement: Agreement, clique: tuple[int, ...]) -> Wiring:
        assert self.window is not None
        ranks = self.group.ranks
        size = self.home.probes.window_bytes(len(clique), self.group.buffer_bytes)
        local = {ranks[place] for place in clique}
        fds, pids, reasons = [], [], {}
        for place, rank in enumerate(ranks):
            finding = self.findings.get(rank)
            inside = finding is not None and rank in local
            if finding is not None and inside and os.fstat(finding.fd).st_size < size:
                raise InitError(
                    f"rank {rank}'s window has {os.fstat(finding.fd).st_size} bytes, {size} were agreed"
                )
            fds.append(self.window.fd if finding is None else finding.fd if inside else -1)
            pids.append(
                os.getpid() if finding is None else self.links[rank].pid if inside and finding.cma else 0
            )
            if finding is not None:
                reasons[place] = (
                    "" if inside else finding.reason or "it shares memory with only some of the clique"
                )
        for rank, finding in self.findings.items():
            if rank not in local and finding.fd >= 0:
                os.close(finding.fd)
        self.findings, self.window = {}, None
        taken = self.lines.detach()
        return Wiring(
            rank=self.me,
            size=len(ranks),
            uid=self.group.uid,
            ranks=ranks,
            cliques=agreement.cliques,
            access=agreement.access,
            windows=fds,
            control=[taken["control"].get(rank, -1) for rank in ranks],
            coll=[taken["coll"].get(rank, -1) for rank in ranks],
            p2p=[taken["p2p"].get(rank, -1) for rank in ranks],
            pids=pids,
            reasons=reasons,
            hosts=[self.home.contacts[rank] for rank in ranks],
        )


def _report(row: dict[str, Any]) -> Talk[dict[str, Any]]:
    yield from send_message(row)
    return (yield from hear())


def _ready() -> Talk[dict[str, Any]]:
    yield from send_message({"ready": True})
    return (yield from hear())
