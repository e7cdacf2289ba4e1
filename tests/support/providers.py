"""A certificate of a provider's host, signed by an authority of the test."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "api.provider.test"


class ProviderTls(NamedTuple):
    """`ca_file`: what a gateway trusts."""

    ca_file: str
    context: ssl.SSLContext


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (subject, issuer)]
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(names[1], names[0], key, x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
    )


def provider_tls(folder: Path, host: str = HOST) -> ProviderTls:
    """Certificate and key of a server at `host`, in files of a folder."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = _builder("ca", "ca", ca_key.public_key()).add_extension(x509.BasicConstraints(True, None), critical=True)
    ca = ca.add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = ca.add_extension(usage, critical=True)
    own = _builder(host, "ca", key.public_key())
    own = own.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    own = own.add_extension(issuer, critical=False)
    pem = serialization.Encoding.PEM
    files = {
        "ca.pem": ca.sign(ca_key, hashes.SHA256()).public_bytes(pem),
        "tls.crt": own.sign(ca_key, hashes.SHA256()).public_bytes(pem),
        "tls.key": key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    }
    for name, text in files.items():
        (folder / name).write_bytes(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return ProviderTls(str(folder / "ca.pem"), context)
