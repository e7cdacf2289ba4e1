"""On which CPUs the engine computes, and on which NUMA nodes its memory is: `--cpu-threads-bind`, `--numa`."""

import ctypes
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys/devices/system")
TASKS = Path("/proc/self/task")
WORKER = "slipway-kernel"  # name of the kernels' threads, of c/threads.h
MOST_CPUS = 4096
MPOL_INTERLEAVE = 3  # of linux/mempolicy.h
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}


@dataclass(frozen=True, slots=True)
class Topology:
    """By CPU number: its physical core, as (package, core), and its NUMA node."""

    cores: Mapping[int, tuple[int, int]]
    nodes: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class EnginePlacement:
    """`cpus`: one for each thread; empty: the Linux kernel chooses.

    `nodes`: the NUMA nodes that memory is interleaved over; empty: memory is on the node that first writes to it.
    `warning`: which setting has no effect here, and why.
    """

    cpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    warning: str = ""


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parses a list such as `0-3,8` and keeps its order. Raises ValueError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (_is_number(first) and (_is_number(last) or not dash)):
            raise ValueError(f"{text!r} is no list of CPUs such as 0-3,8")
        start, end = int(first), int(last or first)
        if not start <= end < MOST_CPUS:
            raise ValueError(f"{part!r} is no range of CPUs: from the lower to the higher number, below {MOST_CPUS}")
        found.extend(range(start, end + 1))
    if len(set(found)) < len(found):
        raise ValueError(f"{text!r} names a CPU twice")
    return tuple(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


def choose(bind: str, numa: str, allowed: Iterable[int], cores: int, topology: Topology) -> EnginePlacement:
    """Chooses CPUs and NUMA nodes. `bind`: auto, nobind or a list of CPUs; `numa`: auto or off.

    `allowed`: the CPUs that this process may use; `cores`: how many of them its CPU quota amounts to.

    Raises:
        ValueError: the list has a CPU that is not allowed.
    """
    mine = sorted(allowed)
    cpus: tuple[int, ...] = ()
    warning = ""
    if bind == "auto" and cores < len(mine):
        # Other pods share these CPUs: if each pod bound its threads, two could be bound to the same CPUs.
        warning = (
            f"--cpu-threads-bind auto: threads are not bound, because this container has {cores} cores of {len(mine)} "
            "shared CPUs. For CPUs of its own: the kubelet's CPU Manager policy static, and a whole number as its limit"
        )
    elif bind == "auto":
        cpus = one_of_each_core(mine, topology)
    elif bind != "nobind":
        cpus = parse_cpu_list(bind)
        if missing := sorted(set(cpus) - set(mine)):
            raise ValueError(
                f"--cpu-threads-bind names CPU {missing[0]}, and this process may use {', '.join(map(str, mine[:64]))}"
            )
    nodes = tuple(sorted({topology.nodes[cpu] for cpu in cpus or mine if cpu in topology.nodes}))
    return EnginePlacement(cpus, nodes if numa == "auto" and len(nodes) > 1 else (), warning)


def one_of_each_core(cpus: Iterable[int], topology: Topology) -> tuple[int, ...]:
    """The first CPU of each physical core, node by node: hyperthreads share the units that a matrix product uses."""
    first: dict[tuple[int, int], int] = {}
    for cpu in sorted(cpus):
        first.setdefault(topology.cores.get(cpu, (-1, cpu)), cpu)
    return tuple(sorted(first.values(), key=lambda cpu: (topology.nodes.get(cpu, 0), cpu)))


def read_topology(system: Path = SYSTEM) -> Topology:
    """The topology from sysfs, without CPUs that sysfs does not describe."""
    cores: dict[int, tuple[int, int]] = {}
    for folder in system.glob("cpu/cpu[0-9]*/topology"):
        package, core = (_number(folder / name) for name in ("physical_package_id", "core_id"))
        if package is not None and core is not None:
            cores[int(folder.parent.name.removeprefix("cpu"))] = package, core
    nodes: dict[int, int] = {}
    for file in system.glob("node/node[0-9]*/cpulist"):
        try:
            listed = parse_cpu_list(file.read_text().strip())
        except (OSError, ValueError):  # a node with memory alone has an empty list
            continue
        nodes |= dict.fromkeys(listed, int(file.parent.name.removeprefix("node")))
    return Topology(cores, nodes)


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def apply(placement: EnginePlacement) -> str:
    """Applies the placement to this thread and to the threads that it starts later.

    Returns a warning when the kernel refuses to interleave memory, else "".
    """
    if placement.cpus:
        os.sched_setaffinity(0, placement.cpus)
    if placement.nodes and not interleave(placement.nodes):
        return (
            f"memory is not interleaved over the NUMA nodes {', '.join(map(str, placement.nodes))}: the kernel or its "
            "seccomp profile refuses set_mempolicy. A pod on one node is faster: the kubelet's Topology Manager policy "
            "single-numa-node"
        )
    return ""


def interleave(nodes: Iterable[int]) -> bool:
    """Interleaves new pages of this thread, and of threads that it starts later, over these NUMA nodes.

    Returns False when the kernel refuses.
    """
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return False
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (MOST_CPUS // bits))()
    for node in nodes:
        mask[node // bits] |= 1 << node % bits
    libc = ctypes.CDLL(None, use_errno=True)
    failed: int = libc.syscall(ctypes.c_long(number), ctypes.c_int(MPOL_INTERLEAVE), mask, ctypes.c_ulong(MOST_CPUS))
    return failed == 0


def bind_workers(cpus: tuple[int, ...], tasks: Path = TASKS) -> int:
    """Binds each worker thread of the C kernels to a CPU of its own, and returns how many it has bound.

    The calling thread computes too, but stays on all of `cpus`: threads that a library starts from it inherit its CPUs.
    """
    if not cpus:
        return 0
    workers = sorted(int(task.name) for task in tasks.iterdir() if _name(task) == WORKER)
    for worker, cpu in zip(workers, cpus[1:], strict=False):
        os.sched_setaffinity(worker, {cpu})
    return min(len(workers), len(cpus) - 1)


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""
