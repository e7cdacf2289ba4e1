"""CPUs and memory nodes of the engine: pure choices, and what the kernel then shows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway_server import placement
from slipway_server.placement import EnginePlacement, Topology, choose, one_of_each_core, parse_cpu_list, read_topology
from testkit import ROOT

# Two packages, each a node of two cores with two CPUs, numbered as Linux does: second CPUs of the cores come last.
TWO_NODES = Topology(
    cores={cpu: (cpu % 4 // 2, cpu % 4) for cpu in range(8)}, nodes={cpu: cpu % 4 // 2 for cpu in range(8)}
)
NOTHING_KNOWN = Topology({}, {})


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", (0,)), ("0-3,8", (0, 1, 2, 3, 8)), ("6,4", (6, 4)), ("7-7", (7,)), ("4095", (4095,))]
)
def test_list_of_cpus_is_read_in_its_order(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1,", ",1", "a", "1-", "-1", "1-2-3", "3-1", "0,0", "0-3,2", "4096", "0-99999999999", "²", "0x1", "1;2"],
)
def test_what_is_no_list_of_cpus_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="CPU"):
        parse_cpu_list(text)


def test_without_binding_and_on_one_node_nothing_is_chosen() -> None:
    assert choose("nobind", "auto", range(4), 4, Topology({}, dict.fromkeys(range(4), 0))) == EnginePlacement()
    assert choose("nobind", "auto", range(4), 4, NOTHING_KNOWN) == EnginePlacement()


def test_memory_is_interleaved_over_the_nodes_of_the_cpus_unless_it_is_off() -> None:
    assert choose("nobind", "auto", range(8), 8, TWO_NODES).nodes == (0, 1)
    assert choose("nobind", "off", range(8), 8, TWO_NODES).nodes == ()
    assert choose("nobind", "auto", (0, 1, 4, 5), 4, TWO_NODES).nodes == ()
    assert choose("0,1", "auto", range(8), 8, TWO_NODES).nodes == ()  # all processors are allowed, one node is used
    assert choose("0,2", "auto", range(8), 8, TWO_NODES).nodes == (0, 1)


def test_auto_binds_one_thread_to_each_core_node_by_node() -> None:
    assert choose("auto", "off", range(8), 8, TWO_NODES).cpus == (0, 1, 2, 3)
    assert choose("auto", "off", (4, 5, 6, 7), 4, TWO_NODES).cpus == (4, 5, 6, 7)
    assert choose("auto", "off", (2, 6, 7), 3, TWO_NODES).cpus == (2, 7)
    mixed = Topology({0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (1, 1)}, {0: 0, 1: 1, 2: 0, 3: 1})
    assert one_of_each_core(range(4), mixed) == (0, 2, 1, 3)
    assert one_of_each_core((3, 1), NOTHING_KNOWN) == (1, 3)


def test_auto_does_not_bind_where_other_containers_have_the_same_cpus() -> None:
    chosen = choose("auto", "auto", range(8), 2, TWO_NODES)
    assert chosen.cpus == () and "CPU Manager" in chosen.warning and "2 cores of 8 shared CPUs" in chosen.warning


def test_list_is_taken_as_it_is_and_must_be_allowed() -> None:
    assert choose("5,4", "off", range(8), 2, TWO_NODES) == EnginePlacement(cpus=(5, 4))
    with pytest.raises(ValueError, match="names CPU 9, and this process may use 0, 1"):
        choose("0,9,11", "auto", (0, 1), 2, TWO_NODES)


def test_topology_is_what_the_kernel_shows(tmp_path: Path) -> None:
    for cpu, core in ((0, 0), (1, 1), (2, 0), (3, 1)):
        folder = tmp_path / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{core}\n")
    (tmp_path / "cpu/cpu4").mkdir()  # offline
    for node, listed in ((0, "0,2\n"), (1, "1,3\n"), (2, "\n")):  # node 2 has memory alone
        (tmp_path / f"node/node{node}").mkdir(parents=True)
        (tmp_path / f"node/node{node}/cpulist").write_text(listed)
    found = read_topology(tmp_path)
    assert found.cores == {0: (0, 0), 1: (0, 1), 2: (0, 0), 3: (0, 1)}
    assert found.nodes == {0: 0, 2: 0, 1: 1, 3: 1}
    assert read_topology(tmp_path / "none") == NOTHING_KNOWN


def test_topology_of_this_machine_has_all_cpus_of_this_process_or_none() -> None:
    allowed = os.sched_getaffinity(0)
    found = read_topology()
    assert not found.cores or allowed <= set(found.cores)
    assert set(choose("auto", "off", allowed, len(allowed), found).cpus) <= allowed


def run(program: str) -> dict[str, object]:
    """What a program of one process prints: CPUs and policies are of a process."""
    path = os.pathsep.join((str(ROOT / "server"), str(ROOT / "process"), str(ROOT / "contracts"), str(ROOT)))
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, object] = json.loads(ran.stdout)
    return found


INTERLEAVED = """
import json, mmap
from pathlib import Path
from slipway_server import placement
refused = placement.apply(placement.EnginePlacement(nodes=(0,)))
memory = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(b"x" * (8 << 20))
maps = Path("/proc/self/numa_maps")
print(json.dumps({"refused": refused, "maps": maps.read_text() if maps.exists() else ""}))
"""


@pytest.mark.integration
def test_pages_are_interleaved_from_then_on_or_a_sentence_says_why_not() -> None:
    found = run(INTERLEAVED)
    if found["refused"]:
        assert "single-numa-node" in str(found["refused"])
        pytest.skip(f"NOT RUN: {found['refused']}")
    if not found["maps"]:
        pytest.skip("NOT RUN: this kernel shows no policies of pages")
    assert any(" interleave:0" in line and "anon=" in line for line in str(found["maps"]).splitlines())


BOUND = """
import json, os
from pathlib import Path
from slipway_server import placement
from slipway_server.kernels.c.library import library
cpus = tuple(sorted(os.sched_getaffinity(0)))[:2]
placement.apply(placement.EnginePlacement(cpus=cpus))
library(2)
print(json.dumps({
    "cpus": cpus,
    "bound": placement.bind_workers(cpus),
    "workers": [
        sorted(os.sched_getaffinity(int(task.name)))
        for task in Path("/proc/self/task").iterdir()
        if (task / "comm").read_text().strip() == placement.WORKER
    ],
    "this": sorted(os.sched_getaffinity(0)),
}))
"""


@pytest.mark.integration
def test_each_worker_of_the_kernels_gets_a_cpu_of_its_own() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("NOT RUN: one CPU")
    from slipway_server.kernels.c.library import KernelsUnavailable, library

    try:
        library(1)
    except KernelsUnavailable as error:
        pytest.skip(f"NOT RUN: {error}")
    found = run(BOUND)
    assert found["bound"] == 1
    assert found["workers"] == [[found["cpus"][1]]]  # type: ignore[index]
    assert found["this"] == found["cpus"]


def test_workers_that_ended_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()  # its name is gone
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "comm").write_text("python3\n")
    assert placement.bind_workers((0, 1), tmp_path) == 0
    assert placement.bind_workers((), tmp_path) == 0
