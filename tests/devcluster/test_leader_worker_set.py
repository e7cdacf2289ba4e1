"""LeaderWorkerSet for the development cluster: its version, and its own manifests with the few changes of ours."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from devcluster import pins
from devcluster.gobuild import required_version
from devcluster.node import leader_worker_set
from testkit.cluster.tools import tool

# The parts of its manifests that ours changes; the rest is applied as it comes.
UPSTREAM = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: lws-controller-manager, namespace: lws-system}
spec:
  replicas: 2
  template:
    spec:
      securityContext: {runAsNonRoot: true}
      containers:
      - name: manager
        image: us-central1-docker.pkg.dev/k8s-staging-images/lws/lws:main
        resources: {requests: {cpu: 1, memory: 1Gi}}
        readinessProbe: {periodSeconds: 10, initialDelaySeconds: 5}
"""
WEBHOOKS = """
---
apiVersion: admissionregistration.k8s.io/v1
kind: %sWebhookConfiguration
metadata: {name: lws}
webhooks: [{name: sets.kb.io}, {name: pods.kb.io}]
"""


def test_its_version_is_the_one_that_is_built() -> None:
    version = required_version(pins.MODULES["lws"], "sigs.k8s.io/lws")
    assert leader_worker_set.ADDON.reference == f"localhost/slipway-lws:{version}"
    assert pins.LWS in dict(pins.MODULES["lws"].binaries)


@pytest.mark.integration
def test_its_manifests_take_our_changes(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "default"
    folder.mkdir(parents=True)
    (folder / "all.yaml").write_text(UPSTREAM + WEBHOOKS % "Mutating" + WEBHOOKS % "Validating")
    (folder / "kustomization.yaml").write_text("resources: [all.yaml]\n")
    (tmp_path / "kustomization.yaml").write_text(leader_worker_set.kustomization("localhost/ours:v1"))
    done = subprocess.run([tool("kubectl"), "kustomize", str(tmp_path)], capture_output=True, text=True, check=True)
    found = {item["kind"]: item for item in yaml.safe_load_all(done.stdout)}
    spec = found["Deployment"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["replicas"], container["image"]) == (1, "localhost/ours:v1")
    assert spec["template"]["spec"]["securityContext"] == {"runAsNonRoot": True, "runAsUser": 65532}
    assert container["resources"]["requests"] == {"cpu": "10m", "memory": "64Mi"}
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        sets, pods = found[kind]["webhooks"]
        assert "objectSelector" not in sets
        assert pods["objectSelector"]["matchExpressions"][0]["key"] == "leaderworkerset.sigs.k8s.io/name"
