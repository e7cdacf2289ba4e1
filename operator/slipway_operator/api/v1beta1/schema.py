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
    beta = {**deepcopy(stored), "name": BETA, "served": False, "storage": False}
    schema = beta["schema"]["openAPIV3Schema"]
    for difference in DIFFERENCES[kind]:
        _rewrite(schema, difference)
        _rename(schema, difference)
    api_version = schema["properties"]["apiVersion"]
    api_version["description"] = api_version["description"].replace(f"{GROUP}/{STORED}", f"{GROUP}/{BETA}")
    return beta


def _rename(schema: Node, difference: Difference) -> None:
    """Give the field its name and its values."""
    node = schema
    for part in difference.path:
        node = node["items"] if part == ITEMS else node["properties"][part]
    field = node["properties"][difference.stored]
    if difference.words:
        field = {
            "type": "string",
            "enum": [difference.words.false, difference.words.true],
            **_kept(field, "description"),
        }
    if difference.description:
        field["description"] = difference.description
    node["properties"] = {
        difference.beta if name == difference.stored else name: field if name == difference.stored else child
        for name, child in node["properties"].items()
    }
    if "required" in node:
        node["required"] = [difference.beta if name == difference.stored else name for name in node["required"]]


def _kept(field: Node, *names: str) -> Node:
    return {name: field[name] for name in names if name in field}


def _rewrite(node: Any, difference: Difference) -> None:
    """Change all rules and texts of a schema that name the field."""
    if isinstance(node, list):
        for item in node:
            _rewrite(item, difference)
    if not isinstance(node, dict):
        return
    for name, value in node.items():
        if name == "rule" and isinstance(value, str):
            node[name] = _rule(value, difference)
        elif name in _TEXTS and isinstance(value, str):
            node[name] = _text(value, difference)
        else:
            _rewrite(value, difference)


def _rule(cel: str, difference: Difference) -> str:
    """A CEL rule that reads the field under its new name. A boolean is compared with its word."""
    cel = re.sub(rf"\bhas\(([\w.]+)\.{difference.stored}\)", rf"has(\1.{difference.beta})", cel)
    becomes = rf"(\1.{difference.beta} == '{difference.words.true}')" if difference.words else rf"\1.{difference.beta}"
    return re.sub(rf"(?<![\w.])([\w.]+)\.{difference.stored}\b", becomes, cel)


def _text(text: str, difference: Difference) -> str:
    for old, new in difference.texts:
        text = text.replace(old, new)
    return text
