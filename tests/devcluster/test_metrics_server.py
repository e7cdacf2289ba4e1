"""metrics-server for the development cluster: its version, and its own manifests with the few changes of ours."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from devcluster import pins
from devcluster.errors import DevclusterError
from devcluster.gobuild import required_version
from devcluster.node import metrics_server
from testkit.cluster.tools import tool

# The parts of its Deployment that ours changes; the rest of its manifests is applied as it comes.
UPSTREAM = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: metrics-server, namespace: kube-system}
spec:
  template:
    spec:
      containers:
      - name: metrics-server
        image: gcr.io/k8s-staging-metrics-server/metrics-server:master
        args: [--cert-dir=/tmp, --secure-port=10250]
        resources: {requests: {cpu: 100m, memory: 200Mi}}
        readinessProbe: {periodSeconds: 10, initialDelaySeconds: 20}
"""


def test_its_version_is_the_one_that_is_built() -> None:
    version = required_version(pins.MODULES["kube"], "sigs.k8s.io/metrics-server")
    assert metrics_server.ADDON.reference == f"localhost/slipway-metrics-server:{version}"
    assert version.startswith("v") and "metrics-server" in dict(pins.MODULES["kube"].binaries)


def test_what_a_module_does_not_require_itself_is_an_error() -> None:
    with pytest.raises(DevclusterError, match="does not name one version of"):
        required_version(pins.MODULES["kube"], "example.test/absent")


@pytest.mark.integration
def test_its_manifests_take_our_changes(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "deployment.yaml").write_text(UPSTREAM)
    (tmp_path / "base" / "kustomization.yaml").write_text("resources: [deployment.yaml]\n")
    (tmp_path / "kustomization.yaml").write_text(metrics_server.kustomization("localhost/ours:v1"))
    done = subprocess.run([tool("kubectl"), "kustomize", str(tmp_path)], capture_output=True, text=True, check=True)
    (container,) = yaml.safe_load(done.stdout)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "localhost/ours:v1"
    assert container["args"] == ["--cert-dir=/tmp", "--secure-port=10250", "--kubelet-insecure-tls"]
    assert container["resources"]["requests"] == {"cpu": "10m", "memory": "200Mi"}
