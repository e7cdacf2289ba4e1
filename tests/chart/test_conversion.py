"""Conversion turned on and off by the real helm on a real API server, and the size of what helm stores of a release."""

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.controlplane import ControlPlane
from slipway_operator.conversion.server import ConversionCertificate
from slipway_operator.kube import auth
from slipway_operator.kube.client import Client
from slipway_operator.kube.writing import conversion_webhook
from slipway_operator.model.cluster.webhook_host import WebhookHost
from testkit.cluster.api import Api
from testkit.until import until
from tests.chart.rendered import CHART, NAMESPACE, scenario
from tests.support.tools import helm

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ON, OFF = ("--set", "operator.conversion.enabled=true"), ("--set", "operator.conversion.enabled=false")
HOST = WebhookHost(NAMESPACE, "slipway-conversion", "slipway-conversion-ca")
SECRET_BYTES = 1 << 20  # the API server takes no more data of a Secret, and helm writes one for each revision
SHARE = 0.75


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """Kubeconfig of an API server without CRDs, of these tests alone, with the kinds of the Prometheus operator."""
    with ControlPlane() as control_plane:
        with contextlib.closing(Api(control_plane.kubeconfig)) as session:
            for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
                assert session.post(CRDS, _monitoring(kind)).ok
        yield control_plane.kubeconfig


@pytest.fixture
def api(cluster: Path) -> Iterator[Api]:
    with contextlib.closing(Api(cluster)) as session:
        yield session


@pytest.fixture
def release(cluster: Path) -> Iterator[Path]:
    """A release with default values. The CRDs that it leaves go after it, and those of a former test before it."""
    with contextlib.closing(Api(cluster)) as session:
        until(lambda: session.get(CRDS).body["items"], "CRDs are gone", holds=lambda items: not _ours(items))
    _helm("install", cluster, str(CHART), "--create-namespace")
    yield cluster
    _helm("uninstall", cluster)
    with contextlib.closing(Api(cluster)) as session:
        for name in _ours(session.get(CRDS).body["items"]):
            assert session.delete(f"{CRDS}/{name}").ok


@pytest.fixture(autouse=True)
def port(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the chart, also where tests of the webhook itself have another one."""
    monkeypatch.setattr(conversion_webhook, "_PORT", 443)


async def test_conversion_goes_on_and_off_and_on(api: Api, release: Path) -> None:
    assert versions(api) == [("v1alpha1", True)]
    _helm("upgrade", release, str(CHART), *ON)
    assert versions(api) == [("v1alpha1", True), ("v1beta1", True)]
    await registered(release)
    webhook = conversion(api)["webhook"]
    assert webhook["clientConfig"]["caBundle"]
    _helm("upgrade", release, str(CHART), *ON, "--set", "operator.replicaCount=2")
    assert conversion(api)["webhook"] == webhook, "an upgrade leaves the operator's CA"
    _helm("upgrade", release, str(CHART), *OFF)
    assert versions(api) == [("v1alpha1", True)]
    assert conversion(api)["webhook"] == webhook, "there is no second version to call it for"
    # Back to a revision that had it, and to one that had not.
    _helm("rollback", release, "2")
    assert versions(api) == [("v1alpha1", True), ("v1beta1", True)]
    _helm("rollback", release, "1")
    assert versions(api) == [("v1alpha1", True)]


async def test_an_operator_registers_nothing_where_the_chart_serves_v1alpha1_alone(api: Api, release: Path) -> None:
    before = api.get(f"{CRDS}/tenants.slipway.dev").body["metadata"]["resourceVersion"]
    await registered(release)
    assert api.get(f"{CRDS}/tenants.slipway.dev").body["metadata"]["resourceVersion"] == before


def test_the_release_fits_a_secret_with_room_for_more(api: Api, release: Path) -> None:
    """Where it did not, no install would work: helm writes chart and manifest into one Secret."""
    _helm("upgrade", release, str(CHART), *ON, "-f", str(scenario("ha")))
    sizes = stored_bytes(api)
    for what, size in zip(("default", "everything on"), sizes, strict=True):
        print(f"release of helm, {what}: {size} bytes, {size / SECRET_BYTES:.2f} of what a Secret takes")
    assert max(sizes) < SHARE * SECRET_BYTES


async def registered(kubeconfig: Path) -> None:
    """Name the webhook in the CRDs as the operator does, once."""
    async with Client(await auth.load(str(kubeconfig)), may_write=lambda: True) as client:
        await ConversionCertificate(client, HOST).keep()


def versions(api: Api) -> list[tuple[str, bool]]:
    """Names of the versions of the four kinds, and whether they are served; they are the same of each."""
    crds = [api.get(f"{CRDS}/{plural}.slipway.dev").body for plural in conversion_webhook.PLURALS]
    found = [[(version["name"], version["served"]) for version in crd["spec"]["versions"]] for crd in crds]
    assert all(of_one == found[0] for of_one in found)
    return found[0]


def conversion(api: Api) -> dict[str, Any]:
    return dict(api.get(f"{CRDS}/modeldeployments.slipway.dev").body["spec"]["conversion"])


def stored_bytes(api: Api) -> list[int]:
    """Of the revisions of the release, the first one first."""
    items = api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets").body["items"]
    releases = [item for item in items if item["type"] == "helm.sh/release.v1"]
    releases.sort(key=lambda item: int(item["metadata"]["labels"]["version"]))
    return [sum(len(base64.b64decode(value)) for value in item["data"].values()) for item in releases]


def _ours(crds: list[dict[str, Any]]) -> list[str]:
    return [crd["metadata"]["name"] for crd in crds if crd["spec"]["group"] == "slipway.dev"]


def _monitoring(kind: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": f"{kind.lower()}s"}
    group = "monitoring.coreos.com"
    return {
        "metadata": {"name": f"{names['plural']}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _helm(command: str, kubeconfig: Path, *arguments: str) -> None:
    done = helm(command, "slipway", *arguments, "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE)
    assert done.returncode == 0, done.stderr
