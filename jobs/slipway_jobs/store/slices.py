"""Deletes many rows in slices, so that none holds up other transactions for long."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection, Table, delete, literal, select
from sqlalchemy.sql.elements import ColumnElement

OWNERS, ROWS = 200, 2000  # files or batches, and their rows, in one slice


def delete_slice(
    connection: Connection,
    table: Table,
    owner: Column[Any],
    gone: Sequence[str],
    size: ColumnElement[int] | None = None,
) -> list[tuple[str, int, int]]:
    """Deletes numbered rows of files or batches that are `gone`.

    Returns the owner, the number and the `size` of each; ROWS of them where more may be left.
    """
    measured = literal(0) if size is None else size
    found = connection.execute(select(owner, table.c.n, measured).where(owner.in_(gone)).limit(ROWS)).all()
    for one in sorted({key for key, _, _ in found}):
        numbers = [n for key, n, _ in found if key == one]
        connection.execute(delete(table).where(owner == one, table.c.n.in_(numbers)))
    return [(key, n, bytes_) for key, n, bytes_ in found]
