"""Which row a sealed line belongs to, and how long lines are without their seals."""

from typing import Any

from sqlalchemy import case, func
from sqlalchemy.sql.elements import ColumnElement

from slipway_process.sealing import MAGIC, OVERHEAD_BYTES

from .tables import inputs, lines


def input_row(file_id: str, n: int) -> str:
    return f"{inputs.name}\0{file_id}\0{n}"


def result_row(batch_id: str, n: int) -> str:
    return f"{lines.name}\0{batch_id}\0{n}"


def plain_length(data: Any) -> ColumnElement[int]:
    """The bytes of a column's values without their seals, where they have one."""
    sealed = func.substr(data, 1, len(MAGIC)) == MAGIC
    return func.length(data) - case((sealed, OVERHEAD_BYTES), else_=0)
