"""What this container may use of its machine: cores and memory."""

import contextlib
import ctypes
import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def cores(cgroup: Path = CGROUP) -> int:
    """Whole cores: the smaller of the CPU affinity and the cgroup's quota (rounded up), at least one."""
    allowed = len(os.sched_getaffinity(0))
    quota, period, *_ = [*_read(cgroup / "cpu.max").split(), "max", "max"]
    if quota == "max" or period == "max":
        return allowed
    return max(1, min(allowed, math.ceil(int(quota) / int(period))))


def free_memory_bytes(cgroup: Path = CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int:
    """The smaller of the machine's available memory and what the cgroup's limit leaves."""
    lines = dict(line.split(":", 1) for line in _read(meminfo).splitlines())
    available = int(lines.get("MemAvailable", "0 kB").split()[0]) * 1024
    limit, used = _read(cgroup / "memory.max").strip(), _read(cgroup / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        return min(available, max(0, int(limit) - int(used)))
    return available


def peak_memory_bytes(pid: int) -> int:
    """The peak resident memory of a process in bytes; 0: the process is gone.

    Without pages of files, which are shared and can be dropped.
    """
    sizes = {}
    for line in _read(Path(f"/proc/{pid}/status")).splitlines():
        name, _, value = line.partition(":")
        if name in ("VmHWM", "RssAnon", "RssFile", "RssShmem"):
            sizes[name] = int(value.split()[0]) * 1024
    now = sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)
    return max(now, sizes.get("VmHWM", 0) - sizes.get("RssFile", 0))


def settle_memory() -> None:
    """Has glibc return the memory that loading freed to the kernel, then keep what a step frees for the next step.

    Without it, logits of some MB go back to the kernel after each step and are mapped, page by page, in the next one.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.malloc_trim(0)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest value that glibc accepts
        libc.mallopt(M_TRIM_THRESHOLD, 256 << 20)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
