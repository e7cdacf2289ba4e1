"""Deletes many rows in slices, so that none holds up other transactions for long."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection, Table, delete, select

OWNERS, ROWS = 200, 2000  # files or batches, and their rows, in one slice


def delete_slice(connection: Connection, table: Table, owner: Column[Any], gone: Sequence[str]) -> int:
    """Deletes numbered rows of files or batches that are `gone`; returns how many, ROWS where more may be left."""
    found = connection.execute(select(owner, table.c.n).where(owner.in_(gone)).limit(ROWS)).all()
    for one in sorted({key for key, _ in found}):
        numbers = [n for key, n in found if key == one]
        connection.execute(delete(table).where(owner == one, table.c.n.in_(numbers)))
    return len(found)
