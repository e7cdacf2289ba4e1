"""The machine, described without its name, and how busy it is with other things."""

import mmap
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from testkit.report import Json
from testkit.report import machine as cores_and_memory

BUSY_SHARE = 0.05  # of all cores: more than that by others, and the figures are not worth their names
BACKED_BYTES = 8 << 30  # what the largest peer takes
MADV_HUGEPAGE = 14  # of sys/mman.h
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")


@dataclass(frozen=True, slots=True)
class Jiffies:
    """Seconds of all cores since boot, by /proc/stat."""

    total_s: float
    idle_s: float
    steal_s: float

    @property
    def used_s(self) -> float:
        return self.total_s - self.idle_s - self.steal_s


def now() -> Jiffies:
    """/proc/stat's first line: user nice system idle iowait irq softirq steal."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    second = os.sysconf("SC_CLK_TCK")
    return Jiffies(sum(ticks) / second, (ticks[3] + ticks[4]) / second, ticks[7] / second)


def shares(before: Jiffies, after: Jiffies, *, ours_s: float) -> Json:
    """Of all cores' time between two looks: stolen by the host, idle, and used by what is not measured."""
    total = max(after.total_s - before.total_s, 1e-9)
    foreign = max(0.0, after.used_s - before.used_s - ours_s)
    return {
        "steal_share": round((after.steal_s - before.steal_s) / total, 4),
        "idle_share": round((after.idle_s - before.idle_s) / total, 4),
        "foreign_share": round(foreign / total, 4),
    }


def foreign_share(seconds: float = 3.0) -> float:
    """Share of all cores that others use right now, steal included."""
    before = now()
    time.sleep(seconds)
    after = now()
    found = shares(before, after, ours_s=0.0)
    return float(found["foreign_share"] + found["steal_share"])


def back_memory() -> None:
    """Touches BACKED_BYTES, or half of what is free, and frees them.

    A virtual machine's host takes back what lies idle and finds it again slowly: that is no peer's doing, and must not
    be paid by the one that comes first.
    """
    size = min(BACKED_BYTES, os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE // 2)
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def describe() -> Json:
    """Without host name or paths."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    flags = set(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))
    return cores_and_memory() | {
        "l3_mib": _l3_mib(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "virtual": "hypervisor" in flags,
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def _l3_mib() -> float:
    size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    text = size.read_text().strip() if size.exists() else "0K"
    return round(int(text.rstrip("KM")) / (1024 if text.endswith("K") else 1), 1)
