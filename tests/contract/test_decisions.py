"""ARCHITECTURE.md is true: every decision names tests that exist, and every file that the page names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
FOLDERS = (
    "operator",
    "gateway",
    "jobs",
    "server",
    "cli",
    "console",
    "process",
    "contracts",
    "plane",
    "devcluster",
    "tests",
)
DECISIONS = [int(number) for number in re.findall(r"^- \*\*D(\d+) ", TEXT, re.MULTILINE)]
HELD_BY = {
    int(number): re.findall(r"`(test_\w+)`", tests)
    for number, tests in re.findall(r"^\| D(\d+) \| (.+) \|$", TEXT, re.MULTILINE)
}


def test_every_decision_names_tests_that_exist() -> None:
    assert DECISIONS == list(range(1, len(DECISIONS) + 1)) == list(HELD_BY)
    text = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")))
    known = set(re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE))
    assert all(HELD_BY.values())
    assert not {number: set(tests) - known for number, tests in HELD_BY.items() if set(tests) - known}


def test_every_file_of_the_page_is_there() -> None:
    named = set(re.findall(r"`([\w/.]+\.(?:py|c))`", TEXT))
    files = [f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    assert len(named) > 20
    assert not [name for name in named if not any(file.endswith(f"/{name}") for file in files)]


def test_one_module_calls_cuda() -> None:
    """D13; Triton reaches the GPU by itself."""
    sources = sorted((ROOT / "server" / "slipway_server").rglob("*.py"))
    callers = [path.name for path in sources if re.search(r"\btorch\.cuda\b|\.cuda\(", path.read_text())]
    assert callers == ["cuda.py"]
