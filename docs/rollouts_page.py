"""The page docs/rollouts.md: transitions from the operator's table, guarantees with their tests."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from slipway_operator.api.v1alpha1.status import State
from slipway_operator.planning.rollout.row import IN_FLIGHT, STEPPING, Row
from slipway_operator.planning.rollout.table import TABLE

ROOT = Path(__file__).resolve().parents[1]
PROMISES = ROOT / "docs" / "rollouts.yaml"
PROSE = ROOT / "docs" / "rollouts.in.md"
TEST_FOLDERS = ("tests", "e2e")

Promises = dict[str, list[tuple[str, str, list[str]]]]


def page() -> str:
    """The whole page.

    Raises:
        LookupError: when a guarantee names a test that does not exist.
    """
    promises: Promises = yaml.load(PROMISES.read_text(), yaml.CSafeLoader)
    return "\n".join([PROSE.read_text().rstrip(), "", *_transitions(), *_promises(promises, _tests())]).rstrip() + "\n"


def _transitions() -> Iterator[str]:
    yield "## Transitions\n"
    yield "Each reconcile applies the first matching row and writes it to the status before the next one.\n"
    yield "| row | in | what happens |"
    yield "|---|---|---|"
    for row in TABLE:
        yield f"| `{row.name}` | {_states(row)} | {row.description} |"
    yield ""


def _states(row: Row) -> str:
    if row.states == IN_FLIGHT:
        return "any state in flight"
    if row.states == STEPPING:
        return "any state before Promoting"
    known = [state for state in (None, *State) if state in row.states]
    return ", ".join(str(state.value) if state else "Idle" for state in known)


def _promises(promises: Promises, tests: dict[str, str]) -> Iterator[str]:
    yield "## Guarantees and their tests\n"
    for group, rows in promises.items():
        yield f"### {group}\n"
        yield "| | guarantee | tests |"
        yield "|---|---|---|"
        for subject, promise, names in rows:
            yield f"| {subject} | {promise} | {', '.join(_link(name, tests) for name in names)} |"
        yield ""


def _link(name: str, tests: dict[str, str]) -> str:
    if name not in tests:
        raise LookupError(f"{PROMISES.name} names {name}, which no test file has")
    return f"[`{name.removeprefix('test_')}`](../{tests[name]})"


def _tests() -> dict[str, str]:
    """Name of each test function → its file, relative to the root."""
    files = [path for folder in TEST_FOLDERS for path in sorted((ROOT / folder).rglob("test_*.py"))]
    return {node.name: str(path.relative_to(ROOT)) for path in files for node in _functions(path)}


def _functions(path: Path) -> Iterator[Any]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node
