"""What a verified client certificate says of its owner (pure)."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509

URI, DNS, COMMON_NAME = "uri", "dns", "commonName"
_TIME = "%b %e %H:%M:%S %Y GMT"  # of OpenSSL
_KINDS = {"URI": URI, "DNS": DNS}


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A verified certificate. `names`: each with its kind, as `key_of` has them. `expires_s`: Unix time."""

    names: tuple[str, ...]
    expires_s: float


def key_of(kind: str, name: str) -> str:
    """A name with its kind, for comparison: DNS names in lower case, because case does not matter in them."""
    return f"{kind}:{name.lower() if kind == DNS else name}"


def peer_of(der: bytes) -> dict[str, Any]:
    """What `read` reads of a verified certificate in DER, as `ssl.SSLSocket.getpeercert` returns it.

    What cannot be read has no names, and so no owner.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        ends = certificate.not_valid_after_utc.strftime(_TIME)
        common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        subject = tuple((("commonName", one.value),) for one in common)
        return {"subject": subject, "subjectAltName": _alternative(certificate), "notAfter": ends}
    except ValueError:
        return {}


def _alternative(certificate: x509.Certificate) -> tuple[tuple[str, str], ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    kinds = {x509.UniformResourceIdentifier: "URI", x509.DNSName: "DNS"}
    return tuple((kinds[type(name)], name.value) for name in names if type(name) in kinds)


def read(peer: Mapping[str, Any] | None) -> ClientCertificate | None:
    """Reads what `ssl.SSLSocket.getpeercert` returns, which was verified; None: the client has no certificate.

    Several URIs in one certificate are all left out, because a SPIFFE ID is the only URI. So are several common names:
    another program might read another one of them, and see another owner.
    """
    if not peer:
        return None
    alternative = [(_KINDS[kind], name) for kind, name in peer.get("subjectAltName", ()) if kind in _KINDS]
    common = [(COMMON_NAME, name) for part in peer.get("subject", ()) for kind, name in part if kind == "commonName"]
    several = {kind for kind in (URI, COMMON_NAME) if sum(one == kind for one, _ in (*alternative, *common)) > 1}
    names = tuple(key_of(kind, name) for kind, name in (*alternative, *common) if kind not in several)
    return ClientCertificate(names, ssl.cert_time_to_seconds(peer["notAfter"]))
