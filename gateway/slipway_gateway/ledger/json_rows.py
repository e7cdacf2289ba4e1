"""Rows for a table as one parameter of a statement, in JSON (pure).

SQL with a parameter for each value takes most of the time of a write.
"""

from typing import Any

from sqlalchemy import JSON, Column, Dialect, LargeBinary, Table, Text, bindparam, cast, column, func, select, true
from sqlalchemy.dialects import postgresql, sqlite

ROWS = "rows"  # the parameter: a list of lists in JSON, with values in the order of the columns


def insert_for(dialect: Dialect) -> Any:
    """The `insert` of SQLite or PostgreSQL."""
    return sqlite.insert if dialect.name == "sqlite" else postgresql.insert


def insert_new(table: Table, dialect: Dialect) -> Any:
    """A statement that inserts the rows whose primary key is not there yet. Bytes are in base64."""
    given: Any = bindparam(ROWS, type_=Text)
    elements = func.json_each(given) if dialect.name == "sqlite" else func.json_array_elements(cast(given, JSON))
    rows = elements.table_valued(column("value", JSON))
    values = [_value(rows.c.value[place].as_string(), one) for place, one in enumerate(table.c)]
    # Without a condition SQLite takes ON CONFLICT for a part of the SELECT.
    made = insert_for(dialect)(table).from_select(table.c.keys(), select(*values).where(true()))
    return made.on_conflict_do_nothing()


def _value(text: Any, of: Column[Any]) -> Any:
    # `decode` is a function of PostgreSQL; `tables.open_engine` gives SQLite one of this name.
    return func.decode(text, "base64") if isinstance(of.type, LargeBinary) else cast(text, of.type)
