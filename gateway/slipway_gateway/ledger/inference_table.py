"""The database of the inference log, in PostgreSQL or SQLite. All calls block: the thread of the log makes them."""

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    select,
)
from sqlalchemy.exc import SQLAlchemyError

from slipway_process.database_errors import is_of_record
from slipway_process.database_urls import parse_url

from ..telemetry.inference_log import LoggedFeedback, LoggedInference
from ..telemetry.rotated_file import UnwrittenLines
from .json_rows import ROWS, insert_new
from .tables import open_engine

log = logging.getLogger(__name__)

_FORGET_EACH_S, _SLICE_ROWS, _SLICES = 60.0, 2000, 50
# SQLite has no type for times.
_TIME = DateTime(timezone=True).with_variant(String(32), "sqlite")

metadata = MetaData()
inferences = Table(
    "slipway_inferences",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("at", _TIME, nullable=False, index=True),
    Column("route", String(512), nullable=False),
    Column("revision", String(253), nullable=False),
    Column("tenant", String(253), nullable=False),
    Column("request_id", String(128), nullable=False),
    Column("feedback_id", String(32), nullable=False, index=True),
    Column("path", String(256), nullable=False),
    Column("status", Integer, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("rows", BigInteger),
    Column("predictions", Text),
    Column("input_bytes", BigInteger, nullable=False),
    Column("output_bytes", BigInteger, nullable=False),
    Column("input", Text),
    Column("output", Text),
    Column("input_base64", Boolean, nullable=False),
    Column("output_base64", Boolean, nullable=False),
)
feedback = Table(
    "slipway_inference_feedback",
    metadata,
    Column("feedback_id", String(32), primary_key=True),
    Column("at", _TIME, nullable=False, index=True),
    Column("correct", Boolean),
    Column("score", Float),
    Column("label", Text),
)
_LINE = msgspec.json.Decoder(LoggedInference | LoggedFeedback)


class InferenceTable:
    """Takes lines of the inference log. It is opened, and its tables are made, with the first of them."""

    def __init__(self, url: str, retention_s: float) -> None:
        """
        Raises:
            ValueError: the URL names no database that is known.
        """
        self._engine = open_engine(parse_url(url))
        self._retention = timedelta(seconds=retention_s)
        self._statements = {table: insert_new(table, self._engine.dialect) for table in (inferences, feedback)}
        self._open = False
        self._forgot_s = float("-inf")

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines in one transaction, all or none; a line that is there already stays as it is.

        Raises:
            UnwrittenLines: the database is away, or full.
            Exception: one of the lines cannot be written.
        """
        rows: dict[Table, list[tuple[Any, ...]]] = {inferences: [], feedback: []}
        for line in map(_LINE.decode, lines):
            rows[feedback if isinstance(line, LoggedFeedback) else inferences].append(msgspec.structs.astuple(line))
        try:
            if not self._open:
                metadata.create_all(self._engine)
                self._open = True
            with self._engine.begin() as connection:
                for table, found in rows.items():
                    if found:
                        connection.execute(self._statements[table], {ROWS: msgspec.json.encode(found).decode()})
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
        for table in (inferences, feedback):
            (key,) = table.primary_key.columns
            for _ in range(_SLICES):
                old = select(key).where(table.c.at < limit).limit(_SLICE_ROWS)
                with self._engine.begin() as connection:
                    if connection.execute(delete(table).where(key.in_(old))).rowcount < _SLICE_ROWS:
                        break
