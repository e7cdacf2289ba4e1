"""Tables of the ledger, and how its database is opened."""

import base64
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
)
from sqlalchemy.engine import URL
from sqlalchemy.pool import StaticPool

from slipway_process.database_errors import drop_connections_after_errors_of_the_driver
from slipway_process.database_urls import ssl_context

# Written by the first gateway that opens a database. A later release that needs other tables has another number.
SCHEMA_VERSION = 1
_CONNECT_TIMEOUT_S = 5
_STATEMENT_TIMEOUT_MS = 10_000
_SQLITE_BUSY_MS = 5000
# The largest SQLite file. It shares a small volume with the last route table, so a full ledger must stop nothing else.
SQLITE_BYTES = 96 << 20
_SQLITE_PAGE_BYTES = 4096
_SQLITE_PRAGMAS = (
    f"page_size={_SQLITE_PAGE_BYTES}",
    f"max_page_count={SQLITE_BYTES // _SQLITE_PAGE_BYTES}",
    "journal_mode=WAL",
    "journal_size_limit=4194304",
    # The root filesystem is read-only. A statement that changes more than 16 pages would need a temporary file.
    "temp_store=MEMORY",
    "synchronous=FULL",
    f"busy_timeout={_SQLITE_BUSY_MS}",
)

metadata = MetaData()

about = Table(
    "slipway_ledger",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("id", String(32), nullable=False),
)

COUNTS = ("requests", "input_tokens", "cached_tokens", "output_tokens", "cost_nano", "estimated")
HOUR_KEY = ("hour", "tenant", "key", "model", "revision")


def _counts() -> list[Column[Any]]:
    return [Column(name, BigInteger, nullable=False, default=0) for name in COUNTS]


# One row for each response, so that it is charged once, however often it is reported. Kept for some days.
responses = Table(
    "slipway_responses",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("hour", Integer, nullable=False, index=True),
    *_counts(),
)


def _hour_key() -> list[Column[Any]]:
    lengths = (("tenant", 253), ("key", 64), ("model", 512), ("revision", 253))
    names = [Column(name, String(length), primary_key=True) for name, length in lengths]
    return [Column("hour", Integer, primary_key=True, autoincrement=False), *names]


hours = Table("slipway_usage", metadata, *_hour_key(), *_counts())

SAVED_COUNTS = ("hits", "input_tokens", "cached_tokens", "output_tokens", "cost_nano")

# What responses from caches did not cost, beside the rows of `hours`, which count their requests.
cache_hits = Table(
    "slipway_cache_hits",
    metadata,
    *_hour_key(),
    *(Column(name, BigInteger, nullable=False, default=0) for name in SAVED_COUNTS),
)


def open_engine(url: URL) -> Engine:
    """Its errors have no parameters of statements: these may be contents of requests, and errors are logged."""
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url)
    options: dict[str, Any] = {"timeout": _CONNECT_TIMEOUT_S, "application_name": "slipway-gateway"}
    if context := ssl_context(url):
        options["ssl_context"] = context
    bare = url.difference_update_query(["sslmode", "sslrootcert"])
    engine = create_engine(
        bare, connect_args=options, pool_size=1, max_overflow=0, pool_pre_ping=True, hide_parameters=True
    )

    drop_connections_after_errors_of_the_driver(engine)

    @event.listens_for(engine, "connect")
    def limit_time(connection: Any, record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET statement_timeout = {_STATEMENT_TIMEOUT_MS}")
        cursor.execute(f"SET lock_timeout = {_STATEMENT_TIMEOUT_MS}")
        cursor.close()
        connection.commit()

    return engine


def _decode(text: str | None, encoding: str) -> bytes | None:
    """PostgreSQL's `decode(text, 'base64')`."""
    return None if text is None else base64.b64decode(text)


def _open_sqlite(url: URL) -> Engine:
    # The calls come from one thread at a time, though not always from the same one.
    options: dict[str, Any] = {"check_same_thread": False}
    in_memory = not url.database or url.database == ":memory:"
    pool: dict[str, Any] = {"poolclass": StaticPool} if in_memory else {"pool_size": 1, "max_overflow": 0}
    engine = create_engine(url, connect_args=options, hide_parameters=True, **pool)

    @event.listens_for(engine, "connect")
    def be_durable_and_bounded(connection: Any, record: object) -> None:
        for pragma in _SQLITE_PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        connection.create_function("decode", 2, _decode, deterministic=True)

    return engine
