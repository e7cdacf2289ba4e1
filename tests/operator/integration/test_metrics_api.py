"""The metrics API behind a real API server's aggregation, and the real autoscaler's controller that reads it."""

import asyncio
import base64
import contextlib
import gc
import json
import platform
import ssl
import subprocess
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from devcluster import controlplane
from devcluster.places import places
from devcluster.ports import reserve_port
from devcluster.processes import dies_with_parent
from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import (
    API_SERVICES,
    AUTOSCALERS,
    CLUSTER_ROLES,
    MODEL_DEPLOYMENTS,
    SERVICES,
)
from slipway_operator.kube.writing.aggregation import Host, front_proxy
from slipway_operator.manifests.autoscaler import CUSTOM, EXTERNAL, has_fields, horizontal_pod_autoscaler
from slipway_operator.manifests.owner import Owner
from slipway_operator.metrics_api import certificate
from slipway_operator.metrics_api.exposition import ExposedSample
from slipway_operator.metrics_api.sampler import MetricsSampler
from slipway_operator.metrics_api.series import Followed, PodTarget
from slipway_operator.metrics_api.server import MetricsApi
from slipway_operator.model.deployment.autoscaling import parse_autoscaling
from testkit.until import WaitFailed, until_async
from tests.support.tools import kubectl

# When the server ends in the middle of a handshake, only asyncio has a handle of the connection.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
GROUPS = ("v1beta2.custom.metrics.k8s.io", "v1beta1.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io")
SCALED = {
    "minReplicas": 1,
    "maxReplicas": 8,
    "metrics": [{"type": "QueueDepth", "target": "4"}],
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
}


class Pods:
    """Readings of pods that do not exist, added again and again as a sampler adds them."""

    def __init__(self, sampler, key, uid):
        self._sampler, self._key, self._uid = sampler, key, uid
        self.waiting = 12

    def report(self):
        self._sampler.follow(self._key, Followed(self._uid, (PodTarget("chat-r1-a", "127.0.0.1", "r1"),), 1, True))
        series = self._sampler.peek(self._key)
        now = self._sampler.clock()
        series.add_reading("chat-r1-a", ExposedSample(self.waiting, 1, 100, 0.5), now)
        series.add_gateways(3, now)


@pytest.fixture(scope="module", autouse=True)
def unclosed():
    """They are not left for the tests of another file to find."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
async def host(client, namespace):
    """A Service that leads to this machine, and the role that owns the registrations."""
    name = f"metrics-api-{namespace}"
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [],
    }
    await client.request("POST", CLUSTER_ROLES.path(), [], role)
    service = {
        "metadata": {"name": "operator-metrics", "namespace": namespace},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }
    await client.create(SERVICES, service)
    return Host(namespace, "operator-metrics", name)


@pytest.fixture
async def served(client, namespace, chat, host, registrations, monkeypatch):
    """The metrics API, registered and running; the providers that it reported; its pods."""
    uid = chat["metadata"]["uid"]
    sampler = MetricsSampler(None, None)  # the test adds the readings
    pods = Pods(sampler, (namespace, "chat"), uid)
    pods.report()
    port = reserve_port()
    # The front proxy dials the Service's port, and here no kube-proxy leads from 443 to ours.
    monkeypatch.setattr("slipway_operator.kube.writing.aggregation._PORT", port)
    reported = []
    api = MetricsApi(client, sampler, host, port, reported.append)
    await api.keep()
    yield api, reported, pods
    await api._stop()


async def raw(api_server, path):
    return await asyncio.to_thread(kubectl, api_server, "get", "--raw", path)


async def available(client, name):
    conditions = (await client.get(API_SERVICES, None, name)).get("status", {}).get("conditions") or ()
    return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)


async def everywhere(client):
    for name in GROUPS:
        await until_async(lambda name=name: available(client, name), f"{name} is available")


async def test_kubectl_reads_every_series_through_the_api_server(client, api_server, namespace, served):
    _, reported, _ = served
    await everywhere(client)
    assert reported == [{CUSTOM: "", EXTERNAL: ""}]
    for version in ("v1beta1", "v1beta2"):
        path = f"/apis/{CUSTOM}/{version}/namespaces/{namespace}"
        single = await raw(api_server, f"{path}/modeldeployments.slipway.dev/chat/slipway_queue_depth")
        assert single.returncode == 0, single.stderr
        assert [item["value"] for item in json.loads(single.stdout)["items"]] == ["12"]
    inflight = await raw(api_server, f"{path}/modeldeployments.slipway.dev/chat/slipway_in_flight")
    assert [item["value"] for item in json.loads(inflight.stdout)["items"]] == ["3"]
    pods = await raw(
        api_server, f"{path}/pods/*/slipway_kv_cache_usage?labelSelector=slipway.dev/modeldeployment%3Dchat"
    )
    assert [item["value"] for item in json.loads(pods.stdout)["items"]] == ["500m"]
    path = f"/apis/{EXTERNAL}/v1beta1/namespaces/{namespace}/slipway_queue_depth"
    external = await raw(api_server, f"{path}?labelSelector=slipway.dev/modeldeployment%3Dchat")
    assert [item["value"] for item in json.loads(external.stdout)["items"]] == ["12"]


async def test_discovery_and_errors_arrive_as_they_are(client, api_server, namespace, served):
    await everywhere(client)
    listed = await raw(api_server, f"/apis/{CUSTOM}/v1beta2")
    assert "modeldeployments.slipway.dev/slipway_queue_depth" in listed.stdout
    path = f"/apis/{CUSTOM}/v1beta2/namespaces/{namespace}/modeldeployments.slipway.dev/chat"
    unknown = await raw(api_server, f"{path}/slipway_tokens_per_second")
    assert unknown.returncode != 0
    assert "slipway_tokens_per_second has no fresh value: ModelDeployment chat" in unknown.stderr
    missing = await raw(api_server, f"{path}/slipway_joy")
    assert "NotFound" in missing.stderr and "there is no metric slipway_joy" in missing.stderr


async def test_only_the_front_proxy_gets_through_tls(client, served):
    """Without a certificate, and with one of the cluster's ordinary authority, there is not even an HTTP answer."""
    api, _, _ = served
    ours = await client.credentials()
    for certificate_path, key_path in ((None, None), (ours.certificate_path, ours.key_path)):
        context = ssl.create_default_context(cadata=api._served.own.certificate)
        context.check_hostname = False
        if certificate_path:
            context.load_cert_chain(certificate_path, key_path)
        async with aiohttp.ClientSession() as session:
            with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                await session.get(f"https://localhost:{api.port}/apis/{CUSTOM}", ssl=context)


