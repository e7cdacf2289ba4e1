"""The real cert-manager issues, renews and changes its CA; gateway and operator connect by what the operator copies."""

import asyncio
import base64
import contextlib

import pytest
from cryptography import x509

from devcluster.ports import reserve_port
from slipway_operator.kube.resources import CERTIFICATES, ENDPOINT_SLICES, MODEL_DEPLOYMENTS, SECRETS
from slipway_operator.manifests.pods.certificate import NAME
from slipway_operator.model.cluster.certificates import Issued
from testkit.until import until_async
from testkit.world.rights import grant, issuer_rules, limited_kubeconfig
from testkit.world.slipway import Cluster
from tests.chart.rendered import find, objects
from tests.support.cert_manager import ca_issuer, install, real_controller, renew
from tests.support.certificates import install as install_files

from .conftest import MANIFEST
from .test_cert_manager import CA, GATEWAYS, field, issuer_of, secret
from .test_certificates import slice_of

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.attack_class(2)]

LOOK_S = 90  # the operator looks once a minute


@pytest.fixture
async def cert_manager(client, namespace, api_server, tmp_path):
    await install(client)
    log = tmp_path / "cert-manager.log"
    with real_controller(api_server, log) as process:
        await ca_issuer(client, namespace)
        yield log
        assert process.poll() is None, log.read_text()[-2000:]


@pytest.fixture
async def release(client, namespace, api_server, tmp_path, cert_manager):
    """Operator and gateway; the gateway has no port but that with TLS for reports, and starts with its certificate."""
    await grant(client, namespace, "issuer", issuer_rules())
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    port, folder = reserve_port(), tmp_path / "internal-tls"
    made = Cluster(
        client,
        namespace,
        api_server,
        limited,
        tmp_path,
        operator_flags=(f"--internal-ca-secret={CA}", "--tls-new-revisions=on", "--internal-issuer=Issuer/internal"),
        gateway_flags=("--auth-mode=off", f"--internal-tls-dir={folder}", f"--internal-port={port}"),
    )
    await client.create(ENDPOINT_SLICES, slice_of(namespace, port))
    await made.operator.start()
    pods = asyncio.create_task(made.run_pods())
    try:
        found = await secret(client, namespace, GATEWAYS)
        install_files(folder, Issued(*(field(found, name) for name in ("tls.crt", "tls.key", "ca.crt"))))
        await made.gateway.start()
        yield made
    finally:
        pods.cancel()
        await asyncio.gather(made.operator.stop(), made.gateway.stop())
        with contextlib.suppress(asyncio.CancelledError):
            await pods


async def changed(client, namespace, name, data_field, former):
    async def look():
        return (await client.get(SECRETS, namespace, name))["data"][data_field]

    return await until_async(look, f"another {data_field} of {name}", LOOK_S, holds=lambda text: text != former)


@pytest.mark.timeout(400, func_only=True)
async def test_a_release_with_certificates_of_cert_manager_goes_on_through_renewals_and_another_ca(release):
    client, namespace = release.client, release.namespace
    await client.create(MODEL_DEPLOYMENTS, MANIFEST | {"metadata": {"name": "chat", "namespace": namespace}})
    status = await release.reaches("healthy", lambda status: status.get("phase") == "Healthy")
    assert status["traffic"]["acknowledged"], "the gateway has a port with TLS alone"

    pods, ca = await secret(client, namespace, NAME), await secret(client, namespace, "internal-ca")
    root = x509.load_pem_x509_certificate(field(ca, "tls.crt").encode())
    leaf = x509.load_pem_x509_certificate(field(pods, "tls.crt").encode())
    leaf.verify_directly_issued_by(root)
    assert field(pods, "ca.crt") == field(ca, "tls.crt")
    assert (leaf.not_valid_after_utc - leaf.not_valid_before_utc).days == 90
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == [f"*.{namespace}.pod.slipway.internal"]

    name = f"slipway-internal-pods-{namespace}"
    await renew(client, namespace, name)
    renewed = await changed(client, namespace, NAME, "tls.crt", pods["data"]["tls.crt"])
    assert renewed == (await client.get(SECRETS, namespace, name))["data"]["tls.crt"]

    # Another CA of the issuer: it is trusted everywhere at once, and signs after a day.
    await renew(client, namespace, "internal-ca")
    await changed(client, namespace, "internal-ca", "tls.crt", ca["data"]["tls.crt"])
    await renew(client, namespace, name)
    both = await changed(client, namespace, GATEWAYS, "ca.crt", pods["data"]["ca.crt"])
    assert len(x509.load_pem_x509_certificates(base64.b64decode(both))) == 2
    await changed(client, namespace, NAME, "ca.crt", pods["data"]["ca.crt"])
    assert (await client.get(SECRETS, namespace, NAME))["data"]["tls.crt"] == renewed


async def test_the_charts_certificate_of_the_api_port_is_issued(client, namespace, cert_manager):
    values = {"gateway": {"tls": {"issuerRef": {"name": "internal"}}}}
    wanted = find(objects(namespace=namespace, values=values), "Certificate", "slipway-gateway-tls")
    await client.create(CERTIFICATES, wanted)
    found = await secret(client, namespace, "slipway-gateway-tls")
    assert issuer_of(found) == x509.load_pem_x509_certificate(field(found, "ca.crt").encode()).subject
    leaf = x509.load_pem_x509_certificate(field(found, "tls.crt").encode())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"slipway-gateway.{namespace}.svc" in names.get_values_for_type(x509.DNSName)
