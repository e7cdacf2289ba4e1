"""Rows of a list, from the Table that the API server prints for kubectl; pure."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slipway_cli.api import Json

_SHARE = re.compile(r"(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a cell; with `used` and `most` where it is a use against a limit."""

    column: str
    text: str
    used: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One object."""

    namespace: str
    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a list."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    more: str  # token of the next page; empty at the end
    left: int | None  # objects after this page, where the API server counts them


def read_table(table: Json, shown: Sequence[str], limited: Collection[str] = ()) -> Listing:
    """The columns of `shown` that the Table has, in that order. Unknown columns are no error: a CRD may be older.

    `limited`: columns whose cells are a use against a limit, USED/LIMIT.
    """
    names = [str(item.get("name", "")) for item in table.get("columnDefinitions") or ()]
    columns = [(name, names.index(name)) for name in shown if name in names]
    metadata = table.get("metadata") or {}
    return Listing(
        columns=tuple(name for name, _ in columns),
        rows=tuple(_row(item, columns, limited) for item in table.get("rows") or ()),
        more=str(metadata.get("continue") or ""),
        left=metadata.get("remainingItemCount"),
    )


def _row(row: Json, columns: Sequence[tuple[str, int]], limited: Collection[str]) -> Row:
    metadata, cells = (row.get("object") or {}).get("metadata") or {}, row.get("cells") or ()
    return Row(
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata.get("name") or ""),
        cells=tuple(
            _cell(name, cells[index] if index < len(cells) else None, name in limited) for name, index in columns
        ),
    )


def _cell(column: str, value: object, is_limited: bool) -> Cell:
    text = "" if value is None else str(value)
    found = _SHARE.fullmatch(text) if is_limited else None
    if found and float(found[2]) > 0:
        return Cell(column, text, float(found[1]), float(found[2]))
    return Cell(column, text)