def test_the_certificate_is_for_its_service_alone():
    made = x509.load_pem_x509_certificate(certificate.make("operator-metrics.slipway.svc", NOW).certificate.encode())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["operator-metrics.slipway.svc"]
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_the_certificate_outlives_its_renewal():
    made = x509.load_pem_x509_certificate(certificate.make("a.b.svc", NOW).certificate.encode())
    assert made.not_valid_before_utc < NOW
    assert made.not_valid_after_utc == NOW + timedelta(days=certificate.DAYS)


async def test_registrations_name_their_authority_and_go_with_their_release(client, served, host):
    api, _, _ = served
    role = await client.get(CLUSTER_ROLES, None, host.owner)
    for name in GROUPS:
        live = await client.get(API_SERVICES, None, name)
        assert base64.b64decode(live["spec"]["caBundle"]).decode() == api._served.own.certificate
        assert not live["spec"].get("insecureSkipTLSVerify")
        assert [owner["uid"] for owner in live["metadata"]["ownerReferences"]] == [role["metadata"]["uid"]]
    first = await client.get(API_SERVICES, None, GROUPS[0])
    second = await client.get(API_SERVICES, None, GROUPS[1])
    assert first["spec"]["versionPriority"] > second["spec"]["versionPriority"]


async def test_second_check_writes_nothing(client, served):
    api, reported, _ = served
    before = [(await client.get(API_SERVICES, None, name))["metadata"]["resourceVersion"] for name in GROUPS]
    writes = []
    client._on_write = lambda kind, result: writes.append(kind)
    await api.keep()
    assert (writes, len(reported)) == ([], 1)
    assert len(before) == 3


async def test_foreign_api_service_is_kept_and_ours_are_removed(client, served, namespace):
    """A foreign APIService for one version of a group provides the whole group; the other group stays ours."""
    api, reported, _ = served
    ours = await client.get(API_SERVICES, None, GROUPS[1])
    foreign = {
        "apiVersion": ours["apiVersion"],
        "kind": ours["kind"],
        "metadata": {"name": GROUPS[1]},
        "spec": {**ours["spec"], "caBundle": None, "insecureSkipTLSVerify": True},
    }
    foreign["spec"]["service"] = {"namespace": namespace, "name": "prometheus-adapter", "port": 443}
    await client.apply(API_SERVICES, foreign)
    await api.keep()
    provider = f"Service {namespace}/prometheus-adapter (APIService {GROUPS[1]})"
    assert reported[-1] == api.providers() == {CUSTOM: provider, EXTERNAL: ""}
    with pytest.raises(NotFound):
        await client.get(API_SERVICES, None, GROUPS[0])
    kept = await client.get(API_SERVICES, None, GROUPS[1])
    assert kept["spec"]["service"]["name"] == "prometheus-adapter"
    await client.delete(API_SERVICES, None, GROUPS[1], kept["metadata"]["uid"])
    await api.keep()
    assert reported[-1] == {CUSTOM: "", EXTERNAL: ""}
    assert (await client.get(API_SERVICES, None, GROUPS[0]))["spec"]["service"]["name"] == "operator-metrics"


async def test_the_front_proxy_is_read_from_the_cluster(client):
    proxy = await front_proxy(client)
    assert "BEGIN CERTIFICATE" in proxy.ca
    assert proxy.names == {"front-proxy-client"}


def test_a_context_without_an_authority_is_refused():
    with pytest.raises(ssl.SSLError):
        certificate.server_context(certificate.make("a.b.svc", NOW), "nothing")


