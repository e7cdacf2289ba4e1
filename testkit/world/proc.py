"""CPU time, memory and file descriptors of running processes, from /proc; 0 of those that have ended."""

import os
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_KIB = 1024


def family(pid: int) -> list[int]:
    """The process and all that come from it."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                todo += map(int, task.read_text().split())
    return found


def cpu_s(pid: int, *, children: bool = False) -> float:
    """User and system time so far; `children`: with that of its children that have ended."""
    try:
        # The name of the program, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if children else 13])) / _TICKS


def waited_s(pid: int) -> float:
    """How long its first thread was ready to run so far, and had no core."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def rss_bytes(pid: int) -> int:
    """Resident now."""
    return _field_bytes(Path(f"/proc/{pid}/status"), "VmRSS:")


def peak_bytes(pid: int) -> int:
    """The most that was ever resident."""
    return _field_bytes(Path(f"/proc/{pid}/status"), "VmHWM:")


def pss_bytes(pid: int) -> int:
    """Proportional set size: pages that processes share are counted once over all of them."""
    return _field_bytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def fds(pid: int) -> int:
    """Open file descriptors."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _field_bytes(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith(name)), 0)
