"""An issuer of cert-manager, and whether processes of the release can use a certificate of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from slipway_operator.model.cluster.certificates import CA, CERTIFICATE, PRIVATE_KEY, Role

GROUP = "cert-manager.io"
# Of kinds of cert-manager's own group and of groups that others bring.
_TEXT = re.compile(r"(?P<kind>[A-Za-z][A-Za-z0-9]*)(?:\.(?P<group>[a-z0-9][-a-z0-9.]*))?/(?P<name>[a-z0-9][-a-z0-9.]*)")
_MAX_NAME = 253


class UnusableIssue(ValueError):
    """What an issuer wrote is no certificate for a process of the release. The message has nothing of a key."""


@dataclass(frozen=True, slots=True)
class IssuerRef:
    """`issuerRef` of a Certificate. An Issuer is in the namespace of the release, a ClusterIssuer in none."""

    name: str
    kind: str
    group: str = GROUP

    def __str__(self) -> str:
        group = "" if self.group == GROUP else f".{self.group}"
        return f"{self.kind}{group}/{self.name}"


def parse_issuer(text: str) -> IssuerRef | None:
    """Return the issuer in `KIND/NAME` or `KIND.GROUP/NAME`; None for an empty text.

    Raises:
        ValueError: it is neither.
    """
    if not text:
        return None
    found = _TEXT.fullmatch(text)
    if not found or len(found["name"]) > _MAX_NAME:
        raise ValueError(f"{text!r} names no issuer: write for example ClusterIssuer/internal or Issuer/internal")
    return IssuerRef(found["name"], found["kind"], found["group"] or GROUP)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A certificate that an issuer gave, with its chain, its key and its CAs; PEM."""

    certificate: str
    private_key: str
    cas: tuple[str, ...]


def check(role: Role, files: dict[str, str], now: float) -> Candidate:
    """Return what is in the Secret that cert-manager wrote. `files`: PEM by data field.

    Raises:
        UnusableIssue: a process with it would reach none of the others, or none of them would reach it.
    """
    chain, cas = _certificates(files, CERTIFICATE), _certificates(files, CA)
    leaf = chain[0]
    if not _is_pair(leaf, files.get(PRIVATE_KEY, "")):
        raise UnusableIssue(f"{PRIVATE_KEY} is not the key of {CERTIFICATE}")
    if role.name not in _names(leaf):
        raise UnusableIssue(f"{CERTIFICATE} has not the DNS name {role.name}")
    if leaf.not_valid_after_utc <= datetime.fromtimestamp(now, UTC):
        raise UnusableIssue(f"{CERTIFICATE} expired at {leaf.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}")
    if not all(_is_ca(one) for one in cas):
        raise UnusableIssue(
            f"{CA} has a certificate that is no CA: an issuer of the kind SelfSigned gives each process another one, "
            "use it to make a CA, and an issuer of the kind CA"
        )
    if not any(_leads_to(chain, ca) for ca in cas):
        raise UnusableIssue(f"no certificate in {CA} signed {CERTIFICATE} or its chain")
    return Candidate(files[CERTIFICATE], files[PRIVATE_KEY], tuple(_pem(one) for one in cas))


def _certificates(files: dict[str, str], name: str) -> list[x509.Certificate]:
    if not files.get(name):
        why = "; the issuer must give its CA, by which gateways and pods verify each other" if name == CA else ""
        raise UnusableIssue(f"{name} is empty{why}")
    try:
        return x509.load_pem_x509_certificates(files[name].encode())
    except ValueError:
        raise UnusableIssue(f"{name} has no certificate in PEM") from None


def _is_pair(leaf: x509.Certificate, key: str) -> bool:
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    try:
        private = serialization.load_pem_private_key(key.encode(), None)
        return private.public_key().public_bytes(*form) == leaf.public_key().public_bytes(*form)
    except (ValueError, TypeError):  # no key, or one with a passphrase
        return False


def _names(leaf: x509.Certificate) -> list[str]:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return found.get_values_for_type(x509.DNSName)


def _is_ca(certificate: x509.Certificate) -> bool:
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return False


def _leads_to(chain: Sequence[x509.Certificate], ca: x509.Certificate) -> bool:
    return any(one == ca or _signed(one, ca) for one in chain)


def _signed(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):  # another name, another kind of key, another signature
        return False
    return True


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
