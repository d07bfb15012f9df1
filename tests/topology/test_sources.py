"""Topologies from files, hints and tools, and what is wrong with bad ones."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from hcomm.errors import HcommError, TopologyError
from hcomm.planning.groups import plan_groups
from hcomm.planning.scenes import scene_of
from hcomm.topology.discover import discover, hinted
from hcomm.topology.files import load_topology, parse_json, parse_rate
from hcomm.topology.model import Device, Host, Link, Nic, Node, Topology
from hcomm.topology.nvidia_smi import parse_matrix


def dgx() -> dict[str, Any]:
    """Eight GPUs of one host: four and four with fast links, slow ones across."""
    links: list[dict[str, Any]] = []
    for a, b in itertools.combinations(range(8), 2):
        near = a // 4 == b // 4
        links.append(
            {
                "between": [f"dgx/gpu{a}", f"dgx/gpu{b}"],
                "kind": "nvlink" if near else "numa",
                "bandwidth": "300GB/s" if near else "10GB/s",
                "latency": "1us" if near else "4us",
            }
        )
    host = {
        "name": "dgx",
        "nodes": [{"id": 0, "socket": 0, "cpus": "0-63"}, {"id": 1, "socket": 1, "cpus": "64-127"}],
        "devices": [{"id": i, "kind": "gpu", "node": i // 4, "label": "A100"} for i in range(8)],
        "nics": [{"name": "mlx5_0", "kind": "infiniband", "speed": "200Gbit/s", "node": 0}],
    }
    return {"hcomm_topology": 1, "hosts": [host], "links": links}


def test_two_groups_of_four() -> None:
    """Two groups of four: direct inside each group, ring between the groups."""
    topology = parse_json(json.dumps(dgx()), "dgx.json")
    assert topology.fast_groups() == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert topology.link("dgx/gpu0", "dgx/gpu3").bandwidth == 300e9
    assert topology.link("dgx/gpu0", "dgx/gpu4").latency == 4e-6
    plan = plan_groups(topology)
    assert (plan.inside, plan.between) == ("direct", "ring")
    assert str(plan).splitlines() == [
        "direct inside ranks 0, 1, 2, 3",
        "direct inside ranks 4, 5, 6, 7",
        "ring between groups: ranks 0, 4",
        "ring between groups: ranks 1, 5",
        "ring between groups: ranks 2, 6",
        "ring between groups: ranks 3, 7",
    ]


def test_a_topology_becomes_a_scene() -> None:
    scene = scene_of(parse_json(json.dumps(dgx()), "dgx.json"))
    assert scene.hosts == ((0, 1, 2, 3, 4, 5, 6, 7),)
    assert scene.costs.link(scene.class_of()(1, 0)).beta == pytest.approx(1 / 300e9)
    assert scene.costs.link(scene.class_of()(0, 7)).alpha == 4e-6


def _broken(change: Any) -> str:
    document = dgx()
    change(document)
    with pytest.raises(TopologyError) as error:
        parse_json(json.dumps(document), "topology file bad.json")
    assert isinstance(error.value, HcommError)
    return str(error.value)


def _set(path: str, value: Any) -> Any:
    def change(document: dict[str, Any]) -> None:
        here: Any = document
        *way, last = path.split(".")
        for name in way:
            here = here[int(name)] if name.isdigit() else here[name]
        if value is None:
            del here[last]
        else:
            here[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("hcomm_topology", None, "bad.json: 'hcomm_topology' is missing"),
        ("hcomm_topology", 2, "reads version 1"),
        ("hosts", [], "no hosts"),
        ("surplus", 1, "unknown field 'surplus'; known: groups, hcomm_topology, hosts, links"),
        ("hosts.0.devices.0.node", 7, "host 'dgx', gpu0: NUMA node 7 does not exist; there are [0, 1]"),
        ("hosts.0.devices.0.id", -5, "hosts[0]: devices[0]: id: -5 is negative"),
        ("hosts.0.devices.1.id", 0, "host 'dgx': devices: 'gpu0' is there twice"),
        (
            "hosts.0.nodes.0.cpus",
            "a-b",
            "hosts[0]: nodes[0]: cpus: expected a list such as 0-3,8, found 'a-b'",
        ),
        ("hosts.0.nics.0.speed", "fast", "nics[0]: speed: expected a number or a text such as '100Gbit/s'"),
        ("links.3.bandwidth", -1, "links[3]: bandwidth: -1 is negative"),
        ("links.3.bandwidth", 0, "links[3] (dgx/gpu0 - dgx/gpu4): bandwidth must be a positive number"),
        ("links.3.latency", "1 week", "links[3]: latency: expected a number or a text such as '1us'"),
        ("links.3.between", ["dgx/gpu0"], "links[3]: between: expected two devices"),
        (
            "links.3.between",
            ["dgx/gpu0", "dgx/gpu9"],
            "links[3] (dgx/gpu0 - dgx/gpu9): unknown device 'dgx/gpu9'",
        ),
        ("links.3.between", ["dgx/gpu0", "dgx/gpu0"], "joins two devices, not one with itself"),
        (
            "links.3.between",
            ["dgx/gpu0", "dgx/gpu1"],
            "contradicts an earlier link of the same pair: nvlink of 3e+11",
        ),
        ("links.3.kind", None, "links[3]: 'kind' is missing"),
        ("links", {}, "links: expected list, found {}"),
        ("groups", [[0, 1], [1, 2]], "ranks of groups: '1' is there twice"),
        ("groups", [[0, 99]], "group 0: ranks [99] do not exist; there are 8 devices"),
        ("groups", ["ab"], "groups[0]: expected a list of ranks"),
    ],
)
def test_bad_files_name_file_and_place(path: str, value: Any, text: str) -> None:
    message = _broken(_set(path, value))
    assert "bad.json" in message
    assert text in message


def test_missing_links() -> None:
    def forget(document: dict[str, Any]) -> None:
        document["links"] = [link for link in document["links"] if "dgx/gpu7" not in link["between"]]

    assert "links: dgx/gpu7 has no link, but other devices of host 'dgx' have" in _broken(forget)


def test_hosts_without_a_way_between_them() -> None:
    def lonely(document: dict[str, Any]) -> None:
        document["hosts"].append({"name": "far", "devices": [{"id": 0}]})

    assert "host 'far' has neither nics nor links to other hosts" in _broken(lonely)


def test_files_that_are_no_topologies(tmp_path: Path) -> None:
    for name, text, problem in (
        ("a.json", "{", "neither JSON nor XML"),
        ("b.json", "[1]", "expected an object"),
        ("c.xml", "<system><cpu", "not XML"),
        ("d.xml", "<graph/>", "expected <system> as NCCL writes it, found <graph>"),
        ("e.xml", "<system version='1'/>", "no <gpu>"),
        ("f.xml", "<!DOCTYPE a [<!ENTITY b 'c'>]><system/>", "no document type"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(TopologyError, match=name) as error:
            load_topology(tmp_path / name)
        assert problem in str(error.value)
    with pytest.raises(TopologyError, match="cannot be read"):
        load_topology(tmp_path / "none.json")


XML = """<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="0000:07:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:0f:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:0f:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:07:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
    <nic><net name="mlx5_0" dev="0" speed="200000" port="1"/></nic>
  </cpu>
  <cpu numaid="1" affinity="ffff0000" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="0000:87:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="2" sm="80" rank="2" gdr="1"/>
    </pci>
  </cpu>
