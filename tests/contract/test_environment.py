"""Only settings read the environment, in every package."""

import ast
from collections.abc import Iterator

from tests.support.api_server import ROOT

PACKAGES = ("operator", "gateway", "jobs", "server", "cli", "process", "contracts", "plane")
READERS = {
    "process/slipway_process/settings.py",
    "cli/slipway_cli/settings.py",
    # The engine process: its variables are made by the HTTP process, which passes its own on.
    "server/slipway_server/environment.py",
    # The compiler of the C kernels is a script that runs before the package can be imported.
    "server/slipway_server/kernels/c/build.py",
}
NAMES = {"environ", "environb", "getenv", "getenvb", "putenv"}


def readers() -> Iterator[str]:
    for package in PACKAGES:
        for path in (ROOT / package / f"slipway_{package}").rglob("*.py"):
            if any(map(_names_the_environment, ast.walk(ast.parse(path.read_text())))):
                yield str(path.relative_to(ROOT))


def _names_the_environment(node: ast.AST) -> bool:
    """`os.environ`, and also `from os import environ`."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(alias.name in NAMES for alias in node.names)
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os" and node.attr in NAMES


def test_only_settings_read_the_environment() -> None:
    assert set(readers()) == READERS
