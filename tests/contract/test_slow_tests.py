"""tests/README.md names existing tests, and all that only `make extended` runs."""

import ast
import functools
import re
from collections.abc import Iterator

from testkit import ROOT

SLOWEST, EXTENDED = 30, "What only `make extended`"


@functools.cache
def functions() -> dict[str, bool]:
    """Name of each test → whether it, or a case of it, is marked as extended."""
    found: dict[str, bool] = {}
    for path in [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("e2e/test_*.py")]:
        found |= dict(_tests(ast.parse(path.read_text())))
    return found


def _tests(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """A mark may stand at a test, in a name that its decorators use, or for its whole module."""
    marked = {"extended"}
    for node in tree.body:
        if isinstance(node, ast.Assign) and "mark.extended" in ast.unparse(node):
            marked |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.FunctionDef) and "mark.extended" in ast.unparse(node) and node.name[:5] != "test_":
            marked.add(node.name)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            words = set(re.findall(r"\w+", " ".join(map(ast.unparse, node.decorator_list))))
            yield node.name, bool(words & marked) or "pytestmark" in marked


def named(section: str) -> list[str]:
    """The test of each row of a section's table."""
    rows = [line for line in section.splitlines() if "| `test_" in line]
    return [re.findall(r"\| `(test_\w+)`", row)[0] for row in rows]


def test_page_of_slow_tests_names_thirty_that_exist() -> None:
    slow, extended = (ROOT / "tests" / "README.md").read_text().split(f"## {EXTENDED}")
    assert len(named(slow)) == SLOWEST
    assert not {*named(slow), *named(extended)} - functions().keys()


def test_page_of_slow_tests_names_all_extended_tests() -> None:
    extended = (ROOT / "tests" / "README.md").read_text().split(f"## {EXTENDED}")[1]
    assert set(named(extended)) == {name for name, marked in functions().items() if marked}
