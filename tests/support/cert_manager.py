"""cert-manager for tests: its CRDs, its controller or what plays it, and CAs of an issuer."""

import asyncio
import base64
import contextlib
import functools
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from devcluster import pins
from devcluster.gobuild import module_folder, required_version
from devcluster.places import places
from devcluster.processes import dies_with_parent
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, NotFound
from slipway_operator.kube.resources import CERTIFICATES, SECRETS, Resource
from testkit.cluster.tools import tool
from testkit.until import until_async

Object = dict[str, Any]

CRDS = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
ISSUERS = Resource("cert-manager.io/v1", "Issuer", "issuers")
_MODULE = "github.com/cert-manager/cert-manager"
_USAGES = {"server auth": ExtendedKeyUsageOID.SERVER_AUTH, "client auth": ExtendedKeyUsageOID.CLIENT_AUTH}
_POLL_S = 0.1
_END_S = 15.0


@dataclass(frozen=True)
class SigningCa:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def new_ca(name: str, now: datetime | None = None, signer: SigningCa | None = None) -> SigningCa:
    """A CA, of itself or of another."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = now or datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer.certificate.subject if signer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(signer.key if signer else key, hashes.SHA256())
    )
    return SigningCa(made, key)


def issued(ca: SigningCa, spec: Object, now: datetime | None = None) -> tuple[x509.Certificate, str]:
    """A certificate as the spec of a Certificate requests it, and its key in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = now or datetime.now(UTC)
    hours = int(spec["duration"].partition("h")[0])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(ca.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=hours))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in spec["dnsNames"]]), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([_USAGES[usage] for usage in spec["usages"] if usage in _USAGES]), critical=False
        )
        .sign(ca.key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    return certificate, private


def pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


@functools.cache
def crds() -> list[Object]:
    """Its CustomResourceDefinitions, of the version that is pinned; the module is downloaded where it is not there."""
    module = pins.MODULES["cert-manager"]
    folder = module_folder(places(), module, _MODULE, required_version(module, _MODULE))
    return [yaml.safe_load(path.read_text()) for path in sorted((folder / "deploy" / "crds").glob("*.yaml"))]


async def install(client: Client) -> None:
    """Apply the CRDs and wait until the API server serves Certificates."""
    for crd in crds():
        await client.apply(CRDS, crd)
    for resource in (CERTIFICATES, ISSUERS):
        await until_async(lambda resource=resource: _is_served(client, resource), f"{resource.plural} are served", 30)


async def remove(client: Client) -> None:
    """Remove the CRDs, with all their objects."""
    for crd in crds():
        with contextlib.suppress(NotFound):
            found = await client.get(CRDS, None, crd["metadata"]["name"])
            await client.delete(CRDS, None, crd["metadata"]["name"], found["metadata"]["uid"])
    for crd in crds():
        # An API server may wait a minute for watches of a kind that goes.
        gone = functools.partial(_is_gone, client, crd["metadata"]["name"])
        await until_async(gone, f"{crd['metadata']['name']} is gone", 180)


async def _is_gone(client: Client, crd: str) -> bool:
    try:
        await client.get(CRDS, None, crd)
    except NotFound:
        return True
    return False


async def _is_served(client: Client, resource: Resource) -> bool:
    try:
        await client.list(resource, "default")
    except NotFound:
        return False
    return True


class PlayedController:
    """Issues every Certificate of a namespace by `ca`, once for each value of `ca` and each spec, as an issuer does."""

    def __init__(self, client: Client, namespace: str, ca: SigningCa) -> None:
        self._client, self._namespace = client, namespace
        self.ca = ca
        self.holds: set[str] = set()  # Certificates that it does not look at
        self.refuses = ""  # what it writes as the reason that none is ready
        self._done: dict[str, tuple[object, ...]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["PlayedController"]:
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                for item in await self._client.list(CERTIFICATES, self._namespace):
                    if item["metadata"]["name"] not in self.holds:
                        await self._follow(item)
            except ApiError:  # deleted between list and patch
                pass
            await asyncio.sleep(_POLL_S)

    async def _follow(self, item: Object) -> None:
        name, generation = item["metadata"]["name"], item["metadata"]["generation"]
        inputs = (item["metadata"]["uid"], generation, self.ca.certificate, self.refuses)
        if self._done.get(name) == inputs:
            return
        if self.refuses:
            await self._status(item, "False", self.refuses, {})
        else:
            certificate, key = issued(self.ca, item["spec"])
            files = {"tls.crt": pem(certificate), "tls.key": key, "ca.crt": pem(self.ca.certificate)}
            body = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": item["spec"]["secretName"], "namespace": self._namespace},
                "type": "kubernetes.io/tls",
                "data": {field: base64.b64encode(text.encode()).decode() for field, text in files.items()},
            }
            await self._client.apply(SECRETS, body)
            revision = (item.get("status") or {}).get("revision", 0) + 1
            await self._status(item, "True", "Certificate is up to date", {"revision": revision})
        self._done[name] = inputs

    async def _status(self, item: Object, ready: str, message: str, fields: Object) -> None:
        condition = {
            "type": "Ready",
            "status": ready,
            "reason": "Ready" if ready == "True" else "DoesNotExist",
            "message": message,
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "observedGeneration": item["metadata"]["generation"],
        }
        path = CERTIFICATES.path(self._namespace, item["metadata"]["name"], "status")
        body = {"status": {"conditions": [condition], **fields}}
        await self._client.request("PATCH", path, [], body, "application/merge-patch+json")


@contextlib.contextmanager
def real_controller(kubeconfig: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Its own controller, compiled from the same module: for issuers of the kinds CA and SelfSigned."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [tool(pins.CERT_MANAGER), str(kubeconfig)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=dies_with_parent(),
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def ca_issuer(client: Client, namespace: str) -> None:
    """An Issuer `internal` whose CA the Issuer `root` made, as cert-manager's documentation does it."""
    metadata = {"namespace": namespace, "labels": {"test": "cert-manager"}}
    spec = {
        "isCA": True,
        "commonName": "first",
        "secretName": "internal-ca",
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        "issuerRef": {"name": "root", "kind": "Issuer", "group": "cert-manager.io"},
    }
    made = (("root", {"selfSigned": {}}), ("internal", {"ca": {"secretName": "internal-ca"}}))
    for name, issuer in made:
        await client.create(ISSUERS, _object(ISSUERS, {**metadata, "name": name}, issuer))
    await client.create(CERTIFICATES, _object(CERTIFICATES, {**metadata, "name": "internal-ca"}, spec))


def _object(resource: Resource, metadata: Object, spec: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}


async def renew(client: Client, namespace: str, name: str) -> None:
    """Request another certificate, as `cmctl renew` does."""
    path = CERTIFICATES.path(namespace, name)
    found = await client.request("GET", path)
    conditions = [one for one in found["status"]["conditions"] if one["type"] != "Issuing"]
    issuing = {
        "type": "Issuing",
        "status": "True",
        "reason": "ManuallyTriggered",
        "message": "Certificate re-issuance manually triggered",
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": found["metadata"]["generation"],
    }
    body = {"status": {"conditions": [*conditions, issuing]}}
    await client.request("PATCH", f"{path}/status", [], body, "application/merge-patch+json")
