"""From torch's store to a Communicator."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import Any

from hcomm import _native, config, memory, world
from hcomm.bootstrap import HANDED, HandedStore, Launch, Meeting, World, start
from hcomm.communicator import Communicator, agreed_settings
from hcomm.config import Settings
from hcomm.errors import NotInitialized
from hcomm.torch.options import Options

#: Of every job that torch's store brings together; what keeps jobs apart is the store.
_JOB = "torch.distributed"


@dataclass
class Membership:
    """A communicator, and what was made for it alone.

    Attributes:
        communicator: of the group.
        engine: what drives it; None when it belongs to the default group.
        job: where its links come from; None likewise.
    """

    communicator: Communicator
    engine: _native.Engine | None = None
    job: World | None = None

    def leave(self, *, exiting: bool = False) -> None:
        """Close everything; `exiting`: the process ends, and nobody has destroyed the group."""
        if exiting:
            self.communicator._end(NotInitialized("this process is ending"))
            self.communicator._native.close(exiting=True)
        else:
            self.communicator.close()
        if self.engine is not None:
            memory.release_all(self.engine)
            self.engine.close()
        if self.job is not None:
            with contextlib.suppress(Exception) if exiting else contextlib.nullcontext():
                self.job.close()


def join(store: Any, rank: int, size: int, settings: Settings, options: Options, name: str) -> Membership:
    """Meet the other members at `store` and connect to them.

    Args:
        store: a `torch.distributed.Store` with a prefix that only this group uses.
        rank: in the group.
        size: of the group.
        settings: of the group.
        options: what the user passed as `pg_options=`.
        name: of the group, for messages; '' for the default group.

    Raises:
        InitError: the group could not be brought up; its subclasses say why.
    """
    config.warn_unknown()
    host, port = _address(store)
    launch = Launch(rank, size, None, None, None, "torch.distributed", Meeting(HANDED, host, port, _JOB))
    place = f"{host}:{port} (torch's store)" if host else "torch's store"
    handed = HandedStore(store, "hcomm/", place)
    job = start(
        launch,
        world._bootstrap_settings(settings),
        world._probes(),
        world._notify,
        version=world.VERSION,
        store=handed,
    )
    try:
        engine = _native.Engine(settings.size("MAX_CONCURRENT"))
        wiring = job.wire_world(agreed_settings(settings, options.algorithm))
        communicator = Communicator(engine, job, wiring, settings, name, options.algorithm, options.priority)
    except BaseException:
        job.close()
        raise
    communicator._apart = True
    communicator.announce("torch.distributed")
    communicator.warn_slow_links()
    return Membership(communicator, engine, job)


def split(
    parent: Communicator, ranks: list[int], settings: Settings, options: Options, name: str
) -> Membership:
    """The communicator of some ranks of the default group.

    Args:
        parent: of the default group.
        ranks: its ranks that are members, in order.
        settings: of the new group.
        options: what the user passed as `pg_options=`.
        name: of the group; the same on all members, and no other group's.

    Raises:
        InitError, PeerLost, CollectiveMismatch: see `Communicator.new_group`.
    """
    limit = settings.seconds("INIT_TIMEOUT")
    group = parent.new_group(
        ranks,
        transport=settings.text("TRANSPORT"),
        algorithm=options.algorithm,
        timeout=limit,
        buffer_size=settings.size("BUFFER_SIZE"),
        name=name,
        priority=options.priority,
    )
    group._timeout = settings.seconds("TIMEOUT")
    return Membership(group)


def _address(store: Any) -> tuple[str, int]:
    """Where torch's store listens; ('', 0) if it is none that does."""
    store = getattr(store, "_underlying_non_prefix_store", store)
    return str(getattr(store, "host", "")), int(getattr(store, "port", 0))


def warn(name: str, text: str) -> None:
    """Tell of a group that is being destroyed."""
    warnings.warn(f"hcomm: process group {name} {text}", RuntimeWarning, stacklevel=4)
