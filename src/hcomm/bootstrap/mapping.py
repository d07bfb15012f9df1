"""Every rank says who it is; one rank compares; all hear the verdict.

Each arrival puts its record into the store. One rank (the host of the store, or the first arrival) collects
them and publishes either the table of all
ranks or everything that is wrong with it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hcomm.bootstrap.resolve import is_loopback
from hcomm.bootstrap.store import Store
from hcomm.errors import MappingError

#: Keys in the store: of the records, and of the list of records whose ranks have ended.
RECORD, GONE = "record/", "gone"
#: Seconds without a new arrival after which known errors are published although ranks are missing.
SETTLE = 2.0


@dataclass(frozen=True)
class Record:
    """What one rank says about itself.

    Attributes:
        rank: claimed global rank.
        world_size: the size of the world as it was told.
        local_rank: rank on its node, or None if it was not told.
        local_size: ranks of its node, or None if it was not told.
        node: number of its node, or None.
        hostname: name of its host.
        boot_id: the kernel's boot id.
        netns: inode of its network namespace.
        pid: its process.
        launcher: what told it its rank.
        address: address of its listener.
        port: TCP port of its listener.
        unix_name: name of its abstract Unix socket.
        version: hcomm's version.
        agree: settings that must be the same everywhere.
        cpus: the processors that it may use, as bits in hexadecimal; "" if unknown.
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_size: int | None
    node: int | None
    hostname: str
    boot_id: str
    netns: int
    pid: int
    launcher: str
    address: str
    port: int
    unix_name: str
    version: str
    agree: dict[str, Any]
    cpus: str = ""

    def who(self) -> str:
        """The process, for messages."""
        return f"pid {self.pid} on {self.hostname}"


def boot_id() -> str:
    """The kernel's boot id; "" where it is hidden."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def network_namespace() -> int:
    """Inode of this process's network namespace; 0 where it is hidden."""
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


def allowed_cpus() -> str:
    """The processors that this process may use, as bits in hexadecimal."""
    return f"{sum(1 << cpu for cpu in os.sched_getaffinity(0)):x}"


def hostname() -> str:
    """This host's name."""
    return socket.gethostname()


def parse(text: str) -> Record:
    """A record from the store.

    Raises:
        MappingError: it has another form (another version of hcomm).
    """
    try:
        return Record(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise MappingError(
            f"a rank sent a record of another form; do all ranks run the same hcomm? ({error})"
        ) from None


def problems(records: list[Record]) -> list[str]:
    """Everything that contradicts itself in `records`, one line each; empty if nothing does."""
    found = []
    sizes = Counter(record.world_size for record in records)
    size = max(sizes, key=lambda s: (sizes[s], s))
    if len(sizes) > 1:
        odd = ", ".join(
            f"rank {r.rank} ({r.who()}) says {r.world_size}" for r in records if r.world_size != size
        )
        found.append(f"world size disagrees: {odd}, the others {size}")
    claims: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        claims[record.rank].append(record)
    for rank, claimants in sorted(claims.items()):
        if len(claimants) > 1:
            found.append(f"rank {rank} claimed by " + " and ".join(c.who() for c in claimants))
        if not 0 <= rank < size:
            found.append(f"rank {rank} outside 0..{size - 1} ({claimants[0].who()})")
    found += _unequal(records, "hcomm version", lambda r: r.version)
    for name in sorted({name for record in records for name in record.agree}):
        found += _unequal(records, name, lambda r, name=name: r.agree.get(name))  # type: ignore[misc]
    if not found:
        found = _local_problems(records) + _address_problems(records)
    return found


def _unequal(records: list[Record], what: str, value: Callable[[Record], Any]) -> list[str]:
    values = Counter(str(value(record)) for record in records)
    if len(values) == 1:
        return []
    usual = max(values, key=lambda v: values[v])
    odd = ", ".join(f"rank {r.rank} ({r.who()}) has {value(r)}" for r in records if str(value(r)) != usual)
    return [f"{what} disagrees: {odd}, the others {usual}"]


def nodes(records: list[Record]) -> list[list[Record]]:
    """The records by node, each in rank order.

    Two ranks are of one node if they have one kernel and host name, and the launcher does not say otherwise:
        several agents of torchrun on one host, or a
    local size that divides the world, make several nodes of one host.
    """
    hosts: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda r: r.rank):
        hosts[record.boot_id, record.hostname].append(record)
    found: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for host, members in hosts.items():
        for record in members:
            part = record.node
            if part is None and record.local_size and len(members) > record.local_size:
                part = record.rank // record.local_size
            found[host[0], host[1], part].append(record)
    return list(found.values())


