"""The operator's image has the programs that the operator and the gateway run: its build looks for each."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for name in ("operator", "gateway") for path in (ROOT / name).rglob("*.py")]
STARTS = re.compile(r"subprocess|os\.(system|popen|exec|spawn|posix_spawn)")


def programs(path: Path) -> set[str]:
    """The first words of the commands in a file that starts processes."""
    text = path.read_text()
    if not STARTS.search(text):
        return set()
    assigned = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assign)]
    commands = [node.value for node in assigned if _names(node) == ["command"]]
    assert commands, f"{path.relative_to(ROOT)} starts a process: put its words into a name called command"
    return {str(_first(command)) for command in commands}


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _first(node: ast.expr) -> object:
    """The first word of a tuple or list, also of one that is unpacked into it."""
    while not isinstance(node, ast.Constant):
        node = node.value if isinstance(node, ast.Starred) else node.elts[0]  # type: ignore[attr-defined]
    return node.value


def test_the_build_of_the_image_looks_for_each_program() -> None:
    wanted = set().union(*map(programs, SOURCES))
    final = (ROOT / "Dockerfile.operator").read_text().rpartition("\nFROM ")[2]
    assert wanted == {"openssl"}
    assert wanted <= set(re.findall(r"command -v (\S+)", final))