# --- the real controller ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def controller(api_server: Path, log: Path):
    """kube-controller-manager with this one controller, as every cluster runs it; only its period is shorter."""
    folder = controlplane.assets(places())
    if folder is None or not (folder / "kube-controller-manager").exists():
        pytest.skip("kube-controller-manager is not built")
    command = [
        str(folder / "kube-controller-manager"), f"--kubeconfig={api_server}", "--leader-elect=false",
        "--controllers=horizontal-pod-autoscaler-controller", "--horizontal-pod-autoscaler-sync-period=1s",
        "--use-service-account-credentials=false", f"--secure-port={reserve_port()}", f"--cert-dir={log.parent}",
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, preexec_fn=dies_with_parent())
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def scale_is(client, namespace, replicas):
    return (await client.get(MODEL_DEPLOYMENTS, namespace, "chat"))["spec"]["replicas"] == replicas


async def condition_of(client, namespace, kind):
    live = await client.get(AUTOSCALERS, namespace, "chat-autoscaler")
    return next((one for one in live.get("status", {}).get("conditions") or () if one["type"] == kind), {})


@pytest.mark.parametrize("group", [CUSTOM, EXTERNAL])
async def test_the_real_controller_scales_by_our_metrics_and_holds_when_they_are_stale(
    client, api_server, namespace, chat, served, tmp_path, group
):
    _, _, pods = served
    await everywhere(client)
    wanted = parse_autoscaling(SCALED)
    manifest = horizontal_pod_autoscaler(Owner.of(chat), wanted, group)
    await client.apply(AUTOSCALERS, manifest)
    live = await client.get(AUTOSCALERS, namespace, "chat-autoscaler")
    assert has_fields(live["spec"], manifest["spec"]), "what the API server made of it needs no correction"
    assert not has_fields(
        live["spec"], horizontal_pod_autoscaler(Owner.of(chat), replace(wanted, max_replicas=9), group)["spec"]
    )
    selector = "slipway.dev/modeldeployment=chat,slipway.dev/revision in (r1)"
    reported = await client.get(MODEL_DEPLOYMENTS, namespace, "chat")
    await client.put_status(MODEL_DEPLOYMENTS, {**reported, "status": {"replicas": 1, "selector": selector}})
    reporting = asyncio.create_task(report(pods))
    try:
        with controller(api_server, tmp_path / "controller.log"):
            await until_async(lambda: scale_is(client, namespace, 3), "12 waiting requests at 4 a pod are 3 pods")
            pods.waiting = 0
            await until_async(lambda: scale_is(client, namespace, 1), "no request waits: the minimum")
            reporting.cancel()
            pods._sampler.forget((namespace, "chat"))
            await until_async(lambda: inactive(client, namespace), "the controller reports that the metric is gone")
            assert await scale_is(client, namespace, 1)
            condition = await condition_of(client, namespace, "ScalingActive")
            assert "no ModelDeployment" in condition["message"]
    except (AssertionError, WaitFailed):
        print(
            (tmp_path / "controller.log").read_text()[-4000:],
            await client.get(AUTOSCALERS, namespace, "chat-autoscaler"),
        )
        raise
    finally:
        reporting.cancel()


async def report(pods):
    while True:
        pods.report()
        await asyncio.sleep(0.2)


async def inactive(client, namespace):
    return (await condition_of(client, namespace, "ScalingActive")).get("status") == "False"


@pytest.mark.finding("S12")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="what 0/0 is as an integer is the processor's choice")
@pytest.mark.parametrize("group", [CUSTOM, EXTERNAL])
async def test_the_real_controller_divides_by_the_pods_and_shows_no_number_without_one(
    client, api_server, namespace, chat, served, tmp_path, group
):
    """`kubectl get hpa` of a sleeping deployment: Kubernetes shows the value divided by no pods."""
    _, _, pods = served
    await everywhere(client)
    await client.apply(AUTOSCALERS, horizontal_pod_autoscaler(Owner.of(chat), parse_autoscaling(SCALED), group))
    reported = await client.get(MODEL_DEPLOYMENTS, namespace, "chat")
    await client.put_status(MODEL_DEPLOYMENTS, {**reported, "status": {"replicas": 0, "selector": "a=b"}})
    reporting = asyncio.create_task(report(pods))
    try:
        with controller(api_server, tmp_path / "controller.log"):
            await until_async(lambda: scale_is(client, namespace, 3), "it reads 12 and computes well nevertheless")
            await until_async(lambda: shows_no_number(api_server, namespace), "12/0")
            pods.waiting = 0
            await until_async(lambda: scale_is(client, namespace, 1), "it reads 0 and computes well nevertheless")
            await until_async(lambda: shows_no_number(api_server, namespace), "0/0")
    finally:
        reporting.cancel()


async def shows_no_number(api_server, namespace):
    """As docs/autoscaling.md states; when Kubernetes fixes it, remove that sentence and this test."""
    shown = await asyncio.to_thread(kubectl, api_server, "get", "hpa", "chat-autoscaler", "-n", namespace)
    return "-9223372036854775808m/4" in shown.stdout
