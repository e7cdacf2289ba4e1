"""Tokens of a real OIDC issuer, the API server: verified with its keys, through rotation and while it is away."""

import asyncio
import base64
import hmac
import json
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from devcluster.controlplane import ControlPlane
from slipway_gateway.authentication import issuers
from slipway_gateway.identity.tenants import KnownTenant, TrustedIssuer
from testkit.cluster.api import Api
from tests.support.failing_control_plane import FailingControlPlane

from .harness import Gateway, echo, gateway, upstream
from .tenants import PEPPER, bearer

pytestmark = [pytest.mark.integration, pytest.mark.attack_class(25)]

AUDIENCE = "slipway"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Issuer(FailingControlPlane):
    """An API server that issues tokens under its own address, and publishes its keys as OpenID Connect has it."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        super().__init__(plane)
        self.url = plane.url
        self._folder = folder
        self.ca_file = folder / "ca.crt"
        cluster = yaml.safe_load(plane.kubeconfig.read_text())["clusters"][0]["cluster"]
        self.ca_file.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
        self.restart("--service-account-issuer=", f"--service-account-issuer={self.url}")
        self.api = Api(plane.kubeconfig)
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:unauthenticated"}
        binding = {"metadata": {"name": "issuer"}, "subjects": [subject]}
        binding["roleRef"] = role | {"name": "system:service-account-issuer-discovery"}
        assert self.api.post(f"{RBAC}/clusterrolebindings", binding).ok

    def restart(self, flag: str, *replaced: str) -> None:
        killed = self.kill_api_server()
        kept = [str(one) for one in killed.args if not str(one).startswith(flag)]  # type: ignore[union-attr]
        killed.args = [*kept, *replaced]
        self.start_api_server(killed)

    def rotate(self) -> None:
        """Signs with another key; tokens of the former one are valid no longer."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private, public = self._folder / "next.key", self._folder / "next.pub"
        pem = serialization.Encoding.PEM
        none = serialization.NoEncryption()
        private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none))
        public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
        flags = (f"--service-account-key-file={public}", f"--service-account-signing-key-file={private}")
        self.restart("--service-account-", *flags, f"--service-account-issuer={self.url}")

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))

    def token(self, audience: str = AUDIENCE, name: str = "app") -> str:
        path = "/api/v1/namespaces/default/serviceaccounts"
        self.api.post(path, {"metadata": {"name": name}})
        spec = {"audiences": [audience], "expirationSeconds": 600}
        made = self.api.post(f"{path}/{name}/token", {"apiVersion": "authentication.k8s.io/v1", "spec": spec})
        assert made.ok, made.message
        return str(made.body["status"]["token"])

    def tenant(self, name: str = "team-a", subject: str = "app", **fields: Any) -> KnownTenant:
        claims = {"sub": f"system:serviceaccount:default:{subject}"}
        return KnownTenant(name, issuers=(TrustedIssuer(self.url, (AUDIENCE,), claims),), **fields)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    with ControlPlane() as plane:
        made = Issuer(plane, tmp_path_factory.mktemp("issuer"))
        yield made
        made.api.close()


async def status(gate: Gateway, token: str) -> int:
    async with await gate.post(headers=bearer(token)) as answer:
        return answer.status


def forged(issuer: Issuer, **head: Any) -> str:
    """A token with the claims of a good one and another signature."""
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    return jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), "ES256", headers=head)


def unsigned(token: str) -> str:
    head = base64.urlsafe_b64encode(json.dumps({"alg": "none"}).encode()).decode().rstrip("=")
    return f"{head}.{token.split('.')[1]}."


