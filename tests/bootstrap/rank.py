"""One rank of a test of the bootstrap floor, as a process: `python rank.py '{"rank": 0, …}'`; prints JSON lines."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import time
import types
from typing import Any


def without_core() -> None:
    """Import `hcomm.bootstrap` without the C++ core: this floor does not need it, and its tests start faster so."""
    found = importlib.util.find_spec("hcomm")
    assert found is not None
    package = types.ModuleType("hcomm")
    package.__path__ = list(found.submodule_search_locations or ())
    sys.modules["hcomm"] = package


def say(**what: Any) -> None:
    """Print one JSON line."""
    print(json.dumps({"at": time.time(), **what}), flush=True)


def late_resolver(name: str, known_at: float) -> Any:
    """A resolver that knows `name` (as 127.0.0.1) only from a certain time on."""

    def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
        if host == name:
            if time.time() < known_at:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            host = "127.0.0.1"
        return [(socket.AF_INET, (host, port))]

    return resolve


def check(wiring: Any) -> None:
    """Send a byte over every connection and read what the peers sent; read the peers' windows."""
    channels = {"control": wiring.control, "coll": wiring.coll, "p2p": wiring.p2p}
    for channel, fds in channels.items():
        for peer, fd in enumerate(fds):
            if fd >= 0:
                os.write(fd, f"{channel} {wiring.rank:3} {peer:3}".encode())
    for channel, fds in channels.items():
        for peer, fd in enumerate(fds):
            if fd >= 0:
                expected = f"{channel} {peer:3} {wiring.rank:3}".encode()
                os.set_blocking(fd, True)
                got = os.read(fd, len(expected))
                assert got == expected, (got, expected)
    for fd in wiring.windows:
        if fd >= 0:
            assert os.pread(fd, 8, 0) == b"HCOMMWIN"
            assert os.pread(fd, 64, 64) == bytes(64)


def describe(wiring: Any) -> dict[str, Any]:
    """The comparable part of a wiring."""
    return {
        "uid": wiring.uid,
        "ranks": wiring.ranks,
        "cliques": wiring.cliques,
        "access": wiring.access,
        "windows": [fd >= 0 for fd in wiring.windows],
        "sizes": [os.fstat(fd).st_size if fd >= 0 else 0 for fd in wiring.windows],
        "coll": [fd >= 0 for fd in wiring.coll],
        "pids": wiring.pids,
        "reasons": wiring.reasons,
    }


def main() -> None:
    """Run the steps that the argument lists."""
    case = json.loads(sys.argv[1])
    without_core()
    from hcomm import bootstrap

    if case.get("no_unix"):
        from hcomm.bootstrap.dialing import Lines

        Lines._unix = lambda self, rank: (None, "no Unix socket in this test")  # type: ignore[method-assign]
    if case.get("no_memfd"):
        from hcomm.bootstrap import window

        def refuse() -> Any:
            raise OSError(38, "Function not implemented")

        window.from_memfd = refuse
    if case.get("no_shm"):
        from hcomm.bootstrap import window

        window.SHM = "/nonexistent"
    settings = bootstrap.BootstrapSettings(**case.get("settings", {}))
    rank, size = case["rank"], case["size"]
    meeting = bootstrap.Meeting(
        case.get("kind", "tcp"), case.get("host", "127.0.0.1"), case["port"], case.get("job", "")
    )
    launch = bootstrap.Launch(
        rank, size, case.get("local_rank"), case.get("local_size"), None, "the test", meeting
    )
    probes = bootstrap.Probes(lambda local, nbytes: 4096 + local * nbytes)
    resolver = {} if "known_at" not in case else {"resolver": late_resolver(case["host"], case["known_at"])}
    say(begin=True)
    try:
        for _ in range(case.get("cycles", 1)):
            world = bootstrap.start(
                launch,
                settings,
                probes,
                lambda line: say(notice=line),
                version=case.get("version", "1"),
                **resolver,
            )
            say(started=True, local_rank=world.local_rank, local_size=world.local_size)
            if case.get("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            wiring = world.wire_world(case.get("agree"))
            check(wiring)
            if not case.get("quiet"):
                say(wiring=describe(wiring))
            for group in case.get("groups", []):
                make_group(world, group, say)
            time.sleep(case.get("hold", 0))
            wiring.close()
            world.close()
            say(closed=True)
        settle = time.monotonic() + 2  # a joined thread is for a moment still in the kernel's list
        while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < settle:
            time.sleep(0.01)
        say(end=True, fds=len(os.listdir("/proc/self/fd")), threads=len(os.listdir("/proc/self/task")))
    except Exception as error:  # reported to the test
        say(error=str(error), kind=type(error).__name__)


def make_group(world: Any, group: dict[str, Any], say: Any) -> None:
    """Make one group if this rank has a list for it."""
    ranks = group["ranks"].get(str(world.rank))
    if ranks is None:
        return
    if "threads" in group:
        make_named(world, ranks, group["threads"], say)
        return
    time.sleep(group.get("delay", {}).get(str(world.rank), 0))
    options = {key: value for key, value in group.items() if key in ("timeout", "agree")}
    transport = group.get("transport")
    if isinstance(transport, dict):
        transport = transport.get(str(world.rank))
    try:
        made = world.wire_group(world.uid, ranks, transport=transport, **options)
    except Exception as error:  # reported to the test
        say(group_error=str(error), kind=type(error).__name__)
        return
    check(made)
    say(group=describe(made))
    made.close()


def make_named(world: Any, ranks: list[int], names: list[str], say: Any) -> None:
    """Make groups of the same ranks at the same time, one in each thread."""
    made: dict[str, Any] = {}
    threads = [
        threading.Thread(
            target=lambda name=name: made.update({name: world.wire_group(world.uid, ranks, name=name)})
        )
        for name in names
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    for name, wiring in made.items():
        check(wiring)
        say(named=[name, wiring.uid])
        wiring.close()


if __name__ == "__main__":
    main()
