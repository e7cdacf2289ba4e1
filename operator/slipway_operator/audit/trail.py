"""The audit log as a chain of lines: in the process's log, and in a file where one is given. All calls block."""

import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from slipway_contracts.hash_chain import BrokenChain, Chain, digest, link, read_line
from slipway_operator.planning.audit import Record, Recorded, moment, remembered, shortened

log = logging.getLogger("slipway.audit")


class Trail:
    """One audit log. Several operators may share its file: each reads what others appended before it appends."""

    def __init__(self, path: str, now: Callable[[], datetime]) -> None:
        """`path`: the file; "" for the process's log alone, in which each process has a chain of its own."""
        self._path, self._now = Path(path) if path else None, now
        self._chain = Chain()
        self._size = 0  # of the file, as far as it was read
        self.known: dict[str, Recorded] = {}  # by uid of an object
        self.since: datetime | None = None  # when the log began

    def open(self) -> None:
        """Read the file, create it where it is missing, and append the record `begun` to an empty log.

        Raises:
            OSError: the file cannot be read or written, or its chain is broken.
        """
        if self._path:
            with self._locked(self._path):
                pass
        if self.since is None:
            self.append([{"action": "begun"}])

    def append(self, records: Sequence[Record]) -> bool:
        """Write records to the file, all or none, and to the process's log; they are on disk when this returns True.

        Returns False, and writes nothing, if another operator appended meanwhile, maybe the same records.

        Raises:
            OSError: the records cannot be written, or what others appended breaks the chain.
        """
        if not records:
            return True
        if self._path is None:
            self._take(self._lines(records), records)
            return True
        with self._locked(self._path) as (file, was_read):
            if was_read:
                return False
            self._write(file, records)
        return True

    @contextmanager
    def _locked(self, path: Path) -> Iterator[tuple[BinaryIO, bool]]:
        """Lock the file. Yields it at its end, and whether it was read because others had changed its size."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        with open(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            is_other = file.seek(0, os.SEEK_END) != self._size
            if is_other:
                self._read(file)
            yield file, is_other

    def _read(self, file: BinaryIO) -> None:
        """Read the file from the beginning: another operator appended, or this one has not read it yet.

        Removes a last line that was not written completely.

        Raises:
            OSError: the chain is broken.
        """
        self._chain, self.known, self.since, self._size = Chain(), {}, None, 0
        file.seek(0)
        while line := read_line(file):
            try:
                record = self._chain.follow(line)
            except BrokenChain as error:
                if not line.endswith(b"\n") and not file.read(1):
                    # An operator was killed while it wrote this line: no call returned that it was written.
                    log.warning("the last line of the audit log is not whole and is removed")
                    file.truncate(self._size)
                    break
                raise OSError(f"{self._path}: the chain is broken at {error}; move the file away") from None
            self._note(record)
            self._size += len(line)
        file.seek(self._size)

    def _write(self, file: BinaryIO, records: Sequence[Record]) -> None:
        lines = self._lines(records)
        try:
            file.write(b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            # Some of the lines may be in the file: remove them, for all or none are written.
            os.ftruncate(file.fileno(), self._size)
            raise
        self._size += sum(len(line) + 1 for line in lines)
        self._take(lines, records)

    def _lines(self, records: Sequence[Record]) -> list[bytes]:
        seq, head, lines = self._chain.seq, self._chain.head, []
        at = self._now().isoformat(timespec="milliseconds")
        for record in records:
            seq += 1
            try:
                lines.append(link({"at": at, **record}, seq, head))
            except ValueError:  # it is too long; one object must not keep those of others out of the log
                lines.append(link({"at": at, **shortened(record)}, seq, head))
            head = digest(lines[-1])
        return lines

    def _take(self, lines: Sequence[bytes], records: Sequence[Record]) -> None:
        for line, record in zip(lines, records, strict=True):
            self._note(self._chain.follow(line + b"\n"))
            log.info("%s", record["action"], extra={"audit": line.decode(), "sha256": self._chain.head})

    def _note(self, record: Record) -> None:
        if self.since is None:
            self.since = moment(record.get("at"))
        remembered(self.known, record)
