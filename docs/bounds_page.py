"""The table of bounds in docs/threat-model.md: what is bounded for all, and whose share of it each client has."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
BOUNDS = ROOT / "docs" / "bounds.yaml"
HEAD = ["| bound of a process | value | share of | tests |", "|---|---|---|---|"]


def rows() -> list[dict[str, Any]]:
    """Of docs/bounds.yaml. `where`: FILE:NAME. `share`: whose, or `reason`: why it needs none. `tests`: their names."""
    listed: list[dict[str, Any]] = yaml.load(BOUNDS.read_text(), yaml.CSafeLoader)
    return listed


def table() -> str:
    return "\n".join([*HEAD, *map(_row, rows())])


def _row(row: dict[str, Any]) -> str:
    tests = ", ".join(f"`{name}`" for name in row.get("tests", ()))
    share = row.get("share") or f"none: {row['reason']}"
    return f"| {row['bound']} (`{row['where'].rpartition(':')[2]}`) | {row['value']} | {share} | {tests} |"
