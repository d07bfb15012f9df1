"""Who am I, who are the others, which links join us."""

from hcomm.bootstrap.dialing import Contact
from hcomm.bootstrap.launcher import HANDED, Launch, Meeting, detect
from hcomm.bootstrap.rendezvous import World, start
from hcomm.bootstrap.settings import BootstrapSettings, Probes
from hcomm.bootstrap.store import HandedStore
from hcomm.bootstrap.wireup import Wiring

__all__ = [
    "HANDED",
    "BootstrapSettings",
    "Contact",
    "HandedStore",
    "Launch",
    "Meeting",
    "Probes",
    "Wiring",
    "World",
    "detect",
    "start",
]
