"""What is derived is up to date, and the imports keep their contracts."""

import os
import subprocess
import sys
from collections.abc import Iterator

import yaml

from testkit import ROOT


def test_crds_their_copies_and_references_follow_the_api_types() -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_import_contracts() -> None:
    environment = {**os.environ, "PYTHONPATH": "operator:gateway:jobs:server:cli:console:process:contracts:plane"}
    linter = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(linter, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_field_of_a_crd_is_a_boolean_to_a_parser_of_yaml_1_1() -> None:
    """Helm reads a key `n` as false: the installed CRD had no such field, and the API server dropped it."""

    def keys(node: object) -> Iterator[object]:
        for key, child in node.items() if isinstance(node, dict) else ():
            yield key
            yield from keys(child)
        for child in node if isinstance(node, list) else ():
            yield from keys(child)

    booleans = {"y", "n", "yes", "no", "on", "off", "true", "false"}
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        names = {str(key).lower() for key in keys(yaml.load(path.read_text(), yaml.CSafeLoader))}
        assert not names & booleans, path.name
