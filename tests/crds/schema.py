"""The CRD's schema as a flat walk: a path, and the schema found there."""

from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.api_server import CRD_FILE

Node = dict[str, Any]


def crd() -> Node:
    return yaml.safe_load(CRD_FILE.read_text())


def version() -> Node:
    return crd()["spec"]["versions"][0]


def walk(node: Node | None = None, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every schema in the tree, parents first; items of a list are `path[]`."""
    node = node if node is not None else version()["schema"]["openAPIV3Schema"]
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}".lstrip("."))
    if "items" in node:
        yield from walk(node["items"], f"{path}[]")


def sentences() -> list[str]:
    """The message of every CEL rule."""
    return [rule["message"] for _, node in walk() for rule in node.get("x-kubernetes-validations", ())]
