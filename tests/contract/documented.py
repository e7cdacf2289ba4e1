"""docs/contracts.md as data: its tables and its code blocks."""

import re

import yaml

from testkit import ROOT

TEXT = (ROOT / "docs" / "contracts.md").read_text()


def ports() -> dict[tuple[str, str], int]:
    """(process, port name) → number."""
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| (\d+) \|", TEXT, re.MULTILINE)
    return {(process, name): int(number) for process, name, number in rows}


def traffic() -> dict:
    """The example of `status.traffic`."""
    return yaml.safe_load(_block("yaml"))["status"]["traffic"]


def routes() -> dict:
    """The example of `/internal/routes`."""
    return yaml.safe_load(_block("json"))


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found, f"docs/contracts.md has no {language} block"
    return found[1]
