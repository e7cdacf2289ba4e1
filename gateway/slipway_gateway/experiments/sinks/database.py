"""Keeps exposures in PostgreSQL or SQLite, each once. All calls block: the thread of the log makes them."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    select,
)
from sqlalchemy.exc import SQLAlchemyError

from slipway_process.database_errors import is_of_record
from slipway_process.database_urls import parse_url

from ...ledger.json_rows import ROWS, insert_new
from ...ledger.tables import open_engine
from ...telemetry.rotated_file import UnwrittenLines
from ..exposures import Exposure

_FORGET_EACH_S, _SLICE_ROWS, _SLICES = 60.0, 2000, 50
# SQLite has no type for times.
_TIME = DateTime(timezone=True).with_variant(String(32), "sqlite")

metadata = MetaData()
# In the order of the fields of an Exposure.
exposures = Table(
    "slipway_exposures",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("at", _TIME, nullable=False, index=True),
    Column("experiment", String(127), nullable=False, index=True),
    Column("layer", String(127), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("arm", String(63), nullable=False),
    Column("unit", String(32), nullable=False),
    Column("tenant", String(253), nullable=False),
    Column("deployment", String(512), nullable=False),
    Column("revision", String(253), nullable=False),
    Column("elsewhere", Boolean, nullable=False),
    Column("status", Integer, nullable=False),
    Column("request_id", String(128), nullable=False),
    Column("value", String(256)),
)
_LINE = msgspec.json.Decoder(Exposure)


class ExposureTable:
    """Takes lines of exposures. It is opened, and its table is made, with the first of them."""

    def __init__(self, url: str, retention_s: float) -> None:
        """
        Raises:
            ValueError: the URL names no database that is known.
        """
        self._engine = open_engine(parse_url(url))
        self._retention = timedelta(seconds=retention_s)
        self._insert = insert_new(exposures, self._engine.dialect)
        self._open = False
        self._forgot_s = float("-inf")

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines in one transaction, all or none; an exposure that is there already stays as it is.

        Raises:
            UnwrittenLines: the database is away, or full.
            Exception: one of the lines cannot be written.
        """
        rows = [msgspec.structs.astuple(_LINE.decode(line)) for line in lines]
        try:
            if not self._open:
                metadata.create_all(self._engine)
                self._open = True
            with self._engine.begin() as connection:
                connection.execute(self._insert, {ROWS: msgspec.json.encode(rows).decode()})
            self._forget()
        except (SQLAlchemyError, OSError) as error:
            if is_of_record(error):
                raise
            raise UnwrittenLines(len(lines), OSError(str(error)[:500])) from None

    def close(self) -> None:
        self._engine.dispose()

    def _forget(self) -> None:
        """Delete what is past its retention, in slices that hold up no other write for long."""
        if (now_s := time.monotonic()) - self._forgot_s < _FORGET_EACH_S:
            return
        self._forgot_s = now_s
        before = datetime.now(UTC) - self._retention
        limit = before.isoformat(timespec="milliseconds") if self._engine.dialect.name == "sqlite" else before
        for _ in range(_SLICES):
            old = select(exposures.c.id).where(exposures.c.at < limit).limit(_SLICE_ROWS)
            with self._engine.begin() as connection:
                if connection.execute(delete(exposures).where(exposures.c.id.in_(old))).rowcount < _SLICE_ROWS:
                    break
