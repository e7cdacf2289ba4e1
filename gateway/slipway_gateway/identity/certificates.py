"""What a verified client certificate says of its owner (pure)."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

URI, DNS, COMMON_NAME = "uri", "dns", "commonName"
_KINDS = {"URI": URI, "DNS": DNS}


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """`names`: each with its kind, as `key_of` has them. `expires_s`: Unix time."""

    names: tuple[str, ...]
    expires_s: float


def key_of(kind: str, name: str) -> str:
    """DNS names do not depend on case; all others are compared as they are."""
    return f"{kind}:{name.lower() if kind == DNS else name}"


def read(peer: Mapping[str, Any] | None) -> ClientCertificate | None:
    """From `ssl.SSLSocket.getpeercert`, which has only what was verified; None: the client has no certificate.

    A certificate with several URIs is no SPIFFE ID by SPIFFE's own rules, and one with several common names has none:
    whoever reads another one of them would see another owner.
    """
    if not peer:
        return None
    alternative = [(_KINDS[kind], name) for kind, name in peer.get("subjectAltName", ()) if kind in _KINDS]
    common = [(COMMON_NAME, name) for part in peer.get("subject", ()) for kind, name in part if kind == "commonName"]
    several = {kind for kind in (URI, COMMON_NAME) if sum(one == kind for one, _ in (*alternative, *common)) > 1}
    names = tuple(key_of(kind, name) for kind, name in (*alternative, *common) if kind not in several)
    return ClientCertificate(names, ssl.cert_time_to_seconds(peer["notAfter"]))
