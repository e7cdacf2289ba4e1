"""The serving certificate of the metrics API: self-signed, kept in memory, new in each process."""

import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from slipway_process.network.mutual_tls import in_memory_file

DAYS = 365
_SUBJECT = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "slipway-metrics-api")])
_BACKDATED = timedelta(hours=1)  # the certificate is valid this long before now, for clients with a slow clock
_USAGE = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate and its key; both PEM."""

    certificate: str
    key: str


def make(name: str, now: datetime) -> Certificate:
    """Return a certificate for one DNS name (P-256), valid for DAYS from `now`.

    It is its own CA, so a client that trusts it trusts no other certificate.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_SUBJECT)
        .issuer_name(_SUBJECT)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_USAGE, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    written = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate(certificate.public_bytes(serialization.Encoding.PEM).decode(), written.decode())


def server_context(own: Certificate, clients_ca: str) -> ssl.SSLContext:
    """Return a server context for TLS 1.2 or newer that requires client certificates of `clients_ca`.

    Raises:
        ssl.SSLError: when `clients_ca` holds no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=clients_ca)
    with in_memory_file(own.certificate + own.key) as path:
        context.load_cert_chain(path)
    return context
