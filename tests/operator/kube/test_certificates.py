"""Who keeps the release's certificates: made once, the same after a restart, rotated, given to namespaces."""

import base64
import ssl
import time

import pytest
from cryptography import x509

from slipway_operator.kube.errors import NotFound, Refused, Unavailable
from slipway_operator.kube.resources import SECRETS
from slipway_operator.kube.secrets.certificates import Certificates, CertificateSecrets
from slipway_operator.kube.secrets.kept import AGAIN_AFTER_S
from slipway_operator.model.cluster import authorities
from slipway_operator.model.cluster.authorities import DAY_S, Terms
from slipway_process.network import mutual_tls
from tests.operator.kube.test_keys import Server

pytestmark = pytest.mark.attack_class(2, 14)

NAMES = CertificateSecrets("sys", "slipway-internal-ca", "slipway-gateway-internal-tls")


class Clock:
    def __init__(self):
        self.now = time.time()  # handshakes compare with it

    def __call__(self):
        return self.now


def keeper(server, clock, *namespaces):
    return Certificates(server, NAMES, lambda: [(name, "chat") for name in namespaces], Terms(), clock)


def field(server, name, key, namespace="sys"):
    return base64.b64decode(server.objects[namespace, name]["data"][key]).decode()


def identity(server, name, namespace="sys"):
    return mutual_tls.PemIdentity(*(field(server, name, key, namespace) for key in ("tls.crt", "tls.key", "ca.crt")))


def handshake(client, server, name):
    """Whether both sides finish a handshake, in memory; raises ssl.SSLError of the side that refuses."""
    ends = [ssl.MemoryBIO() for _ in range(2)]
    connects = client.wrap_bio(ends[0], ends[1], server_hostname=name)
    accepts = server.wrap_bio(ends[1], ends[0], server_side=True)
    done = set()
    for _ in range(6):
        for side in (connects, accepts):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
    assert done == {connects, accepts}
    return accepts.getpeercert()


async def made(clock, *namespaces):
    server = Server()
    kept = keeper(server, clock, *namespaces)
    for namespace in namespaces:
        await kept.keep(namespace)
    return server, kept


async def test_a_gateway_and_a_pod_connect_by_the_names_of_their_addresses():
    server, _ = await made(Clock(), "team-a")
    gateway, pod = identity(server, NAMES.gateways), identity(server, "slipway-pod-tls", "team-a")
    name = "10-0-0-7.team-a.pod.slipway.internal"
    peer = handshake(mutual_tls.client_context(gateway), mutual_tls.server_context(pod), name)
    assert mutual_tls.has_certificate(peer)


async def test_the_operator_connects_to_a_gateway():
    server, kept = await made(Clock(), "team-a")
    gateway = identity(server, NAMES.gateways)
    assert handshake(
        mutual_tls.client_context(kept.identity()),
        mutual_tls.server_context(gateway),
        "10-0-0-9.gateway.slipway.internal",
    )


@pytest.mark.parametrize("name", ["10-0-0-7.team-b.pod.slipway.internal", "10-0-0-7.gateway.slipway.internal"])
async def test_a_pod_of_another_namespace_is_no_pod_of_this_one_and_no_gateway(name):
    server, _ = await made(Clock(), "team-a", "team-b")
    gateway, pod = identity(server, NAMES.gateways), identity(server, "slipway-pod-tls", "team-a")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(mutual_tls.client_context(gateway), mutual_tls.server_context(pod), name)


async def test_a_pods_certificate_is_none_of_a_client():
    server, _ = await made(Clock(), "team-a")
    pod = identity(server, "slipway-pod-tls", "team-a")
    with pytest.raises(ssl.SSLError, match="unsuitable certificate purpose"):
        handshake(
            mutual_tls.client_context(pod), mutual_tls.server_context(pod), "10-0-0-7.team-a.pod.slipway.internal"
        )


