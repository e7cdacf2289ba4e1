"""kubectl and helm whose failure a test reads."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from testkit.cluster.tools import tool


def kubectl(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl against a test's API server; its exit code is the test's business."""
    return _run([tool("kubectl"), "--kubeconfig", str(kubeconfig), *arguments])


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm; its exit code is the test's business."""
    return _run([tool("helm"), *arguments])


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
