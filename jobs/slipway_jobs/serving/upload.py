"""Receives a file line by line into the database, holding one slice of it at a time."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sqlalchemy import Connection

from slipway_process.shares import Shares

from ..settings import JobsSettings
from ..store.database import Database
from ..store.file_store import UPLOAD_S, DatabaseFull, FileStore, NewFile, Row, TooMuchStored, UploadEnded
from .refusal import JobsRefusal, database_full, invalid

T = TypeVar("T")
_SLICE_BYTES = 1 << 20
_SLICE_LINES = 500
# After a slice of lines: the database's thread takes the interpreter in turns with the event loop, and an answer to
# another request needs some rounds of the loop.
_OTHERS_S = 0.01
_PIECE_BYTES = 16 << 10  # that are cut into lines at once: each of its bytes may be one


def new_id(prefix: str) -> str:
    """An id: ids are ordered by time, and end with 64 random bits that cannot be guessed."""
    return f"{prefix}{time.time_ns():016x}{os.urandom(8).hex()}"


def file_too_large(limit_bytes: int) -> JobsRefusal:
    return JobsRefusal(413, "file_too_large", f"The file exceeds {limit_bytes} bytes.", param="file")


def upload_too_slow() -> JobsRefusal:
    return JobsRefusal(408, "upload_too_slow", f"The file did not arrive within {UPLOAD_S:.0f} s.", param="file")


@dataclass
class LineSplitter:
    """Cuts bytes into lines, each with the byte that ends it."""

    max_line_bytes: int
    rest: bytearray = field(default_factory=bytearray)

    def add(self, chunk: bytes) -> list[bytes]:
        """
        Raises:
            JobsRefusal: a line is too long.
        """
        pieces = chunk.split(b"\n")
        lines = []
        for piece in pieces[:-1]:
            self.rest += piece + b"\n"
            self._check()
            lines.append(bytes(self.rest))
            self.rest.clear()
        self.rest += pieces[-1]
        self._check()
        return lines

    def end(self) -> list[bytes]:
        return [bytes(self.rest)] if self.rest else []

    def _check(self) -> None:
        if len(self.rest) > self.max_line_bytes:
            raise invalid("file", f"A line has more than {self.max_line_bytes} bytes.", "line_too_long")


class Uploads:
    """Writes files of all tenants."""

    def __init__(self, settings: JobsSettings, database: Database, store: FileStore) -> None:
        self._settings, self._database, self._store = settings, database, store
        self.receiving = Shares(settings.max_uploads)  # how many files are received now

    @contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        """While a file is received. Raises JobsRefusal 429: too many are."""
        if not self.receiving.take(tenant):
            raise JobsRefusal(429, "too_many_uploads", "Too many files are received now.", retry_after_s=2)
        try:
            yield
        finally:
            self.receiving.give_back(tenant)

    async def receive(self, new: NewFile, chunks: AsyncIterator[bytes]) -> int:
        """Writes a file, which is not visible before `finish`; returns its bytes. After an error it is dropped.

        Raises:
            JobsRefusal: the file or a line of it is too large, or the database is full.
        """
        await self._database.call(self._store.begin, new)
        try:
            return await self._lines(new.id, chunks)
        except DatabaseFull:
            await self.drop(new)
            raise database_full("file") from None
        except UploadEnded:
            raise upload_too_slow() from None
        except BaseException:
            await self.drop(new)
            raise

    async def _lines(self, file_id: str, chunks: AsyncIterator[bytes]) -> int:
        splitter = LineSplitter(self._settings.max_line_bytes)
        # Empty lines are no requests, but they are kept: a file comes back as it was.
        most = 2 * self._settings.max_lines
        slice_, size, written, total = list[bytes](), 0, 0, 0
        async for chunk in chunks:
            total += len(chunk)
            if total > self._settings.max_file_bytes:
                raise file_too_large(self._settings.max_file_bytes)
            for at in range(0, len(chunk), _PIECE_BYTES):
                for line in splitter.add(chunk[at : at + _PIECE_BYTES]):
                    slice_.append(line)
                    size += len(line)
                    if size >= _SLICE_BYTES or len(slice_) >= _SLICE_LINES:
                        await self._database.call(self._store.add, file_id, written, slice_)
                        await asyncio.sleep(_OTHERS_S)
                        written, slice_, size = written + len(slice_), [], 0
                if written + len(slice_) > most:
                    raise invalid("file", f"The file has more than {most} lines.", "too_many_lines")
        if slice_ := slice_ + splitter.end():
            await self._database.call(self._store.add, file_id, written, slice_)
        return total

    async def finish(self, new: NewFile, answer: Callable[[Connection, Row], T]) -> T:
        """Makes a whole file visible. `answer`: called in the same transaction; its result is returned."""

        def finish(connection: Connection) -> T:
            return answer(connection, self._store.finish(connection, new))

        try:
            return await self._database.call(finish)
        except TooMuchStored:
            await self.drop(new)
            limit = self._settings.max_tenant_bytes
            message = f"The files of this tenant would have more than {limit} bytes: delete some."
            raise JobsRefusal(413, "storage_exhausted", message, param="file") from None
        except UploadEnded:
            raise upload_too_slow() from None

    async def write(self, new: NewFile, lines: Iterable[bytes], param: str) -> Row:
        """Writes a file of lines that this process makes itself, of the field `param` of a request.

        Raises:
            JobsRefusal: as for a file, with the name of the field.
        """

        async def chunks() -> AsyncIterator[bytes]:
            for line in lines:
                yield line

        return await self.copy(new, chunks(), param)

    async def copy(self, new: NewFile, chunks: AsyncIterator[bytes], param: str) -> Row:
        """As `write`, of bytes that may end anywhere."""
        try:
            await self.receive(new, chunks)
            return await self.finish(replace(new), lambda _, row: row)
        except JobsRefusal as refusal:
            refusal.param = param
            raise
        except BaseException:
            # The thread of `finish` goes on where a client leaves: a file that no request uses would stay visible.
            await self.drop(new)
            raise

    async def drop(self, new: NewFile) -> None:
        await self._database.call(self._store.drop, new.id)