async def test_a_restarted_operator_writes_the_same_certificates():
    clock = Clock()
    server, _ = await made(clock, "team-a")
    before = {key: item["data"] for key, item in server.objects.items()}
    again = keeper(server, clock, "team-a")
    await again.look()
    await again.keep("team-a")
    assert {key: item["data"] for key, item in server.objects.items()} == before


async def test_a_certificate_is_renewed_long_before_it_is_over():
    clock = Clock()
    server, kept = await made(clock, "team-a")
    seen = set()
    for _ in range(130):
        clock.now += DAY_S
        await kept.keep("team-a")
        found = x509.load_pem_x509_certificate(field(server, "slipway-pod-tls", "tls.crt", "team-a").encode())
        assert found.not_valid_after_utc.timestamp() - clock.now >= 29 * DAY_S
        assert found.not_valid_before_utc.timestamp() < clock.now
        seen.add(found.serial_number)
    assert len(seen) in (3, 4)


async def test_certificates_before_and_after_each_step_of_a_rotation_fit_together():
    clock = Clock()
    server, kept = await made(clock, "team-a")
    ids, before = [], []
    for _ in range(470):
        clock.now += DAY_S
        await kept.look()
        await kept.keep("team-a")
        ids.append(tuple(one.id for one in authorities.parse(server.objects["sys", NAMES.authorities]["data"])))
        pair = identity(server, NAMES.gateways), identity(server, "slipway-pod-tls", "team-a")
        # Without their times, which a handshake compares with the machine's clock: signer and trust alone.
        issuers = [x509.load_pem_x509_certificate(one.certificate.encode()) for one in pair]
        trusted = [{a.subject for a in x509.load_pem_x509_certificates(one.ca.encode())} for one in pair]
        for known in trusted + before:
            assert {one.issuer for one in issuers} <= known
        before = trusted
    assert len(set(ids)) == 4
    assert ids[0] != ids[-1]


async def test_a_deleted_secret_is_restored_and_a_changed_certificate_is_written_again():
    clock = Clock()
    server, kept = await made(clock, "team-a")
    known = server.objects.pop(("sys", NAMES.authorities))["data"]
    await kept.look()
    assert server.objects["sys", NAMES.authorities]["data"] == known
    server.objects["team-a", "slipway-pod-tls"]["data"] = {}
    clock.now += AGAIN_AFTER_S
    await kept.keep("team-a")
    assert field(server, "slipway-pod-tls", "tls.key", "team-a").startswith("-----BEGIN PRIVATE KEY")


async def test_without_the_permission_there_is_a_warning_and_with_a_failure_no_pod_starts(caplog):
    clock = Clock()
    server = Server()
    server.failures["apply"] = Refused(403, "forbidden")
    await keeper(server, clock, "team-a").keep("team-a")
    assert "pods with TLS do not start in team-a" in caplog.text
    server.failures["apply"] = Unavailable("no API server")
    with pytest.raises(Unavailable):
        await keeper(server, clock, "team-a").keep("team-a")


async def test_an_unreadable_secret_is_named_and_not_replaced(caplog):
    server, _ = await made(Clock(), "team-a")
    server.objects["sys", NAMES.authorities]["data"] = {"authorities.json": "eyJ4"}
    await keeper(server, Clock(), "team-a").look()
    assert "Secret sys/slipway-internal-ca: authorities.json is not what the operator writes" in caplog.text
    assert server.objects["sys", NAMES.authorities]["data"] == {"authorities.json": "eyJ4"}


async def test_no_secret_but_that_of_the_authorities_has_what_signs():
    server, _ = await made(Clock(), "team-a")
    seed = authorities.parse(server.objects["sys", NAMES.authorities]["data"])[0].seed
    others = [item for (_, name), item in server.objects.items() if name != NAMES.authorities]
    assert len(others) == 2
    for item in others:
        assert set(item["data"]) == {"tls.crt", "tls.key", "ca.crt"}
        assert all(seed.encode() not in base64.b64decode(text) for text in item["data"].values())
    with pytest.raises(NotFound):
        await server.get(SECRETS, "team-a", NAMES.authorities)
