"""The real command-line tools: from PATH when new enough, else devcluster's own builds."""

import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from devcluster import tools
from devcluster.errors import DevclusterError
from devcluster.places import places


@functools.cache
def tool(name: str) -> str:
    """Path of a binary. Without it the test fails, and says how to get it: `make tools` builds all of them."""
    try:
        return str(tools.tool(places(), name))
    except DevclusterError as missing:
        pytest.fail(str(missing))


def kubectl(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl against a test's API server; its exit code is the test's business."""
    return _run([tool("kubectl"), "--kubeconfig", str(kubeconfig), *arguments])


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm; its exit code is the test's business."""
    return _run([tool("helm"), *arguments])


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
