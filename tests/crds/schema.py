"""The CRD's schema as a flat walk: a path, and the schema found there."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.api_server import CRD_FILE, CRD_FILES

Node = dict[str, Any]


TEMPLATE_FILE, RUN_FILE, TENANT_FILE, POOL_FILE, ROUTE_FILE, EXPERIMENT_FILE, ADAPTER_FILE = CRD_FILES[1:8]


@functools.cache
def crd(path: Path = CRD_FILE) -> Node:
    return yaml.load(path.read_text(), yaml.CSafeLoader)


def version(path: Path = CRD_FILE) -> Node:
    return crd(path)["spec"]["versions"][0]


def template_schema() -> Node:
    """The schema of AnalysisTemplates."""
    return version(TEMPLATE_FILE)["schema"]["openAPIV3Schema"]


def walk(node: Node | None = None, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every schema in the tree, parents first; items of a list are `path[]`."""
    node = node if node is not None else version()["schema"]["openAPIV3Schema"]
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}".lstrip("."))
    if "items" in node:
        yield from walk(node["items"], f"{path}[]")


def sentences(root: Node | None = None) -> list[str]:
    """The message of every CEL rule."""
    return [rule["message"] for _, node in walk(root) for rule in node.get("x-kubernetes-validations", ())]