def _local_problems(records: list[Record]) -> list[str]:
    found = []
    for members in nodes(records):
        known = [r for r in members if r.local_rank is not None]
        host = members[0].hostname
        for record in known:
            if (
                record.local_size is not None
                and record.local_rank is not None
                and not 0 <= record.local_rank < record.local_size
            ):
                found.append(
                    f"rank {record.rank}: local rank {record.local_rank} outside "
                    f"0..{record.local_size - 1} ({record.who()})"
                )
        by_local: dict[int | None, list[Record]] = defaultdict(list)
        for record in known:
            by_local[record.local_rank].append(record)
        twice = {local: claimants for local, claimants in by_local.items() if len(claimants) > 1}
        for local, claimants in twice.items():
            ranks = " and ".join(f"rank {c.rank} (pid {c.pid})" for c in claimants)
            found.append(
                f"local rank {local} on {host} claimed by {ranks}; if these are several nodes, set "
                "LOCAL_WORLD_SIZE"
            )
        order = [r.local_rank for r in known if r.local_rank is not None]
        if not twice and order != sorted(order):
            pairs = ", ".join(f"rank {r.rank} has local rank {r.local_rank}" for r in known)
            found.append(f"local ranks on {host} do not follow the ranks: {pairs}")
    return found


def _address_problems(records: list[Record]) -> list[str]:
    # A network namespace that is hidden (0) is taken for that of the others on the same kernel.
    places = {(r.boot_id, r.netns) for r in records if r.netns}
    if len(places) <= 1 and len({r.boot_id for r in records}) == 1:
        return []
    hosts = ", ".join(sorted({r.hostname for r in records}))
    return [
        f"rank {r.rank} ({r.who()}) advertises {r.address}, which only its own host can reach, but the "
        f"world spans the hosts {hosts}. "
        "Set MASTER_ADDR to an address of the network, or choose the interface with HCOMM_SOCKET_IFNAME"
        for r in records
        if is_loopback(r.address)
    ]


def missing(records: list[Record], world_size: int) -> list[int]:
    """Ranks that no record claims."""
    return sorted(set(range(world_size)) - {record.rank for record in records})


class Census:
    """One rank's part in the exchange of records.

    Args:
        store: where all meet.
        record: of this rank.
        collects: this rank collects and publishes, if the others are to wait for it.
        deadline: on `time.monotonic`.
        complain: takes a line for the user while ranks are missing; decides itself how often.
    """

    def __init__(
        self, store: Store, record: Record, deadline: float, complain: Callable[[str], None]
    ) -> None:
        self._store = store
        self._record = record
        self._deadline = deadline
        self._complain = complain
        self.records: list[Record] = []

    def arrive(self) -> int:
        """Put the record into the store; the number of this arrival, from 1."""
        arrival = self._store.add("arrivals", 1)
        self._store.set(f"{RECORD}{arrival}", json.dumps(asdict(self._record)))
        return arrival

    def collect(self, extra: dict[str, Any], before_refusal: Callable[[], None] = lambda: None) -> None:
        """Wait for all records and publish the verdict, with `extra` in it if all is well."""
        failure = self._collect()
        if failure:
            before_refusal()
            self._store.set("verdict", json.dumps({"problems": failure}))
        else:
            table = sorted(self.records, key=lambda r: r.rank)
            self._store.set("verdict", json.dumps({"records": [asdict(r) for r in table], **extra}))

    def _collect(self) -> list[str]:
        last = time.monotonic()
        while len(self.records) < max([self._record.world_size, *(r.world_size for r in self.records)]):
            text = self._store.try_get(
                f"{RECORD}{len(self.records) + 1}", min(0.5, max(0.0, self._deadline - time.monotonic()))
            )
            now = time.monotonic()
            if text is not None:
                self.records.append(parse(text))
                last = now
                continue
            gone = self._gone()
            if gone:
                return gone
            found = problems(self.records) if self.records else []
            if found and now - last > SETTLE:
                return found
            absent = missing(self.records, self._record.world_size)
            if now >= self._deadline:
                return [*found, f"ranks {absent} did not come in time"]
            self._store.set("missing", json.dumps(absent))
            self._complain(f"ranks {absent} have not arrived")
        return self._gone() or problems(self.records)

    def _gone(self) -> list[str]:
        """Ranks that came and have ended since, as far as the store knows."""
        text = self._store.try_get(GONE, 0.0)
        known = {f"{RECORD}{place}": record for place, record in enumerate(self.records, 1)}
        ended = [known[key] for key in (json.loads(text) if text else []) if key in known]
        return [f"rank {r.rank} ({r.who()}) has ended while the ranks were meeting" for r in ended]

    def verdict(self) -> dict[str, Any]:
        """What was published: `records` and the rest.

        Raises:
            MappingError: what is wrong with the mapping, or who is missing.
        """
        try:
            answer = self._store.get("verdict", self._deadline + 0.5, self._tell)
        except TimeoutError:
            raise MappingError(f"rank {self._record.rank}: init timed out: {self._absent()}") from None
        verdict: dict[str, Any] = json.loads(answer)
        if "problems" in verdict:
            raise MappingError(
                f"rank {self._record.rank}: the ranks do not fit together: " + "; ".join(verdict["problems"])
            )
        verdict["records"] = [Record(**record) for record in verdict["records"]]
        return verdict

    def _tell(self) -> None:
        self._complain(self._absent())

    def _absent(self) -> str:
        text = self._store.try_get("missing", 0.0)
        return f"ranks {text} have not arrived" if text and text != "[]" else "waiting for the other ranks"
