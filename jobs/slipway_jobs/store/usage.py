"""What the batches of each tenant take of the database: rows, results and errors, until they are deleted.

The bytes of a tenant are one row, which is written last in a transaction: it is locked for a moment, and nothing waits
for a lock while it has this one.
"""

from collections.abc import Mapping

from sqlalchemy import Connection, case, func, select
from sqlalchemy.sql.elements import ColumnElement

from .database import Database
from .tables import batches, lines, usage

# Of SQLite's file: with less no line is claimed, as the rest is for results of those in flight and for the ends of
# batches. A database that is full takes no result, and then no tenant's batch goes on.
LEAST_SHARE = 0.1
BATCH_BYTES, LINE_BYTES = 1024, 256  # of a row without its texts, with its part of the indexes

# Bytes of a row of `lines` or `batches`, as the stores count them when they write it.
LINE_SIZE: ColumnElement[int] = (
    LINE_BYTES + func.length(lines.c.custom_id) + func.coalesce(func.length(lines.c.result), 0)
)
BATCH_SIZE: ColumnElement[int] = (
    BATCH_BYTES + func.coalesce(func.length(batches.c.metadata), 0) + func.coalesce(func.length(batches.c.errors), 0)
)


class TooMuchKept(Exception):
    """The batches and results of a tenant are at their limit."""


class TenantUsage:
    """The bytes of each tenant, at most `max_bytes` before a batch, a line or a result is added."""

    def __init__(self, database: Database, max_bytes: int = 1 << 30) -> None:
        self._database, self.max_bytes = database, max_bytes

    def check(self, connection: Connection, tenant: str) -> None:
        """
        Raises:
            TooMuchKept: the tenant is at its limit.
        """
        if connection.execute(select(self.is_full(connection, tenant))).scalar_one():
            raise TooMuchKept

    def is_full(self, connection: Connection, tenant: str | ColumnElement[str]) -> ColumnElement[bool]:
        """A condition: a tenant is at its limit, or has as much of SQLite's file as it leaves free for others."""
        free_bytes = self._database.free_bytes(connection, LEAST_SHARE)
        most = case((usage.c.tenant != "", min(self.max_bytes, free_bytes)), else_=self.max_bytes)
        return select(usage.c.tenant).where(usage.c.tenant == tenant, usage.c.bytes >= most).exists()

    def add(self, connection: Connection, changes: Mapping[str, int]) -> None:
        """Adds bytes by tenant; negative ones are taken away. Call it last in a transaction."""
        for tenant, change in sorted(changes.items()):
            if not change:
                continue
            added = self._database.insert(usage).values(tenant=tenant, bytes=max(0, change))
            left = usage.c.bytes + change
            # A process of an older release counts nothing, so that more may be deleted than was added.
            values = {"bytes": case((left > 0, left), else_=0)}
            connection.execute(added.on_conflict_do_update(index_elements=[usage.c.tenant], set_=values))
