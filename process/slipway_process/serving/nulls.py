"""Null means absent: clients in many languages send each field that they know, and null for those without a value."""

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import Struct, inspect

Drop = Callable[[Any], None]


def drop_nulls(fields: dict[str, Any], kind: type[Struct]) -> None:
    """Removes the optional fields of `kind` that are null, and those of the objects within, from a decoded body.

    What has no type, as the variables of a template or a JSON schema, stays as it is: null may be its value.
    """
    _of_struct(kind)(fields)


@cache
def _of_struct(kind: type) -> Drop:
    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    optional = frozenset(field.encode_name for field in shape.fields if not field.required)
    within = {field.encode_name: inner for field in shape.fields if (inner := _of_type(field.type)) is not None}

    def drop(fields: Any) -> None:
        if not isinstance(fields, dict):
            return
        for name in [name for name, value in fields.items() if value is None and name in optional]:
            del fields[name]
        for name in within.keys() & fields.keys():
            within[name](fields[name])

    return drop


def _of_type(shape: inspect.Type) -> Drop | None:
    """What removes nulls from a value; None for a type without objects whose fields are known."""
    if isinstance(shape, inspect.StructType):
        return _of_struct(shape.cls)
    if isinstance(shape, inspect.Metadata):
        return _of_type(shape.type)
    if isinstance(shape, inspect.ListType):
        return _of_items(_of_type(shape.item_type))
    if isinstance(shape, inspect.UnionType):
        # Each looks at the type of the value, of which a union has one of a kind.
        found = [drop for one in shape.types if (drop := _of_type(one)) is not None]
        return _of_each(found) if found else None
    return None


def _of_items(drop: Drop | None) -> Drop | None:
    if drop is None:
        return None

    def drop_all(items: Any) -> None:
        for item in items if isinstance(items, list) else ():
            drop(item)

    return drop_all


def _of_each(drops: list[Drop]) -> Drop:
    def drop_any(value: Any) -> None:
        for drop in drops:
            drop(value)

    return drop_any
