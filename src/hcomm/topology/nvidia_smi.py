"""The table of `nvidia-smi topo -m`."""

from __future__ import annotations

import re
import shutil
import subprocess

from hcomm.errors import TopologyError
from hcomm.topology.model import KINDS, Device, Host, Link, Nic, Node

_NVLINK = re.compile(r"NV(\d+)")
#: What the table calls the ways that are no NVLink.
_WAYS = {"PIX": "pci", "PXB": "pci", "PHB": "host", "NODE": "host", "SYS": "numa", "SOC": "numa"}
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_SECONDS = 10.0


def run() -> str:
    """What the tool prints; '' where it is missing, fails, or does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        done = subprocess.run(
            [tool, "topo", "-m"],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def parse_matrix(text: str, host: str, where: str = "nvidia-smi topo -m") -> tuple[Host, tuple[Link, ...]]:
    """The GPUs of a host and the links between them.

    Args:
        text: what `nvidia-smi topo -m` prints.
        host: name of the host.
        where: begins every error.

    Raises:
        TopologyError: it is not such a table, or the table contradicts itself.
    """
    rows = [line.split("\t") for line in _ESCAPE.sub("", text).splitlines() if line.strip()]
    header = next(
        ([cell.strip() for cell in row] for row in rows if "GPU0" in (c.strip() for c in row[1:])), None
    )
    if header is None:
        raise TopologyError(f"{where}: no line that names GPU0: not the table of nvidia-smi topo -m")
    columns = [name for name in header if re.fullmatch(r"GPU\d+", name)]
    table = {
        row[0].strip(): [cell.strip() for cell in row] for row in rows if re.fullmatch(r"GPU\d+\s*", row[0])
    }
    missing = [name for name in columns if name not in table]
    if missing:
        raise TopologyError(f"{where}: no row for {', '.join(missing)}")
    numa = next((i for i, name in enumerate(header) if name.startswith("NUMA Affinity")), -1)
    devices, links = [], []
    for name in columns:
        node = table[name][numa] if 0 <= numa < len(table[name]) else ""
        devices.append(Device(int(name[3:]), "gpu", int(node) if node.isdigit() else -1))
    for index, a in enumerate(columns):
        for b in columns[index + 1 :]:
            there, back = _cell(table, header, a, b, where), _cell(table, header, b, a, where)
            if there != back:
                raise TopologyError(f"{where}: {a} to {b} is {there}, but {b} to {a} is {back}")
            links.append(_link(f"{host}/gpu{a[3:]}", f"{host}/gpu{b[3:]}", there, where))
    nodes = tuple(Node(n, n) for n in sorted({d.node for d in devices} - {-1}))
    nics = tuple(Nic(name, 0.0, "infiniband") for name in header if re.fullmatch(r"(NIC|mlx)\w*", name))
    return Host(host, nodes, tuple(devices), nics), tuple(links)


def _cell(table: dict[str, list[str]], header: list[str], a: str, b: str, where: str) -> str:
    column = header.index(b)
    row = table[a]
    if column >= len(row) or not row[column]:
        raise TopologyError(f"{where}: nothing is said of {a} to {b}")
    return row[column]


def _link(a: str, b: str, word: str, where: str) -> Link:
    match = _NVLINK.fullmatch(word)
    if match and int(match[1]):
        return Link(a, b, "nvlink", KINDS["nvlink"][0] * int(match[1]), KINDS["nvlink"][1])
    if word not in _WAYS:
        raise TopologyError(f"{where}: {a} to {b}: unknown way {word!r}; known: NV<n>, {', '.join(_WAYS)}")
    return Link(a, b, _WAYS[word], *KINDS[_WAYS[word]])
