"""The control-plane profile, for real: several side by side, RBAC, death with its parent."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.controlplane import ControlPlane, assets
from devcluster.places import places
from testkit.until import until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    if assets(places()) is None:
        pytest.fail("not built: make tools")
    with ControlPlane() as running:
        yield running


def kubectl(control_plane: ControlPlane, kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(control_plane.kubectl), "--kubeconfig", str(kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_it_is_a_real_api_server(control_plane: ControlPlane) -> None:
    version = json.loads(kubectl(control_plane, control_plane.kubeconfig, "version", "-o", "json").stdout)
    assert version["serverVersion"]["gitVersion"].startswith("v1.")
    assert kubectl(control_plane, control_plane.kubeconfig, "create", "ns", "one").returncode == 0


def test_two_stand_side_by_side(control_plane: ControlPlane) -> None:
    with ControlPlane() as other:
        assert other.url != control_plane.url
        kubectl(other, other.kubeconfig, "create", "ns", "only-there")
        assert kubectl(control_plane, control_plane.kubeconfig, "get", "ns", "only-there").returncode != 0
    assert not other.kubeconfig.exists()


def test_rbac_is_on(control_plane: ControlPlane) -> None:
    guest = control_plane.user_kubeconfig("guest", ["guests"])
    refused = kubectl(control_plane, guest, "get", "secrets")
    assert "Forbidden" in refused.stderr and '"guest"' in refused.stderr


def test_it_dies_with_its_parent(control_plane: ControlPlane) -> None:
    code = (
        "from devcluster.controlplane import ControlPlane\n"
        "c = ControlPlane().__enter__(); print(c.url, c.kubeconfig.parent, flush=True); input()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert parent.stdout and parent.stdin
    url, folder = parent.stdout.readline().split()
    assert answers(url)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    until(lambda: not answers(url), "the API server ends with its parent")
    subprocess.run(["rm", "-rf", folder], check=True)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", context=ssl._create_unverified_context(), timeout=2):
            return True
    except OSError:
        return False
