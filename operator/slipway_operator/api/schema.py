"""Structural schemas of API types: what Kubernetes takes, without references and alternatives."""

import dataclasses
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slipway_contracts.api import markers
from slipway_contracts.api.writing import camel
from slipway_operator.api import documentation

Node = dict[str, Any]

_SCALARS: dict[Any, str] = {str: "string", datetime: "string", int: "integer", float: "number", bool: "boolean"}
_LENGTHS = {"string": "Length", "array": "Items", "object": "Properties"}
_FORMAT_LIMITS = (-(2**31), 2**31 - 1, -(2**63), 2**63 - 1)  # the format implies them


@dataclass(frozen=True, slots=True)
class Member:
    """One field of a type, as the API has it."""

    name: str
    annotation: Any
    description: str
    required: bool
    default: Any = None  # None: the schema has none


def structural(kind: type) -> Node:
    """The schema of a type and of everything below it.

    Raises:
        TypeError: when a field has a type that no structural schema can express.
    """
    members = list(_written(kind))
    node: Node = {"type": "object", "description": documentation.of_type(kind)}
    if needed := [member.name for member in members if member.required]:
        node["required"] = needed
    if markers.listed_of(kind) is not None:
        node["x-kubernetes-preserve-unknown-fields"] = True
    _add_rules(node, markers.rules_of(kind))
    node["properties"] = {member.name: _property(member) for member in members}
    return node


def _written(kind: type) -> Iterator[Member]:
    """The fields of a type as they are written."""
    listed = markers.listed_of(kind)
    yield from (member for member in _members(kind) if listed is None or member.name in listed)


def _members(kind: type) -> Iterator[Member]:
    hints, texts = typing.get_type_hints(kind, include_extras=True), documentation.of_fields(kind)
    if issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            text, default = texts.get(name, ""), _default(field.default)
            if default is not None and markers.implies_default(kind, name):
                text, default = _with_default(text, default), None
            yield Member(field.alias or name, hints[name], text, field.is_required(), default)
    elif dataclasses.is_dataclass(kind):
        # Of a status: the operator alone writes it, so that nothing is filled in and little has to be there.
        for item in dataclasses.fields(kind):
            needed = item.name in markers.required_of(kind)
            yield Member(camel(item.name), hints[item.name], texts.get(item.name, ""), needed)
    else:
        raise TypeError(f"{kind.__name__} is no API type")


def _default(value: Any) -> Any:
    """A default of the schema; None and empty collections only make a field optional."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return value if isinstance(value, str | int | float) else None


def _with_default(text: str, default: Any) -> str:
    """A description that names a default; an object's parts have defaults of their own."""
    written = str(default).lower() if isinstance(default, bool) else default
    return text if isinstance(default, dict) else f"{text} Default is {written}."


def _property(member: Member) -> Node:
    node = _typed(member.annotation)
    if member.description:
        node["description"] = member.description
    if member.default is not None:
        node["default"] = member.default
    return node


def _typed(annotation: Any) -> Node:
    """The schema of an annotation with its constraints."""
    core, metadata = _unwrapped(annotation)
    node = next((_instead(one) for one in metadata if isinstance(one, markers.SchemaOf | markers.LogLine)), None)
    node = node or _core(core)
    for one in metadata:
        _constrain(node, one)
    return node


def _instead(marker: markers.SchemaOf | markers.LogLine) -> Node:
    """The schema of what is written in place of a value."""
    if isinstance(marker, markers.LogLine):
        return {"type": "string", "maxLength": marker.limit}
    return structural(marker.type)


def _unwrapped(annotation: Any) -> tuple[Any, list[Any]]:
    """A type without None, and all its metadata, from the inside out."""
    if typing.get_origin(annotation) is typing.Annotated:
        core, *outer = typing.get_args(annotation)
        inner, metadata = _unwrapped(core)
        return inner, [*metadata, *(part for one in outer for part in _parts(one))]
    options = [one for one in typing.get_args(annotation) if one is not types.NoneType]
    if _is_union(annotation) and len(options) == 1:
        return _unwrapped(options[0])
    return annotation, []


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _parts(metadata: Any) -> list[Any]:
    if isinstance(metadata, FieldInfo):
        return [*metadata.metadata, *([metadata] if metadata.description else [])]
    return [metadata]


def _core(core: Any) -> Node:
    origin, arguments = typing.get_origin(core), typing.get_args(core)
    if _is_union(core) and set(arguments) == {int, str}:
        return {"x-kubernetes-int-or-string": True}
    if origin is typing.Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return {"type": "array", "items": _typed(arguments[0])}
    if origin is dict:
        values: Node = (
            {"x-kubernetes-preserve-unknown-fields": True}
            if arguments[1] is Any
            else {"additionalProperties": _typed(arguments[1])}
        )
        return {"type": "object", **values}
    if isinstance(core, type) and issubclass(core, Enum):
        return {"type": "string", "enum": [one.value for one in core]}
    return {"type": _SCALARS[core]} if core in _SCALARS else structural(core)


def _constrain(node: Node, constraint: Any) -> None:
    """Add one constraint to a schema."""
    match constraint:
        case markers.Format(name):
            node["format"] = name
        case markers.OneOf(values):
            node["enum"] = list(values)
        case markers.AnyText():
            node.pop("enum")
        case markers.CelRule():
            _add_rules(node, (constraint,))
        case markers.ListMap(key):
            node |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
        case markers.ListSet():
            node["x-kubernetes-list-type"] = "set"
        case markers.AtMost(limit):
            node[f"max{_LENGTHS[node['type']]}"] = limit
        case FieldInfo():
            node["description"] = constraint.description
        case _:
            _bound(node, constraint)


def _bound(node: Node, constraint: Any) -> None:
    match constraint:
        case annotated_types.Ge(ge) if ge not in _FORMAT_LIMITS:
            node["minimum"] = ge
        case annotated_types.Gt(gt):
            node |= {"minimum": gt, "exclusiveMinimum": True}
        case annotated_types.Le(le) if le not in _FORMAT_LIMITS:
            node["maximum"] = le
        case annotated_types.MinLen(least):
            node[f"min{_LENGTHS[node['type']]}"] = least
        case annotated_types.MaxLen(most):
            node[f"max{_LENGTHS[node['type']]}"] = most
        case _ if pattern := getattr(constraint, "pattern", None):
            node["pattern"] = pattern


def _add_rules(node: Node, rules: tuple[markers.CelRule, ...]) -> None:
    if rules:
        validations = [{"rule": one.cel, "message": one.message} for one in rules]
        node["x-kubernetes-validations"] = [*node.get("x-kubernetes-validations", ()), *validations]
