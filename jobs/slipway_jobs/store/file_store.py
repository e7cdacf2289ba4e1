"""Reads and writes of files. Input files have rows of lines; output and error files are the lines of a batch."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, func, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from slipway_process.sealing import Keyring

from ..states import COMPLETED, DELETED, ERROR_LINES, OPEN_BATCHES, OUTPUT, READY, UPLOADING
from .database import Database
from .sealed_rows import input_row, result_row
from .slices import OWNERS, ROWS, delete_slice
from .tables import batches, files, inputs, lines
from .usage import TenantUsage

INTERNAL = "internal"  # purpose of the input file of a job or batch that was created without an upload
PAGE_LINES = 200
PAGE_BYTES = 1 << 20
UPLOAD_S = 3600.0  # time of an upload; later it is deleted as one whose process was killed
FILE_BYTES = 1024  # of a file's own row
RESERVED_SHARE = 0.25  # of SQLite's file: for results, not for uploads

Row = Mapping[str, Any]


class DatabaseFull(Exception):
    """SQLite's file is at the limit for files that are uploaded, or at that for one tenant's."""


class UploadEnded(Exception):
    """The upload took longer than UPLOAD_S: the file is being deleted."""


class TooMuchStored(Exception):
    """The files of a tenant are at their limit."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """`keep_s`: seconds that the file is kept."""

    id: str
    tenant: str
    keep_s: float
    purpose: str = "batch"
    filename: str = ""


class FileStore:
    """Calls take a connection in a transaction: run them with `Database.call`.

    Those that read lines raise `sealing.UnreadableSeal` where a key is lost.
    """

    def __init__(self, database: Database, max_tenant_bytes: int, keyring: Keyring | None = None) -> None:
        """`keyring`: which seals lines; None: they are plain."""
        self._database, self._usage = database, TenantUsage(database)
        self._keyring = keyring or Keyring.none()
        self._max_tenant_bytes = max_tenant_bytes

    def begin(self, connection: Connection, new: NewFile) -> None:
        """Adds a file without lines, which is not visible before `finish`."""
        now_s = self._database.time(connection)
        row = {"id": new.id, "tenant": new.tenant, "purpose": new.purpose, "filename": new.filename, "bytes": 0}
        times = {"created_at": now_s, "expires_at": now_s + new.keep_s}
        connection.execute(files.insert(), row | {"state": UPLOADING} | times)

    def add(self, connection: Connection, file_id: str, first: int, data: Sequence[bytes]) -> None:
        """Adds lines to a file, from number `first` on.

        Raises:
            DatabaseFull: the rest of the database is reserved for results, or for other tenants' files.
            UploadEnded: the upload took too long.
        """
        self._check_room(connection, file_id)
        rows = [
            {"file_id": file_id, "n": n, "data": self._keyring.seal(line, input_row(file_id, n))}
            for n, line in enumerate(data, first)
        ]
        size = sum(map(len, data))
        larger = update(files).where(*self._uploading(file_id)).values(bytes=files.c.bytes + size)
        if connection.execute(larger).rowcount != 1:
            raise UploadEnded  # its rows would stay for ever
        self._database.add(connection, inputs, rows)

    def finish(self, connection: Connection, new: NewFile) -> Row:
        """Makes a whole file visible; returns its row.

        Raises:
            TooMuchStored: with this file the tenant would have more than it may.
            UploadEnded: the upload took too long.
        """
        if self._stored(connection, new.tenant) > self._max_tenant_bytes:
            raise TooMuchStored
        values = {"state": READY, "purpose": new.purpose, "filename": new.filename}
        now_s = self._database.time(connection)
        done = update(files).where(*self._uploading(new.id)).values(**values, expires_at=now_s + new.keep_s)
        if (row := connection.execute(done.returning(*files.c)).mappings().one_or_none()) is None:
            raise UploadEnded
        return dict(row)

    def drop(self, connection: Connection, file_id: str) -> None:
        """Deletes an upload that broke; the next purge removes its lines."""
        connection.execute(update(files).where(files.c.id == file_id).values(state=DELETED))

    def get(self, connection: Connection, tenant: str, file_id: str) -> Row | None:
        found = select(files).where(files.c.id == file_id, *self._visible(tenant))
        row = connection.execute(found).mappings().one_or_none()
        return dict(row) if row else None

    def listed(
        self,
        connection: Connection,
        tenant: str,
        limit: int,
        after: str = "",
        *,
        purpose: str = "",
        ascends: bool = False,
    ) -> list[Row]:
        """Files of a tenant, behind the id `after`; one more than `limit` where there are more."""
        query = select(files).where(*self._visible(tenant)).limit(limit + 1)
        if purpose:
            query = query.where(files.c.purpose == purpose)
        if after:
            query = query.where(files.c.id > after if ascends else files.c.id < after)
        query = query.order_by(files.c.id if ascends else files.c.id.desc())
        return [dict(row) for row in connection.execute(query).mappings()]

    def delete(self, connection: Connection, tenant: str, file_id: str) -> bool:
        """Deletes a file; whether there was one. Batches that use it go on."""
        gone = update(files).where(files.c.id == file_id, *self._visible(tenant)).values(state=DELETED)
        return connection.execute(gone).rowcount == 1

    def page(self, connection: Connection, file: Row, after: int) -> list[tuple[int, bytes]]:
        """The next lines behind number `after`, within about a megabyte; none at the end."""
        number, data, which = self._content(file)
        sizes = select(number, func.length(data)).where(*which, number > after).order_by(number).limit(PAGE_LINES)
        last, size = after, 0
        for n, length in connection.execute(sizes):
            if size and size + length > PAGE_BYTES:
                break
            last, size = n, size + length
        rows = connection.execute(select(number, data).where(*which, number > after, number <= last).order_by(number))
        about = input_row if file["batch_id"] is None else result_row
        owner = file["id"] if file["batch_id"] is None else file["batch_id"]
        return [(n, self._keyring.open(bytes(found), about(owner, n))) for n, found in rows]

    def _content(self, file: Mapping[Any, Any]) -> tuple[ColumnElement[int], ColumnElement[bytes], tuple[Any, ...]]:
        """The columns of the number and the bytes of a line, and which rows are lines of the file."""
        if file["batch_id"] is None:
            return inputs.c.n, inputs.c.data, (inputs.c.file_id == file["id"],)
        states = (COMPLETED,) if file["part"] == OUTPUT else ERROR_LINES
        ended = (lines.c.state.in_(states), lines.c.result.is_not(None))
        return lines.c.n, lines.c.result, (lines.c.batch_id == file["batch_id"], *ended)

    def purge(self, connection: Connection) -> int:
        """Deletes some rows of files that can no longer be read; returns how many, 0 when none is left."""
        now_s = self._database.time(connection)
        # A file that the process makes itself is deleted with its batch; without a batch its process was killed.
        unfinished = or_(files.c.state == UPLOADING, files.c.purpose == INTERNAL)
        stale = and_(unfinished, files.c.created_at < now_s - UPLOAD_S)
        old = or_(files.c.state == DELETED, files.c.expires_at <= now_s, stale)
        found_old = select(files).where(old, ~self._is_read()).limit(OWNERS)
        # A file that is locked is about to be the input of a batch.
        rows = connection.execute(found_old.with_for_update(skip_locked=True)).mappings().all()
        gone = [row["id"] for row in rows]
        deleted, freed = len(delete_slice(connection, inputs, inputs.c.file_id, gone)), Counter[str]()
        for row in (row for row in rows if row["batch_id"] is not None):
            sizes = self._drop_results(connection, row, ROWS - deleted)
            deleted += len(sizes)
            freed[row["tenant"]] -= sum(sizes)
        if deleted < ROWS:
            connection.execute(delete(files).where(files.c.id.in_(gone)))
        self._usage.add(connection, freed)
        return deleted + len(gone)

    def _drop_results(self, connection: Connection, file: Mapping[Any, Any], most: int) -> list[int]:
        """Deletes results in a file, at most so many; returns their sizes. The lines stay, as parts of the batch."""
        number, data, which = self._content(file)
        found = connection.execute(select(number, func.length(data)).where(*which).limit(most)).all()
        own = (lines.c.batch_id == file["batch_id"], lines.c.n.in_([n for n, _ in found]))
        connection.execute(update(lines).where(*own).values(result=None))
        return [size for _, size in found]

    def _check_room(self, connection: Connection, file_id: str) -> None:
        """A tenant may fill as much as it leaves free, so that there is always room for the first file of another."""
        free_bytes = self._database.free_bytes(connection, RESERVED_SHARE)
        if free_bytes == math.inf:
            return
        tenant = connection.execute(select(files.c.tenant).where(files.c.id == file_id)).scalar() or ""
        if not free_bytes or (tenant and self._stored(connection, tenant) > free_bytes):
            raise DatabaseFull

    def _stored(self, connection: Connection, tenant: str) -> int:
        """Bytes of a tenant's files. A deleted file is there as long as a batch reads it."""
        kept = or_(files.c.state != DELETED, self._is_read())
        own = (files.c.tenant == tenant, files.c.batch_id.is_(None), kept)
        size = func.sum(files.c.bytes) + FILE_BYTES * func.count()
        return int(connection.execute(select(size).where(*own)).scalar() or 0)

    def _uploading(self, file_id: str) -> tuple[Any, ...]:
        """Conditions: the file is being written, and `purge` does not delete it yet."""
        young = files.c.created_at >= self._database.now - UPLOAD_S
        return files.c.id == file_id, files.c.state == UPLOADING, young

    def _is_read(self) -> ColumnElement[bool]:
        """A condition: a batch that has not ended reads the file."""
        return exists().where(batches.c.input_file_id == files.c.id, batches.c.status.in_(OPEN_BATCHES))

    def _visible(self, tenant: str) -> tuple[Any, ...]:
        alive = files.c.expires_at > self._database.now
        return files.c.tenant == tenant, files.c.state == READY, files.c.purpose != INTERNAL, alive
