"""The real console script with a kubeconfig and a home of its own, and without the settings of any user."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.cluster.tools import tool
from tests.operator.integration.conftest import client, cluster, operator_flags

__all__ = ["client", "cluster", "operator_flags"]

SCRIPTS = Path(sys.executable).parent
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user's shell without any settings."""
    return {"PATH": os.pathsep.join([str(SCRIPTS), os.environ["PATH"]]), "HOME": str(tmp_path), "LANG": "C.UTF-8"}


@pytest.fixture
def slipway(environment: dict[str, str], api_server: Path, namespace: str) -> Run:
    """Runs `slipway` about the namespace of the test; `kubeconfig` names another one than the administrator's."""

    # Some commands call kubectl: a machine may have only the one that devcluster built.
    path = {"PATH": os.pathsep.join([environment["PATH"], str(Path(tool("kubectl")).parent)])}

    def run(*arguments: str, kubeconfig: Path = api_server, **more: str) -> subprocess.CompletedProcess[str]:
        return _run([str(SCRIPTS / "slipway"), "-n", namespace, *arguments], environment | path, kubeconfig, more)

    return run


@pytest.fixture
def kubectl(environment: dict[str, str], api_server: Path) -> Run:
    """Runs the real kubectl, which finds its plugins on PATH."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return _run([tool("kubectl"), *arguments], environment, api_server, more)

    return run


def _run(
    command: list[str], environment: dict[str, str], kubeconfig: Path, more: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    variables = environment | {"KUBECONFIG": str(kubeconfig)} | more
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, check=False)
