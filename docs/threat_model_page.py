"""The page docs/threat-model.md: prose, bounds, and the attack classes with the tests that carry their markers."""

from pathlib import Path
from typing import Any

import bounds_page  # beside this file
import markers
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORDS = ROOT / "docs" / "threat-model.in.md"
CLASSES = ROOT / "docs" / "threat-classes.yaml"
MARKER = "attack_class"
SHOWN = 4  # tests named in a row


def page() -> str:
    """The whole page.

    Raises:
        LookupError: when a test names a class that is not listed, or a class has neither a test nor a reason.
    """
    listed: list[dict[str, Any]] = yaml.load(CLASSES.read_text(), yaml.CSafeLoader)
    found = markers.tests(MARKER)
    if unknown := set(found) - {row["n"] for row in listed}:
        raise LookupError(f"tests are marked with attack classes that are not listed: {sorted(unknown)}")
    rows = [_row(row, found.get(row["n"], [])) for row in listed]
    table = ["| # | class | seen elsewhere | status | tests |", "|---|---|---|---|---|", *rows]
    return WORDS.read_text().replace("{{classes}}", "\n".join(table)).replace("{{bounds}}", bounds_page.table())


def _row(row: dict[str, Any], named: list[str]) -> str:
    reason = row.get("not_applicable") or row.get("open")
    if not named and not reason:
        raise LookupError(f"attack class {row['n']} has neither a test nor a reason in {CLASSES.name}")
    status = "tested" if named else "does not apply" if "not_applicable" in row else "open"
    shown = ", ".join(f"`{name.rpartition('::')[2]}`" for name in named[:SHOWN])
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    tests_shown = "; ".join(part for part in (f"{shown}{more}", reason) if part)
    return f"| {row['n']} | {row['class']} | {row['seen']} | {status} | {tests_shown} |"
