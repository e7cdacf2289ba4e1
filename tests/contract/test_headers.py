"""Slipway's own headers are written in one module, and docs/contracts.md has each of them."""

import ast
import re
from pathlib import Path

import pytest

from slipway_contracts import headers
from slipway_gateway.wire.resume import LAST_EVENT_ID
from testkit import ROOT
from tests.contract import figures
from tests.contract.documented import TEXT

NAMES = {name: text for name, text in vars(headers).items() if name.isupper() and name != "PREFIX"}
HEADER = re.compile(headers.PREFIX + "[a-z-]+", re.IGNORECASE)


def spelled(path: Path) -> set[str]:
    """Texts of a module that are a header of ours, and nothing else."""
    texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and HEADER.fullmatch(text)}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_header_has_the_prefix_and_is_documented(name: str) -> None:
    assert HEADER.fullmatch(NAMES[name])
    about = TEXT if name != "SIGNATURE" else (ROOT / "docs/hooks.md").read_text()
    assert f"`{NAMES[name]}" in about


def test_the_header_of_clients_that_return_is_documented() -> None:
    assert f"`{LAST_EVENT_ID}`" in TEXT


def test_headers_are_spelled_in_one_module() -> None:
    modules = [path for name in figures.NAMES for path in figures.folder(name).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in modules if spelled(path)}
    assert found == {"contracts/slipway_contracts/headers.py"}
