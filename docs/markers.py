"""Tests by the arguments of one of their markers, read from the source: nothing is imported."""

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITES = (ROOT / "tests", ROOT / "e2e")

Argument = int | str


@functools.cache
def tests(marker: str) -> dict[Argument, list[str]]:
    """`FILE::TEST` of each argument of the marker, over all suites."""
    found: dict[Argument, list[str]] = defaultdict(list)
    for path in sorted(path for suite in SUITES for path in suite.rglob("test_*.py")):
        text = path.read_text()
        if marker in text:
            for argument, name in _marked(ast.parse(text), marker):
                found[argument].append(f"{path.relative_to(ROOT)}::{name}")
    return dict(found)


def _marked(tree: ast.Module, marker: str) -> Iterator[tuple[Argument, str]]:
    everywhere = [item for node in tree.body if isinstance(node, ast.Assign) for item in _given(node.value, marker)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            own = [item for decorator in node.decorator_list for item in _given(decorator, marker)]
            for item in dict.fromkeys([*own, *everywhere]):
                yield item, node.name


def _given(node: ast.AST, marker: str) -> Iterator[Argument]:
    """Arguments of all calls of the marker in an expression."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == marker:
            yield from (
                item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, int | str)
            )
