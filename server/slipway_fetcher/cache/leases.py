"""Leases of running pods: a file for each pod, which a process of the pod locks for as long as the pod lives.

The kernel releases the lock when that process dies, so a lease never outlives its pod. All functions here are called
under the lock of the cache.
"""

import os
import re
from pathlib import Path

from . import locks

FOLDER = "leases"
LIMIT_BYTES = 128  # of a lease: the digest of the model that the pod uses
_POD = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


def path_of(root: Path, pod: str) -> Path:
    """The lease of a pod, by its uid.

    Raises:
        CacheError: for a text that is no uid.
    """
    if not _POD.fullmatch(pod):
        raise locks.CacheError(f"{pod[:64]!r} is not the uid of a pod.")
    return root / FOLDER / pod


def take(path: Path) -> int | None:
    """The locked file of a lease, which is the lease while it is open; None when another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if locks.taken(file):
        return file
    os.close(file)
    return None


def write(path: Path, digest: str) -> None:
    """Write the digest of the pod's model into the file of its lease, in place: the lock belongs to this file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(file, digest.encode(), 0)
        os.ftruncate(file, len(digest.encode()))
    finally:
        os.close(file)


def in_use(root: Path) -> frozenset[str]:
    """Digests of the models that living pods use; leases of dead ones are removed."""
    found = set()
    for path in (root / FOLDER).glob("*"):
        if locks.is_free(path):
            path.unlink(missing_ok=True)
        else:
            found.add(path.read_bytes()[:LIMIT_BYTES].decode(errors="replace"))
    return frozenset(found)
