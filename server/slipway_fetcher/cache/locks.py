"""Locks of files: the kernel releases them when their process dies, however it dies."""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PAUSE_S = 0.05
LIMIT_S = 120.0  # for what takes moments: a process that is suspended must not block the others for ever
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class CacheError(Exception):
    """Why the cache cannot be used: one sentence for a person."""


@contextlib.contextmanager
def locked(path: Path, limit_s: float | None = LIMIT_S, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of a file; `wait` is called in every pause.

    Raises:
        CacheError: when another process holds it for longer than `limit_s`, or the file system has no locks.
    """
    until_s = None if limit_s is None else time.monotonic() + limit_s
    while (file := attempt(path)) is None:
        if until_s is not None and time.monotonic() > until_s:
            raise CacheError(f"The lock {path.name} of the model cache is held for more than {limit_s:.0f} s.")
        if wait:
            wait()
        time.sleep(PAUSE_S)
    try:
        yield
    finally:
        os.close(file)


def is_free(path: Path) -> bool:
    """Whether no process holds the lock of a file."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return taken(file)
    finally:
        os.close(file)


def taken(file: int) -> bool:
    """Take the lock of an open file; false when another process has it.

    Raises:
        CacheError: when the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise CacheError(
                "The file system of the model cache has no locks: use a volume with them, or write none for "
                "spec.model.cache."
            ) from None
        if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def attempt(path: Path) -> int | None:
    """The locked file, to be closed; None when another process has the lock, or removed the file meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with contextlib.suppress(FileNotFoundError):
        if taken(file) and os.path.samestat(os.fstat(file), path.stat()):
            return file
    os.close(file)
    return None
