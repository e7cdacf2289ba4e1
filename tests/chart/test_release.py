"""Install, upgrade and uninstall by the real helm on a real API server."""

from pathlib import Path

import pytest

from testkit.cluster.api import Api
from tests.chart.rendered import CHART, SCENARIOS, objects
from tests.chart.test_admission import object_path
from tests.crds.objects import model_deployment, path
from tests.support.api_server import CRD_FILES
from tests.support.tools import helm

pytestmark = pytest.mark.integration


def test_life_of_a_release(api: Api, api_server: Path, namespace: str) -> None:
    """The CRDs outlive the release, and with them every ModelDeployment; of the rest nothing stays."""
    assert api.post(path(namespace), model_deployment()).ok
    where = ("--kubeconfig", str(api_server), "--namespace", namespace)
    # The session's API server has the CRD already, as after an earlier uninstall by another release.
    _done(helm("install", "slipway", str(CHART), *where, "--take-ownership"))
    # What the operator writes there stays: who owns which model name (safety 14).
    names = f"/api/v1/namespaces/{namespace}/configmaps/slipway-model-names"
    assert api.merge(names, {"data": {"names.json": "{}"}}).ok
    ha = next(file for file in SCENARIOS if file.name.startswith("ha"))
    # CRDs of the Prometheus operator are not here.
    monitors = ",".join(f"metrics.{kind}.enabled=false" for kind in ("serviceMonitor", "podMonitor", "prometheusRule"))
    _done(helm("upgrade", "slipway", str(CHART), *where, "-f", str(ha), "--set", monitors))
    gateway = api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/slipway-gateway")
    assert gateway.body["spec"]["replicas"] == 3
    assert api.get(names).body["data"] == {"names.json": "{}"}
    _done(helm("uninstall", "slipway", *where))
    left = [item["kind"] for item in objects("default", namespace) if api.get(object_path(item)).ok]
    assert left == ["CustomResourceDefinition"] * len(CRD_FILES)
    assert api.get(path(namespace, "chat")).ok


def test_a_second_release_says_whose_the_crds_are_and_which_operator_competes(api_server: Path, namespace: str) -> None:
    """Helm wrote `invalid ownership metadata` and an annotation's key."""
    cluster = ("--kubeconfig", str(api_server))
    _done(helm("install", "first", str(CHART), *cluster, "--namespace", namespace, "--take-ownership"))
    second = ("install", "second", str(CHART), *cluster, "--namespace", "default", "--dry-run=server")
    try:
        refused = helm(*second)
        assert refused.returncode != 0
        assert f"is of the release first in namespace {namespace}: install this release with crds.install=false" in (
            refused.stderr
        )
        beside = helm(*second, "--set", "crds.install=false")
        _done(beside)
        assert f"The operator of {namespace}/first works in all namespaces too" in beside.stdout
        apart = helm(*second, "--set", "crds.install=false,rbac.namespaces={default}")
        _done(apart)
        assert "works in all namespaces too" not in apart.stdout
    finally:
        helm("uninstall", "first", *cluster, "--namespace", namespace)
    # What an uninstalled release has left may be taken over.
    _done(helm(*second, "--take-ownership"))


@pytest.mark.finding("L11")
@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor", "prometheusRule"])
def test_without_the_prometheus_operator_the_chart_says_what_is_missing(
    api_server: Path, namespace: str, kind: str
) -> None:
    """Helm wrote `no matches for kind`, once for each object."""
    where = (
        "--kubeconfig",
        str(api_server),
        "--namespace",
        namespace,
        "--dry-run=server",
        "--set",
        "crds.install=false",
    )
    done = helm("install", "slipway", str(CHART), *where, "--set", f"metrics.{kind}.enabled=true")
    name = kind[0].upper() + kind[1:]
    assert done.returncode != 0
    assert f"metrics.{kind}.enabled is set, but the cluster has no kind monitoring.coreos.com/v1/{name}" in done.stderr
    assert "install the Prometheus operator first" in done.stderr


def _done(run) -> None:
    assert run.returncode == 0, run.stderr
