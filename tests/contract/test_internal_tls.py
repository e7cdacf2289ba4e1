"""TLS inside the release: operator, gateway and server agree on names, files, ports and who is a client."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from slipway_gateway.routing import pods
from slipway_gateway.settings import GatewaySettings
from slipway_operator.kube.reading import gateways
from slipway_operator.manifests.pods import certificate, workload
from slipway_operator.metrics_api import sampler
from slipway_operator.metrics_api.sampler import MetricsSampler
from slipway_operator.metrics_api.series import PodTarget
from slipway_operator.model.cluster import certificates as issuing
from slipway_operator.outbound.inside import open_inside
from slipway_process.network import host_names, mutual_tls
from slipway_process.serving.tls import OPEN_PATHS
from slipway_server.settings import ServerSettings
from tests.contract.documented import TEXT
from tests.contract.test_pod import OWNER, _snapshot
from tests.operator.metrics_api.test_sampler import KnownGateways, gateway
from tests.support.certificates import HOST, NAMESPACE, PODS, install, issue, new_authority
from tests.support.settings import parsed

FIRST = new_authority()


def template() -> dict[str, Any]:
    snapshot = dataclasses.replace(_snapshot(), template_version=3, tls=True)
    found: dict[str, Any] = workload.replica_set(OWNER, snapshot, 1)["spec"]["template"]
    return found


def endpoint(namespace: str, address: str) -> str:
    """As a gateway reads the pod that the operator renders."""
    made = template()
    owner = {"kind": "ReplicaSet", "name": "chat-abcdefgh22", "uid": "u", "controller": True}
    metadata = {**made["metadata"], "namespace": namespace, "ownerReferences": [owner]}
    status = {"podIP": address, "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    found = pods.parse_pod({"metadata": metadata, "spec": made["spec"], "status": status})
    assert found
    return found.urls[0]


def test_the_server_reads_the_files_that_its_pod_mounts() -> None:
    server = template()["spec"]["containers"][0]
    settings = parsed(ServerSettings.parse, server["args"])
    [folder] = [mount["mountPath"] for mount in server["volumeMounts"] if mount["name"] == "pod-tls"]
    [volume] = [one["secret"] for one in template()["spec"]["volumes"] if one["name"] == "pod-tls"]
    named = (settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs)
    assert named == tuple(f"{folder}/{item['path']}" for item in volume["items"])
    assert {item["key"] for item in volume["items"]} == set(issue(PODS, FIRST).data())


def test_files_have_the_names_that_gateways_read() -> None:
    assert (mutual_tls.CERTIFICATE, mutual_tls.PRIVATE_KEY, mutual_tls.CA) == (
        issuing.CERTIFICATE,
        issuing.PRIVATE_KEY,
        issuing.CA,
    )


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7"])
def test_a_gateway_dials_the_name_in_the_certificate(address: str) -> None:
    url = endpoint("team-a", address)
    assert url == f"https://{host_names.host_name(address, 'team-a.pod.slipway.internal')}:8000"
    made = x509.load_pem_x509_certificate(issue(certificate.pods_of("team-a"), FIRST).certificate.encode())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["*.team-a.pod.slipway.internal"]


@pytest.mark.parametrize(
    ("role", "server", "client"),
    [(PODS, True, False), (certificate.GATEWAY, True, True), (certificate.OPERATOR, False, True)],
)
def test_only_gateways_and_the_operator_are_clients(role: issuing.Role, server: bool, client: bool) -> None:
    made = x509.load_pem_x509_certificate(issue(role, FIRST).certificate.encode())
    usages = set(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    wanted = {ExtendedKeyUsageOID.SERVER_AUTH} if server else set()
    assert usages == wanted | ({ExtendedKeyUsageOID.CLIENT_AUTH} if client else set())


def test_ports_have_the_names_and_numbers_of_the_page() -> None:
    assert f"| server with TLS | `{certificate.PORT_NAME}` | 8000 |" in TEXT
    assert f"| gateway with TLS inside | `{gateways.TLS_PORT_NAME}` | {GatewaySettings().internal_port} |" in TEXT
    assert pods.TLS_PORT_NAME == certificate.PORT_NAME


def test_what_is_open_is_what_probes_and_prometheus_read() -> None:
    assert frozenset({"/healthz", "/readyz", "/health", "/metrics"}) == OPEN_PATHS


async def test_the_operator_reads_metrics_of_a_pod_with_tls_by_its_name(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def page(request: web.Request) -> web.Response:
        assert mutual_tls.has_certificate(request.get_extra_info("peercert"))
        return web.Response(text="vllm:num_requests_waiting 3\nvllm:num_requests_running 1\n")

    app = web.Application()
    app.router.add_get("/metrics", page)
    files = mutual_tls.IdentityFiles.in_folder(install(tmp_path / "pod", issue(PODS, FIRST)))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=mutual_tls.reloaded_server_context(files)).start()
    monkeypatch.setattr(sampler, "PORT", runner.addresses[0][1])
    shown = issue(certificate.OPERATOR, FIRST)
    identity = mutual_tls.PemIdentity(shown.certificate, shown.private_key, shown.ca)
    try:
        async with open_inside(lambda: identity) as session:
            reader = MetricsSampler(KnownGateways(gateway()), session)
            found = await reader._read(PodTarget("a", "127.0.0.1", "r1", host=HOST))
            assert not isinstance(found, str), found
            assert isinstance(await reader._read(PodTarget("a", "127.0.0.1", "r1")), str), "HTTP"
    finally:
        await runner.cleanup()


def test_targets_have_names_where_the_revision_has_tls() -> None:
    assert (
        sampler._host({"metadata": {"namespace": NAMESPACE}}, _observed(tls=True), "r1-baseline", "127.0.0.1") == HOST
    )
    chat = {"metadata": {"namespace": NAMESPACE}}
    assert sampler._host(chat, _observed(tls=True), "r1-baseline", "127.0.0.1") == HOST
    assert sampler._host(chat, _observed(tls=True), "r1", "no address") == ""
    assert sampler._host(chat, _observed(tls=False), "r1", "127.0.0.1") == ""


def _observed(*, tls: bool) -> Any:
    return SimpleNamespace(snapshots={"r1": dataclasses.replace(_snapshot(), tls=tls)})
