"""Opens the database, and runs calls to it in threads."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, Table, create_engine, event, func, literal_column, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.sql.elements import ColumnElement

from slipway_process.batches import Written, write_apart
from slipway_process.database_errors import (
    UnusableDatabase,
    drop_connections_after_errors_of_the_driver,
    is_of_record,
)
from slipway_process.database_urls import parse_url, ssl_context

from .tables import metadata
from .upgrades import upgrade

P = ParamSpec("P")
T = TypeVar("T")
Record = TypeVar("Record")
_CONNECT_TIMEOUT_S = 5
_STATEMENT_TIMEOUT_MS = 30_000
_CLIENT_CHECK_MS = 1000
_CONNECTIONS = 4  # to PostgreSQL; SQLite has one writer
_PAGE_BYTES = 4096
_LOCK = 0x511B
_PRAGMAS = (
    "journal_mode=WAL",
    "journal_size_limit=16777216",
    "temp_store=MEMORY",  # the root filesystem is read-only: there is no place for temporary files
    "synchronous=FULL",
    "busy_timeout=10000",
)


class Database:
    """One database. The first call opens it and creates or upgrades its tables."""

    def __init__(self, url: str, max_sqlite_bytes: int = 4 << 30, *, erases: bool = False) -> None:
        """`erases`: SQLite overwrites what is deleted, so that it cannot be read in the file.

        Raises:
            ValueError: the URL names no database that can be used.
        """
        parsed = parse_url(url)
        self.is_shared = parsed.get_backend_name() != "sqlite"
        if not self.is_shared and parsed.database in (None, "", ":memory:"):
            raise ValueError("name a file: sqlite:////path/jobs.db")
        self._engine = _open_postgresql(parsed) if self.is_shared else _open_sqlite(parsed, max_sqlite_bytes, erases)
        self._threads = ThreadPoolExecutor(_CONNECTIONS if self.is_shared else 1, "database")
        self.insert: Any = postgresql.insert if self.is_shared else sqlite.insert
        self._opened = False

    @property
    def now(self) -> ColumnElement[float]:
        """Unix time by the clock of the database, which processes on several nodes share."""
        text = (
            "extract(epoch from clock_timestamp())" if self.is_shared else "((julianday('now') - 2440587.5) * 86400.0)"
        )
        return literal_column(f"cast({text} as double precision)")

    async def call(self, function: Callable[Concatenate[Connection, P], T], *given: P.args, **named: P.kwargs) -> T:
        """Runs a function in one transaction, in a thread. Raises the errors in `UNAVAILABLE`."""

        def run() -> T:
            return self._run(lambda connection: function(connection, *given, **named))

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    async def write_apart(
        self, function: Callable[[Connection, Sequence[Record]], T], records: Sequence[Record]
    ) -> Written[Record, T]:
        """Writes records by a function that writes all or none, in a thread; see `slipway_process.batches`."""

        def write(part: Sequence[Record]) -> T:
            return self._run(lambda connection: function(connection, part))

        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: write_apart(write, records, is_of_record)
        )

    def _run(self, function: Callable[[Connection], T]) -> T:
        self._open()
        with self._engine.begin() as connection:
            return function(connection)

    def add(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Inserts all rows, with PostgreSQL in a few statements: by default its driver sends one for each row."""
        insert = table.insert()
        connection.execute(insert.returning(*table.primary_key) if self.is_shared else insert, rows)

    def lock(self, connection: Connection, tenant: str) -> None:
        """Locks a tenant's counts until the transaction ends, so that no other transaction checks them meanwhile."""
        if self.is_shared:
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK, func.hashtext(tenant))))

    def time(self, connection: Connection) -> float:
        return float(connection.execute(select(self.now)).scalar_one())

    def free_bytes(self, connection: Connection, reserved_share: float = 0.0) -> float:
        """The free bytes of SQLite's file, below its size limit and without a reserved share (0 to 1) of that.

        Infinite for PostgreSQL, which has no limit here.
        """
        if self.is_shared:
            return math.inf
        used, free, most = (
            int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
            for name in ("page_count", "freelist_count", "max_page_count")
        )
        return max(0.0, most * (1.0 - reserved_share) - (used - free)) * _PAGE_BYTES

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        self._engine.dispose()

    def _open(self) -> None:
        if self._opened:
            return
        with self._engine.begin() as connection:
            if self.is_shared:
                # Two processes that begin at once make the tables one after the other.
                connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            metadata.create_all(connection)
            is_usable = upgrade(connection)
        if not is_usable:
            raise UnusableDatabase("the database was written by a newer release, whose tables differ")
        self._opened = True


def _open_postgresql(url: URL) -> Engine:
    options: dict[str, Any] = {"timeout": _CONNECT_TIMEOUT_S, "application_name": "slipway-jobs"}
    if context := ssl_context(url):
        options["ssl_context"] = context
    bare = url.difference_update_query(["sslmode", "sslrootcert"])
    engine = create_engine(bare, connect_args=options, pool_size=_CONNECTIONS, max_overflow=0, pool_pre_ping=True)

    drop_connections_after_errors_of_the_driver(engine)

    @event.listens_for(engine, "connect")
    def limit_time(connection: Any, record: object) -> None:
        cursor = connection.cursor()
        # By default PostgreSQL does not notice that a client died whose statement waits for a lock. Its transaction
        # would hold the locks of its tenant until the timeouts below.
        try:
            cursor.execute(f"SET client_connection_check_interval = {_CLIENT_CHECK_MS}")
        except engine.dialect.loaded_dbapi.Error:  # PostgreSQL 13, or an operating system that does not report it
            connection.rollback()
        cursor.execute(f"SET statement_timeout = {_STATEMENT_TIMEOUT_MS}")
        cursor.execute(f"SET lock_timeout = {_STATEMENT_TIMEOUT_MS}")
        # A process whose node is lost holds its locks no longer than this.
        cursor.execute(f"SET idle_in_transaction_session_timeout = {_STATEMENT_TIMEOUT_MS}")
        cursor.close()
        connection.commit()

    return engine


def _open_sqlite(url: URL, max_bytes: int, erases: bool) -> Engine:
    engine = create_engine(url, connect_args={"check_same_thread": False}, pool_size=1, max_overflow=0)

    @event.listens_for(engine, "connect")
    def be_durable_and_bounded(connection: Any, record: object) -> None:
        connection.isolation_level = None  # `begin` below decides, not the driver
        secure = f"secure_delete={'ON' if erases else 'OFF'}"
        for pragma in (*_PRAGMAS, secure, f"max_page_count={max_bytes // _PAGE_BYTES}"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # Takes the write lock at once: a transaction that reads first and writes later may fail to get it.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
