"""The memory limit of the container, read from control groups."""

from pathlib import Path

# Where control groups are shown; within a container the group of the container is the root.
_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # version 1 of control groups writes a huge number
BUDGET_PERCENTAGE = 35  # of the container's memory; the rest is for the process itself, connections and streams
WITHOUT_LIMIT_BYTES = 256 << 20


def memory_limit_bytes(root: Path = _ROOT, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The lowest limit in force, of both versions of control groups; None when there is none."""
    found = [limit for path in _candidates(root, own) if (limit := _read(path)) is not None]
    return min(found, default=None)


def budget_bytes(given: int, limit: int | None) -> int:
    """The memory for requests: `given` or, if that is 0, a part of the container's `limit`.

    `limit` None: the container has no limit, so it is WITHOUT_LIMIT_BYTES.
    """
    if given:
        return given
    return WITHOUT_LIMIT_BYTES if limit is None else limit * BUDGET_PERCENTAGE // 100


def _candidates(root: Path, own: Path) -> list[Path]:
    paths = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return paths
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            paths.append(root / group.lstrip("/") / "memory.max")
        elif "memory" in controllers.split(","):
            paths.append(root / "memory" / group.lstrip("/") / "memory.limit_in_bytes")
    return paths


def _read(path: Path) -> int | None:
    try:
        limit = int(path.read_text())
    except (OSError, ValueError):  # "max" is no limit
        return None
    return limit if 0 < limit < _NO_LIMIT else None
