"""What gRPC knows of the other side of a connection: its address, and its verified certificate."""

import functools
from collections.abc import Mapping
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

_PEM = "x509_pem_cert"
_NOT_AFTER = "%b %d %H:%M:%S %Y GMT"  # as OpenSSL writes it


def address_of(peer: str) -> str:
    """The IP address in what gRPC writes as `ipv4:127.0.0.1:80` or `ipv6:%5B::1%5D:80`."""
    _, _, rest = peer.partition(":")
    address = rest.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]")
    return address.strip("[]").partition("%")[0]


def certificate_of(properties: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """From a call's `auth_context`, in the form of `ssl.SSLSocket.getpeercert`; None: the client has no certificate.

    The listener requests certificates only where it verifies them too.
    """
    found = next(iter(properties.get(_PEM, ())), None)
    return _decoded(found) if isinstance(found, bytes) else None


@functools.lru_cache(1024)
def _decoded(pem: bytes) -> Mapping[str, Any] | None:
    """None for a certificate that the library cannot read: it then proves nothing."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        alternative = _alternative_names(certificate)
    except ValueError:
        return None
    return {
        "subject": tuple((("commonName", str(one.value)),) for one in common),
        "subjectAltName": alternative,
        "notAfter": certificate.not_valid_after_utc.strftime(_NOT_AFTER),
    }


def _alternative_names(certificate: x509.Certificate) -> tuple[tuple[str, str], ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (
        *(("URI", name) for name in names.get_values_for_type(x509.UniformResourceIdentifier)),
        *(("DNS", name) for name in names.get_values_for_type(x509.DNSName)),
    )
