"""Which errors of a database are those of a record, and which are its own: only the latter pass with time."""

import sqlite3

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError

# Classes of PostgreSQL's SQLSTATE: data exceptions, violated constraints, limits of a row or an expression.
_SQLSTATE_OF_RECORD = ("22", "23", "54")
_SQLITE_OF_RECORD = frozenset(
    {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
)
# SQLite has no code of their own for these.
_SQLITE_TEXTS = ("integer overflow", "malformed JSON")


class UnusableDatabase(Exception):
    """The database belongs to another release."""


# What calls to a database raise.
UNAVAILABLE = (SQLAlchemyError, OSError, UnusableDatabase)


def is_of_record(error: Exception) -> bool:
    """Whether a write failed because of what was written, so that the same write never succeeds.

    Errors of connections, locks, full disks, missing tables and rights are the database's. What is no error of a
    database at all is one of the record: a driver cannot encode it.
    """
    if isinstance(error, DBAPIError):
        return not error.connection_invalidated and _blames_record(error.orig)
    if isinstance(error, StatementError):
        return True  # raised before the statement was sent
    return not isinstance(error, UNAVAILABLE)


def _blames_record(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None) or 0  # errors of the driver have none
        return code & 0xFF in _SQLITE_OF_RECORD or any(text in str(error) for text in _SQLITE_TEXTS)
    return sqlstate(error)[:2] in _SQLSTATE_OF_RECORD


def sqlstate(error: BaseException | None) -> str:
    """PostgreSQL's code of an error, as pg8000 gives it; empty without one."""
    fields = error.args[0] if error is not None and error.args else None
    return str(fields.get("C", "")) if isinstance(fields, dict) else ""


def drop_connections_after_errors_of_the_driver(engine: Engine) -> None:
    """Closes a connection on which a statement ended with an error that is none of the database.

    pg8000 may have sent half of a statement whose values it cannot encode; the next one would read its answers.
    """

    @event.listens_for(engine, "handle_error")
    def look(context: ExceptionContext) -> None:
        if not isinstance(context.original_exception, engine.dialect.loaded_dbapi.Error):
            context.is_disconnect, context.invalidate_pool_on_disconnect = True, False
