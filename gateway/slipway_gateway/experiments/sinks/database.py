"""Keeps exposures in PostgreSQL or SQLite, each once. All calls block: the thread of the log makes them."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Integer, MetaData, String, Table

from ...ledger.retained_rows import TIME, RetainedRows
from ..exposures import Exposure

metadata = MetaData()
# In the order of the fields of an Exposure.
exposures = Table(
    "slipway_exposures",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("at", TIME, nullable=False, index=True),
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
        self._rows = RetainedRows(url, metadata, (exposures,), retention_s)

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines in one transaction, all or none; an exposure that is there already stays as it is.

        Raises:
            UnwrittenLines: the database is away, or full.
            Exception: one of the lines cannot be written.
        """
        self._rows.add({exposures: [msgspec.structs.astuple(_LINE.decode(line)) for line in lines]}, len(lines))

    def close(self) -> None:
        self._rows.close()
