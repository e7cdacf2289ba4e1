"""Descriptions of types and fields, read from their docstrings: one text for the code, the CRD and the docs."""

import ast
import inspect
import sys
from functools import cache

Texts = dict[str, str]  # by field

_OURS = ("slipway_operator.api.", "slipway_contracts.")


def of_type(kind: type) -> str:
    """The first paragraph of a type's docstring."""
    return _paragraph(kind.__doc__ or "")


def of_fields(kind: type) -> Texts:
    """The docstring behind each field of a type, its bases' included."""
    found: Texts = {}
    for base in reversed(kind.__mro__):
        found |= _texts(base.__module__).get(base.__name__, {})
    return found


@cache
def _texts(module: str) -> dict[str, Texts]:
    """Of all classes of a module of ours: its source is read once."""
    if not module.startswith(_OURS):
        return {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> Texts:
    found = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and (description := _text(text)):
            found[field.target.id] = description
    return found


def _text(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return _paragraph(node.value.value)
    return ""


def _paragraph(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
