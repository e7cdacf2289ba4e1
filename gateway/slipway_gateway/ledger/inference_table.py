"""The database of the inference log, in PostgreSQL or SQLite. All calls block: the thread of the log makes them."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, MetaData, String, Table, Text

from ..telemetry.inference_log import LoggedFeedback, LoggedInference
from .retained_rows import TIME, RetainedRows

metadata = MetaData()
inferences = Table(
    "slipway_inferences",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("at", TIME, nullable=False, index=True),
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
    Column("at", TIME, nullable=False, index=True),
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
        self._rows = RetainedRows(url, metadata, (inferences, feedback), retention_s)

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines in one transaction, all or none; a line that is there already stays as it is.

        Raises:
            UnwrittenLines: the database is away, or full.
            Exception: one of the lines cannot be written.
        """
        rows: dict[Table, list[tuple[Any, ...]]] = {inferences: [], feedback: []}
        for line in map(_LINE.decode, lines):
            rows[feedback if isinstance(line, LoggedFeedback) else inferences].append(msgspec.structs.astuple(line))
        self._rows.add(rows, len(lines))

    def close(self) -> None:
        self._rows.close()
