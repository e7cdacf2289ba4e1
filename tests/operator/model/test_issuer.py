"""What an issuer gave: used when both sides of a connection can use it, else named with what to do."""

import ssl
import time
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import serialization

from slipway_operator.manifests.pods import cert_manager
from slipway_operator.manifests.pods.certificate import GATEWAY, OPERATOR, pods_of
from slipway_operator.model.cluster.authorities import Terms
from slipway_operator.model.issuing.issuer import IssuerRef, UnusableIssue, check, parse_issuer
from slipway_process.network import mutual_tls
from tests.operator.kube.test_certificates import handshake
from tests.support.cert_manager import issued, new_ca, pem

pytestmark = pytest.mark.attack_class(2)

ROOT = new_ca("root")
INTERMEDIATE = new_ca("intermediate", signer=ROOT)
PODS = pods_of("team-a")
HOST = "10-0-0-7.team-a.pod.slipway.internal"
ISSUER = IssuerRef("internal", "Issuer")


def files(role, ca, *, chain=(), trusted=None, now=None):
    """A Secret as cert-manager writes it."""
    spec = cert_manager.requested("sys", "name", role, ISSUER, Terms())["spec"]
    certificate, key = issued(ca, spec, now)
    texts = [pem(one) for one in (certificate, *(one.certificate for one in chain))]
    return {"tls.crt": "".join(texts), "tls.key": key, "ca.crt": pem((trusted or ca).certificate)}


def identity(found):
    return mutual_tls.PemIdentity(found["tls.crt"], found["tls.key"], found["ca.crt"])


def contexts(client, server):
    return mutual_tls.client_context(identity(client)), mutual_tls.server_context(identity(server))


@pytest.mark.parametrize(
    "how",
    [
        {"ca": ROOT},
        {"ca": INTERMEDIATE, "chain": (INTERMEDIATE,), "trusted": ROOT},
        # An issuer that has an intermediate CA alone gives that as ca.crt.
        {"ca": INTERMEDIATE},
    ],
    ids=["root", "chain", "intermediate"],
)
def test_what_is_usable_makes_a_handshake(how):
    pod, gateway = files(PODS, **how), files(GATEWAY, **how)
    for role, found in ((PODS, pod), (GATEWAY, gateway)):
        candidate = check(role, found, time.time())
        assert candidate.certificate == found["tls.crt"]
        assert candidate.cas == (found["ca.crt"],)
    assert mutual_tls.has_certificate(handshake(*contexts(gateway, pod), HOST))


def test_a_client_of_the_same_issuer_that_is_no_gateway_is_none():
    """Whoever shares the issuer has certificates of its CA: of other programs, and of other namespaces' pods."""
    spec = cert_manager.requested("sys", "name", GATEWAY, ISSUER, Terms())["spec"]
    for name in ("shop.example", "*.team-b.pod.slipway.internal", "gateway.slipway.internal.example"):
        certificate, key = issued(ROOT, {**spec, "dnsNames": [name]})
        stranger = {"tls.crt": pem(certificate), "tls.key": key, "ca.crt": pem(ROOT.certificate)}
        peer = handshake(*contexts(stranger, files(PODS, ROOT)), HOST)
        assert peer and not mutual_tls.has_certificate(peer), name
    assert mutual_tls.has_certificate(handshake(*contexts(files(OPERATOR, ROOT), files(PODS, ROOT)), HOST))


def test_a_certificate_of_another_ca_ends_the_handshake():
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(*contexts(files(GATEWAY, INTERMEDIATE), files(PODS, ROOT)), HOST)


def self_signed():
    alone = new_ca("x")
    spec = cert_manager.requested("sys", "name", PODS, ISSUER, Terms())["spec"]
    certificate, key = issued(alone, spec)
    return {"tls.crt": pem(certificate), "tls.key": key, "ca.crt": pem(certificate)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: {**found, "ca.crt": ""}, "ca.crt is empty; the issuer must give its CA"),
        (lambda found: {**found, "tls.crt": ""}, "tls.crt is empty"),
        (lambda found: {**found, "tls.crt": "-----BEGIN"}, "tls.crt has no certificate in PEM"),
        (lambda found: {**found, "tls.key": files(PODS, ROOT)["tls.key"]}, "tls.key is not the key of tls.crt"),
        (lambda found: {**found, "tls.key": "secret"}, "tls.key is not the key of tls.crt"),
        (lambda found: {**found, "ca.crt": pem(INTERMEDIATE.certificate)}, "no certificate in ca.crt signed tls.crt"),
        (lambda found: self_signed(), "use it to make a CA, and an issuer of the kind CA"),
        (lambda found: files(GATEWAY, ROOT), r"tls.crt has not the DNS name \*.team-a.pod.slipway.internal"),
        (lambda found: files(PODS, ROOT, now=datetime.now(UTC) - timedelta(days=91)), "tls.crt expired at 20"),
    ],
)
def test_what_is_not_usable_is_named(change, message):
    with pytest.raises(UnusableIssue, match=message) as caught:
        check(PODS, change(files(PODS, ROOT)), time.time())
    assert "secret" not in str(caught.value)


def test_an_encrypted_key_is_none():
    found = files(PODS, ROOT)
    key = serialization.load_pem_private_key(found["tls.key"].encode(), None)
    locked = serialization.BestAvailableEncryption(b"x")
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked).decode()
    with pytest.raises(UnusableIssue, match=r"tls\.key is not the key"):
        check(PODS, {**found, "tls.key": text}, time.time())


@pytest.mark.parametrize(
    ("text", "issuer"),
    [
        ("", None),
        ("Issuer/internal", ISSUER),
        ("ClusterIssuer.cert-manager.io/a.b", IssuerRef("a.b", "ClusterIssuer")),
        ("AWSPCAIssuer.awspca.cert-manager.io/x", IssuerRef("x", "AWSPCAIssuer", "awspca.cert-manager.io")),
    ],
)
def test_an_issuer_is_named_by_kind_and_name(text, issuer):
    assert parse_issuer(text) == issuer
    assert issuer is None or parse_issuer(str(issuer)) == issuer


@pytest.mark.parametrize(
    "text", ["internal", "/internal", "Issuer/", "Issuer/UPPER", "Issuer/a/b", "Issuer/" + "a" * 254]
)
def test_another_text_is_refused(text):
    with pytest.raises(ValueError, match="write for example ClusterIssuer/internal"):
        parse_issuer(text)


def test_a_certificate_with_defaults_of_others_is_as_requested_and_one_with_another_issuer_is_not():
    wanted = cert_manager.requested("sys", "name", PODS, ISSUER, Terms())["spec"]
    found = {**wanted, "privateKey": {**wanted["privateKey"], "more": 1}, "more": 1}
    assert cert_manager.is_as_requested(found, wanted)
    other = cert_manager.requested("sys", "name", PODS, IssuerRef("other", "Issuer"), Terms())["spec"]
    assert not cert_manager.is_as_requested(found, other)
    assert not cert_manager.is_as_requested({**found, "privateKey": None}, wanted)
