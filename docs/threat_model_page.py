"""The page docs/threat-model.md: its prose, and the attack classes with the tests that carry their markers."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
WORDS = ROOT / "docs" / "threat-model.in.md"
CLASSES = ROOT / "docs" / "threat-classes.yaml"
SUITES = (ROOT / "tests", ROOT / "e2e")
MARKER = "attack_class"
SHOWN = 4  # tests named in a row


def page() -> str:
    """The whole page.

    Raises:
        LookupError: when a test names a class that is not listed, or a class has neither a test nor a reason.
    """
    listed: list[dict[str, Any]] = yaml.load(CLASSES.read_text(), yaml.CSafeLoader)
    found = tests()
    if unknown := set(found) - {row["n"] for row in listed}:
        raise LookupError(f"tests are marked with attack classes that are not listed: {sorted(unknown)}")
    rows = [_row(row, found.get(row["n"], [])) for row in listed]
    table = ["| # | class | seen elsewhere | status | tests |", "|---|---|---|---|---|", *rows]
    return WORDS.read_text().replace("{{classes}}", "\n".join(table))


def tests() -> dict[int, list[str]]:
    """`FILE::TEST` of each attack class, over all suites."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(path for suite in SUITES for path in suite.rglob("test_*.py")):
        text = path.read_text()
        if MARKER in text:
            for number, name in _marked(ast.parse(text)):
                found[number].append(f"{path.relative_to(ROOT)}::{name}")
    return found


def _marked(tree: ast.Module) -> Iterator[tuple[int, str]]:
    everywhere = [number for node in tree.body if isinstance(node, ast.Assign) for number in _numbers(node.value)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            own = [number for decorator in node.decorator_list for number in _numbers(decorator)]
            for number in dict.fromkeys([*own, *everywhere]):
                yield number, node.name


def _numbers(node: ast.AST) -> Iterator[int]:
    """Arguments of all calls of the marker in an expression."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == MARKER:
            yield from (
                item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, int)
            )


def _row(row: dict[str, Any], named: list[str]) -> str:
    reason = row.get("not_applicable") or row.get("open")
    if not named and not reason:
        raise LookupError(f"attack class {row['n']} has neither a test nor a reason in {CLASSES.name}")
    status = "tested" if named else "does not apply" if "not_applicable" in row else "open"
    shown = ", ".join(f"`{name.rpartition('::')[2]}`" for name in named[:SHOWN])
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    tests_shown = "; ".join(part for part in (f"{shown}{more}", reason) if part)
    return f"| {row['n']} | {row['class']} | {row['seen']} | {status} | {tests_shown} |"
