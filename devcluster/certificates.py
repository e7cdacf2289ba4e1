"""Keys and certificates of a throw-away control plane (P-256, valid for ten years)."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALIDITY = timedelta(days=3650)
_BACKDATED = timedelta(hours=1)
_USAGES = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority in a folder of its own."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """Makes the folder, and in it ca.key and ca.crt."""
        folder.mkdir(parents=True, mode=0o700)
        authority, key, name = cls(folder), _new_key(), _subject("devcluster")
        extension = x509.BasicConstraints(ca=True, path_length=None)
        certificate = _builder(name, name, key).add_extension(extension, critical=True)
        authority._write("ca", key, certificate.sign(key, hashes.SHA256()))
        return authority

    def issue(self, name: str, user: str, groups: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        """Writes NAME.key and NAME.crt, good for servers and clients alike.

        `user` and `groups` are what the API server takes the subject for; `hosts`: DNS names and IP addresses.
        """
        issuer = x509.load_pem_x509_certificate(self.path("ca.crt").read_bytes())
        issuer_key = serialization.load_pem_private_key(self.path("ca.key").read_bytes(), None)
        assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
        key = _new_key()
        certificate = _builder(_subject(user, groups), issuer.subject, key).add_extension(_USAGES, critical=False)
        if names := [_general_name(host) for host in hosts]:
            certificate = certificate.add_extension(x509.SubjectAlternativeName(names), critical=False)
        self._write(name, key, certificate.sign(issuer_key, hashes.SHA256()))

    def service_account_key(self) -> None:
        """The pair that signs and checks the tokens of service accounts."""
        key = _new_key()
        self.path("sa.key").write_bytes(_pem(key))
        public = key.public_key()
        self.path("sa.pub").write_bytes(
            public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )

    def path(self, name: str) -> Path:
        return self.folder / name

    def encoded(self, name: str) -> str:
        """A file as a kubeconfig carries it."""
        return base64.b64encode(self.path(name).read_bytes()).decode()

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.path(f"{name}.key").write_bytes(_pem(key))
        self.path(f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _BACKDATED,
        not_valid_after=now + _VALIDITY,
    )


def _subject(user: str, groups: Iterable[str] = ()) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