def signed_with_the_public_key(issuer: Issuer, token: str) -> str:
    """The confusion of algorithms: a public key as the secret of HMAC."""
    with urllib.request.urlopen(f"{issuer.url}/openid/v1/jwks", context=issuer.trust()) as answer:
        jwks = json.load(answer)
    public = jwt.PyJWK(jwks["keys"][0]).key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": jwks["keys"][0]["kid"]}).encode())
    signing = f"{head.decode().rstrip('=')}.{token.split('.')[1]}"
    mark = base64.urlsafe_b64encode(hmac.digest(public, signing.encode(), "sha256")).decode().rstrip("=")
    return f"{signing}.{mark}"


async def test_a_token_is_its_tenants_and_no_forged_one_is_accepted(issuer: Issuer) -> None:
    tenants = (issuer.tenant(), issuer.tenant("off", "off", disabled=True))
    async with (
        upstream(echo) as server,
        gateway(tenants, PEPPER, oidc_ca_file=str(issuer.ca_file)) as gate,
    ):
        gate.route(("rev", 100, [server.url]))
        good = await asyncio.to_thread(issuer.token)
        assert await status(gate, good) == 200
        kid = jwt.get_unverified_header(good)["kid"]
        assert await status(gate, issuer.token(name="off")) == 403
        bad = [
            issuer.token("another-audience"),
            issuer.token(name="another"),
            good[:-4] + ("AAAA" if good[-4:] != "AAAA" else "BBBB"),
            unsigned(good),
            signed_with_the_public_key(issuer, good),
            forged(issuer, kid=kid),
            forged(issuer, kid="unknown"),
            forged(issuer, jwk={"kty": "oct", "k": "AAAA"}),
            forged(issuer, kid=kid, crit=["exp"]),
            good + "." + good,
        ]
        assert [await status(gate, token) for token in bad] == [401] * len(bad)
        sent = str([list(seen.headers.items()) for seen in server.seen])
        assert good not in sent and len(server.seen) == 1
        page = gate.metrics.render().decode()
        assert 'slipway_gateway_authentications_total{method="jwt",result="ok"} 1.0' in page
        assert good.split(".")[2] not in page


async def test_new_keys_are_fetched_and_former_ones_stay_while_the_issuer_is_away(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches: list[str] = []
    fetch = issuers.IssuerKeys._fetch

    async def counted(self: issuers.IssuerKeys, url: str) -> Any:
        fetches.append(url)
        return await fetch(self, url)

    monkeypatch.setattr(issuers.IssuerKeys, "_fetch", counted)
    monkeypatch.setattr(issuers, "UNKNOWN_KEY_S", 1.0)
    async with (
        upstream(echo) as server,
        gateway((issuer.tenant(),), PEPPER, oidc_ca_file=str(issuer.ca_file)) as gate,
    ):
        gate.route(("rev", 100, [server.url]))
        old = issuer.token()
        assert await status(gate, old) == 200
        # A flood of unknown keys is one fetch in UNKNOWN_KEY_S.
        began_s = time.monotonic()
        await asyncio.gather(*(status(gate, forged(issuer, kid=str(number))) for number in range(20)))
        assert len(fetches) <= 2 + (time.monotonic() - began_s)
        issuer.rotate()  # from this thread: an API server ends with the thread that started it
        new = await asyncio.to_thread(issuer.token)
        await asyncio.sleep(1.0)
        assert await status(gate, new) == 200
        assert await status(gate, old) == 401  # the issuer has removed its key
        killed = issuer.kill_api_server()
        try:
            monkeypatch.setattr(issuers, "FRESH_S", 0.0)
            await asyncio.sleep(1.0)
            assert await status(gate, new) == 200
            monkeypatch.setattr(issuers, "STALE_S", 0.0)
            assert await status(gate, new) == 503
        finally:
            issuer.start_api_server(killed)


async def test_an_issuer_that_is_not_trusted_is_never_asked(issuer: Issuer) -> None:
    """Its certificate is of no authority that the gateway trusts."""
    async with upstream(echo) as server, gateway((issuer.tenant(),), PEPPER) as gate:
        gate.route(("rev", 100, [server.url]))
        assert await status(gate, issuer.token()) == 503 and not server.seen
