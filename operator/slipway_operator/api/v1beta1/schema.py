"""The version v1beta1 of a CustomResourceDefinition, made of its v1alpha1: fields, rules, messages and descriptions."""

import re
from copy import deepcopy
from typing import Any

from slipway_operator.api.schema import Node
from slipway_operator.api.v1beta1.differences import BETA, DIFFERENCES, GROUP, ITEMS, STORED, Difference

_TEXTS = ("description", "message")


def beta_version(kind: str, stored: Node) -> Node | None:
    """The version; None for a kind that has none. It is not served until something converts: see docs/api-policy.md."""
    if kind not in DIFFERENCES:
        return None
    made = {**deepcopy(stored), "name": BETA, "served": False, "storage": False}
    schema = made["schema"]["openAPIV3Schema"]
    for one in DIFFERENCES[kind]:
        _rewrite(schema, one)
        _rename(schema, one)
    own = schema["properties"]["apiVersion"]
    own["description"] = own["description"].replace(f"{GROUP}/{STORED}", f"{GROUP}/{BETA}")
    return made


def _rename(schema: Node, one: Difference) -> None:
    """Give the field its name and its values."""
    node = schema
    for part in one.path:
        node = node["items"] if part == ITEMS else node["properties"][part]
    field = node["properties"][one.stored]
    if one.words:
        field = {"type": "string", "enum": [one.words.false, one.words.true], **_kept(field, "description")}
    if one.description:
        field["description"] = one.description
    node["properties"] = {
        one.beta if name == one.stored else name: field if name == one.stored else child
        for name, child in node["properties"].items()
    }
    if "required" in node:
        node["required"] = [one.beta if name == one.stored else name for name in node["required"]]


def _kept(field: Node, *names: str) -> Node:
    return {name: field[name] for name in names if name in field}


def _rewrite(node: Any, one: Difference) -> None:
    """Change all rules and texts of a schema that name the field."""
    if isinstance(node, list):
        for item in node:
            _rewrite(item, one)
    if not isinstance(node, dict):
        return
    for name, value in node.items():
        if name == "rule" and isinstance(value, str):
            node[name] = _rule(value, one)
        elif name in _TEXTS and isinstance(value, str):
            node[name] = _text(value, one)
        else:
            _rewrite(value, one)


def _rule(cel: str, one: Difference) -> str:
    """A CEL rule that reads the field under its new name. A boolean is compared with its word."""
    cel = re.sub(rf"\bhas\(([\w.]+)\.{one.stored}\)", rf"has(\1.{one.beta})", cel)
    becomes = rf"(\1.{one.beta} == '{one.words.true}')" if one.words else rf"\1.{one.beta}"
    return re.sub(rf"(?<![\w.])([\w.]+)\.{one.stored}\b", becomes, cel)


def _text(text: str, one: Difference) -> str:
    for old, new in one.texts:
        text = text.replace(old, new)
    return text
