"""Rows of a log in PostgreSQL or SQLite, each once, until they are older than their retention.

All calls block: the thread of the log makes them.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import Connection, DateTime, MetaData, String, Table, delete, select
from sqlalchemy.exc import SQLAlchemyError

from slipway_process.database_errors import is_of_record
from slipway_process.database_urls import parse_url

from ..telemetry.rotated_file import UnwrittenLines
from .json_rows import ROWS, insert_new
from .tables import open_engine

# A row may hold a mebibyte: a slice is one transaction, which has to end within the time of a statement.
_LOOK_EACH_S, SLICE_ROWS, SLICES = 60.0, 200, 500
# SQLite has no type for times.
TIME = DateTime(timezone=True).with_variant(String(32), "sqlite")

log = logging.getLogger(__name__)

Rows = Mapping[Table, Sequence[Sequence[Any]]]  # by their table, with values in the order of its columns


class RetainedRows:
    """Tables with a primary key of one column and a column `at`. They are made with the first rows."""

    def __init__(
        self,
        url: str,
        metadata: MetaData,
        tables: Sequence[Table],
        retention_s: float,
        *,
        look_each_s: float = _LOOK_EACH_S,
    ) -> None:
        """`look_each_s`: how often old rows are looked for, while others come.

        Raises:
            ValueError: the URL names no database that is known.
        """
        self.engine = open_engine(parse_url(url))
        self._metadata, self._tables = metadata, tables
        self._retention = timedelta(seconds=retention_s)
        self._statements = {table: insert_new(table, self.engine.dialect) for table in tables}
        self._is_open, self._look_each_s = False, look_each_s
        self._forgot_s = float("-inf")

    def add(self, rows: Rows, count: int) -> None:
        """Adds rows in one transaction, all or none; one that is there already stays as it is. `count`: of them.

        Raises:
            UnwrittenLines: the database is away, or full.
            Exception: one of the rows cannot be written.
        """
        try:
            self.open()
            with self.engine.begin() as connection:
                for table, added in rows.items():
                    if added:
                        self.insert(connection, self._statements[table], msgspec.json.encode(added).decode())
        except (SQLAlchemyError, OSError) as error:
            if is_of_record(error):
                raise
            raise UnwrittenLines(count, OSError(str(error)[:500])) from None
        if (now_s := time.monotonic()) - self._forgot_s >= self._look_each_s:
            self._forgot_s = now_s
            self._try_to_forget()

    def _try_to_forget(self) -> None:
        try:
            self.forget()
        except (SQLAlchemyError, OSError) as error:
            # The rows are written: they are not lost with this.
            log.warning("old rows of %s are not deleted yet: %s", self._tables[0].name, str(error)[:500])

    def open(self) -> None:
        """Makes the tables, once."""
        if not self._is_open:
            self._metadata.create_all(self.engine)
            self._is_open = True

    def insert(self, connection: Connection, statement: Any, rows: str) -> None:
        """Adds rows of one table."""
        connection.execute(statement, {ROWS: rows})

    def delete(self, connection: Connection, table: Table, which: Any) -> int:
        """Deletes rows; returns their number. `which`: selects their keys."""
        (key,) = table.primary_key.columns
        return connection.execute(delete(table).where(key.in_(which))).rowcount

    def forget(self) -> int:
        """Deletes what is past its retention, in slices that hold up no other write for long; returns their number."""
        limit = self.time(datetime.now(UTC) - self._retention)
        count = 0
        for table in self._tables:
            (key,) = table.primary_key.columns
            for _ in range(SLICES):
                # Rows that another gateway deletes now are left to it.
                old = select(key).where(table.c.at < limit).limit(SLICE_ROWS).with_for_update(skip_locked=True)
                with self.engine.begin() as connection:
                    deleted = self.delete(connection, table, old)
                count += deleted
                if deleted < SLICE_ROWS:
                    break
        return count

    def time(self, moment: datetime) -> Any:
        """A time as the column `at` has it."""
        if self.engine.dialect.name != "sqlite":
            return moment
        return moment.astimezone(UTC).isoformat(timespec="milliseconds")

    def close(self) -> None:
        self.engine.dispose()