</system>"""


def test_nccl_xml(tmp_path: Path) -> None:
    path = tmp_path / "nccl.xml"
    path.write_text(XML)
    topology = load_topology(path)
    (host,) = topology.hosts
    assert host.nodes[1].cpus == tuple(range(16, 32))
    assert host.nics == (Nic("mlx5_0", 200e9, "infiniband", 0),)
    assert topology.link("host0/gpu0", "host0/gpu1") == Link("host0/gpu0", "host0/gpu1", "nvlink", 80e9, 1e-6)
    assert topology.link("host0/gpu0", "host0/gpu2").kind == "numa"
    assert topology.fast_groups() == ((0, 1), (2,))


def test_nccl_xml_through_switches(tmp_path: Path) -> None:
    path = tmp_path / "switch.xml"
    path.write_text(
        "<system version='1'><cpu numaid='0'>"
        + "".join(
            f"<pci busid='0000:0{i}:00.0'><gpu dev='{i}' sm='90'>"
            "<nvlink target='0000:c0:00.0' count='18' tclass='0x068000'/></gpu></pci>"
            for i in range(4)
        )
        + "</cpu></system>"
    )
    topology = load_topology(path)
    assert topology.link("host0/gpu1", "host0/gpu3").bandwidth == pytest.approx(18 * 20.6e9)
    assert str(plan_groups(topology)) == "direct inside ranks 0, 1, 2, 3"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            'target="0000:07:00.0" count="4"',
            'target="0000:07:00.0" count="2"',
            "has 4 nvlinks to <gpu dev=1>, which has 2 back",
        ),
        ('target="0000:07:00.0"', 'target="0000:99:00.0"', "nvlink to unknown device '0000:99:00.0'"),
        ('dev="1"', 'dev="x"', "dev: expected a number, found 'x'"),
        ('dev="1"', 'dev="0"', "'gpu0' is there twice"),
        ('speed="200000"', 'speed="-1"', "speed: -1 is negative"),
        ('count="4"', "", "'count' is missing"),
        ('affinity="0000ffff"', 'affinity="zz"', "affinity: expected a mask"),
    ],
)
def test_contradictions_in_xml(tmp_path: Path, old: str, new: str, text: str) -> None:
    path = tmp_path / "bad.xml"
    path.write_text(XML.replace(old, new))
    with pytest.raises(TopologyError, match=r"bad\.xml") as error:
        load_topology(path)
    assert text in str(error.value)


MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV12\tSYS\tPXB\t0-31\t0\n"
    "GPU1\tNV12\t X \tNODE\tPXB\t0-31\t0\n"
    "GPU2\tSYS\tNODE\t X \tSYS\t32-63\t1\n"
    "NIC0\tPXB\tPXB\tSYS\t X \n"
    "\nLegend:\n\n  X    = Self\n"
)


def test_nvidia_smi() -> None:
    host, links = parse_matrix(MATRIX, "box")
    assert [device.node for device in host.devices] == [0, 0, 1]
    assert [(link.kind, link.bandwidth) for link in links] == [
        ("nvlink", 240e9),
        ("numa", 10e9),
        ("host", 10e9),
    ]
    assert [nic.name for nic in host.nics] == ["NIC0"]
    assert Topology((host,), links).fast_groups() == ((0, 1), (2,))


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("GPU1\tNV12", "GPU1\tNV8", "GPU0 to GPU1 is NV12, but GPU1 to GPU0 is NV8"),
        ("GPU2\tSYS\tNODE\t X \tSYS\t32-63\t1\n", "", "no row for GPU2"),
        ("SYS", "WAT", "unknown way 'WAT'"),
        ("GPU0\tGPU1", "A\tB", "not the table"),
    ],
)
def test_bad_tables(old: str, new: str, text: str) -> None:
    with pytest.raises(TopologyError, match="nvidia-smi") as error:
        parse_matrix(MATRIX.replace(old, new), "box")
    assert text in str(error.value)


# Hints


def test_group_hints() -> None:
    plan = plan_groups(hinted({"HCCL_GROUP_0": "0,1,2,3", "HCOMM_GROUP_1": "4,5,6,7"}))
    assert plan.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert (plan.inside, plan.between) == ("direct", "ring")


def test_a_circle_of_links_is_a_ring() -> None:
    plan = plan_groups(hinted({"HCCL_NVLINK_MAP": "0:1,1:2,2:3,3:0"}))
    assert (plan.inside, plan.between, plan.orders) == ("ring", "none", ((0, 1, 2, 3),))
    plan = plan_groups(hinted({"HCCL_NVLINK_MAP": "0:2,2:1,1:3,3:0"}))
    assert plan.orders == ((0, 2, 1, 3),)
    assert plan_groups(hinted({"HCCL_NVLINK_MAP": "0:1,1:2"})).inside == "tree"


@pytest.mark.parametrize(
    ("hints", "text"),
    [
        ({"HCCL_GROUP_0": "0,x"}, "HCCL_GROUP_0='0,x': expected ranks such as 0,1,2,3"),
        ({"HCCL_GROUP_0": "-1"}, "expected ranks"),
        ({"HCCL_GROUP_0": "0,0"}, "a rank is there twice"),
        ({"HCCL_GROUP_0": "0,1", "HCCL_GROUP_1": "1,2"}, "HCCL_GROUP_1: rank 1 is in HCCL_GROUP_0 already"),
        ({"HCCL_GROUP_0": "0,1", "HCOMM_GROUP_0": "0,1"}, "group 0 is given twice"),
        ({"HCCL_GROUP_0": "0,1", "HCCL_GROUP_1": "3"}, r"ranks \[2\] are in no group"),
        ({"HCCL_NVLINK_MAP": "0-1"}, "expected pairs such as 0:1,1:2, found '0-1'"),
        ({"HCCL_NVLINK_MAP": "0:0"}, "links a device with itself"),
        ({"HCCL_NVLINK_MAP": "0:1", "HCOMM_NVLINK_MAP": "0:2"}, "contradict each other"),
    ],
)
def test_bad_hints(hints: dict[str, str], text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        discover(hints)


def test_a_file_is_trusted_more_than_hints(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(dgx()))
    with pytest.warns(RuntimeWarning, match="ignores HCCL_GROUP_0 because of HCOMM_TOPOLOGY"):
        topology = discover({"HCOMM_TOPOLOGY": str(path), "HCCL_GROUP_0": "0,1"})
    assert len(topology.devices) == 8


def test_this_machine_is_probed() -> None:
    topology = discover({})
    assert topology.source == "probed"
    assert topology.devices
    assert str(plan_groups(topology))


# The model


def test_what_has_no_link_goes_through_the_host_or_the_network() -> None:
    hosts = tuple(
        Host(name, (Node(0), Node(1, 1)), (Device(0, node=0), Device(1, node=1)), (Nic("eth0", speed),))
        for name, speed in (("a", 100e9), ("b", 25e9))
    )
    topology = Topology(hosts)
    assert topology.link("a/gpu0", "a/gpu1").kind == "numa"
    assert topology.link("a/gpu0", "b/gpu0").bandwidth == 25e9 / 8
    assert topology.fast_groups() == ((0, 1), (2, 3))
    assert len(list(topology.pairs())) == 6
    assert scene_of(topology).costs.nic == 8 / 25e9


@pytest.mark.parametrize(
    ("text", "rate"), [("300GB/s", 300e9), ("100Gbit/s", 12.5e9), ("1.5 MB/s", 1.5e6), ("fast", 0.0)]
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate
