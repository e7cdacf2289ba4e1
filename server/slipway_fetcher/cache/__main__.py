"""`slipway-model-cache lease` keeps a pod's model in the cache; `prepare` makes the folders of namespaces on a node."""

import argparse
import json
import os
import re
import secrets
import signal
import sys
from pathlib import Path

from slipway_process.termination import NO_INPUT, Parser, last_words

from . import entries, leases, locks, store
from .locks import CacheError

OWNER = 65532  # user and group of the fetcher
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
MARKER, MARKER_LIMIT_BYTES = "slipway-model.json", 16 * 2**20


def main() -> None:
    chosen = parser().parse_args()
    # Blocked first, for sigwait: the kernel discards an unblocked SIGTERM of a container's first process.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        if chosen.command == "lease":
            hold(chosen.cache_dir, chosen.pod, chosen.dest)
        else:
            prepare(chosen.root, chosen.namespaces.split(","), chosen.max_bytes, chosen.group)
            signal.sigwait(_ENDS)
    except (CacheError, OSError) as error:
        last_words(f"The model cache cannot be used: {error}")
        sys.exit(NO_INPUT)


_ENDS = frozenset({signal.SIGTERM, signal.SIGINT})


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    found = Parser(prog="slipway-model-cache", description=__doc__, allow_abbrev=False)
    commands = found.add_subparsers(dest="command", metavar="COMMAND", required=True)
    lease = commands.add_parser("lease", help="keep the model that a pod uses until SIGTERM", allow_abbrev=False)
    lease.add_argument("--cache-dir", type=Path, required=True, metavar="DIR", help="folder of the cache")
    lease.add_argument("--pod", required=True, metavar="UID", help="uid of the pod")
    lease.add_argument("--dest", type=Path, required=True, metavar="DIR", help="folder with the fetcher's marker")
    node = commands.add_parser("prepare", help="make the folders of a node, then wait for SIGTERM", allow_abbrev=False)
    node.add_argument("--root", type=Path, required=True, metavar="DIR", help="folder on the node")
    node.add_argument("--namespaces", required=True, metavar="NAME,...", help="namespaces that get a folder")
    node.add_argument("--max-bytes", type=int, required=True, metavar="BYTES", help="limit of each folder")
    node.add_argument("--group", type=int, default=OWNER, metavar="GID", help="group that may write (%(default)s)")
    return found


def hold(root: Path, pod: str, dest: Path) -> None:
    """Hold the lease of a pod until SIGTERM, then delete it. A restarted process reads the pod's model from the marker.

    Raises:
        CacheError: when the lease cannot be taken.
    """
    path, lock = leases.path_of(root, pod), store.lock_of(root)
    with locks.locked(lock):
        if (file := leases.take(path)) is None:
            raise CacheError(f"another process holds the lease of pod {pod}.")
        if digest := _loaded(dest):
            leases.write(path, digest)
    signal.sigwait(_ENDS)
    with locks.locked(lock):
        store.used(root, path)
        path.unlink(missing_ok=True)
    os.close(file)


def prepare(root: Path, namespaces: list[str], max_bytes: int, group: int) -> None:
    """Make a folder for each namespace: owned by root, so that its limit stays, and writable for the fetcher's group.

    Raises:
        CacheError: for a name that no namespace has.
    """
    for name in namespaces:
        if not _NAMESPACE.fullmatch(name):
            raise CacheError(f"{name[:64]!r} is no namespace.")
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        _write_limit(folder, max_bytes)
        os.chown(folder, -1, group)
        folder.chmod(0o1775)  # sticky: only its owner replaces the limit


def _write_limit(folder: Path, max_bytes: int) -> None:
    """Write the limit into a new file and rename it: a file that is there could be a link, made by a group member."""
    fresh = folder / f".{store.LIMIT}.{secrets.token_hex(8)}"
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(file, "w") as opened:
        opened.write(str(max_bytes))
    fresh.replace(folder / store.LIMIT)


def _loaded(dest: Path) -> str:
    try:
        found = str(json.loads((dest / MARKER).read_bytes()[:MARKER_LIMIT_BYTES])["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if entries.is_digest(found) else ""


if __name__ == "__main__":
    main()
