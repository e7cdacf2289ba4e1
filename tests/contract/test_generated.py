"""What is derived is up to date, and the imports keep their contracts."""

import os
import subprocess
import sys

from testkit import ROOT


def test_crds_their_copies_and_references_follow_the_api_types() -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_import_contracts() -> None:
    environment = {**os.environ, "PYTHONPATH": "operator:gateway:jobs:server:cli:console:process:contracts:plane"}
    linter = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(linter, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
