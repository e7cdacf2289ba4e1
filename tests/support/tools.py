"""The real command-line tools: devcluster's own builds first, then PATH."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from devcluster.places import places


def tool(name: str) -> str:
    """Path of a binary. Without it the test is skipped, and the reason says how to get it."""
    built = places().binary(name)
    found = str(built) if built.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"no {name}: run `python -m devcluster build tools`, or install it")
    return found


def kubectl(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl against a test's API server; its exit code is the test's business."""
    return _run([tool("kubectl"), "--kubeconfig", str(kubeconfig), *arguments])


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm; its exit code is the test's business."""
    return _run([tool("helm"), *arguments])


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
