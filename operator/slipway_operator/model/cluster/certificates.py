"""X.509 certificates of the release (ECDSA P-256): each follows from its authority, its names and its period.

The same inputs give the same bytes, so a restarted operator changes no Secret.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from slipway_operator.model.cluster.authorities import BACKDATED_S, Authority, Period, Terms

CERTIFICATE, PRIVATE_KEY, CA = "tls.crt", "tls.key", "ca.crt"  # data fields of Secrets
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # order of the group of P-256
_SERIAL_BYTES = 19  # X.509 allows 20, and the first bit must be 0


@dataclass(frozen=True, slots=True)
class Role:
    """What a certificate is for. Pods get no client certificates: with a stolen pod key one cannot call other pods."""

    name: str  # DNS name in the certificate; `*` for all names of a zone
    serves: bool
    connects: bool


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate, its private key, and the authorities that its holder trusts; all PEM."""

    certificate: str
    private_key: str
    ca: str

    def data(self) -> dict[str, str]:
        """Return the `data` of a Secret with them, in base64."""
        fields = {CERTIFICATE: self.certificate, PRIVATE_KEY: self.private_key, CA: self.ca}
        return {name: base64.b64encode(text.encode()).decode() for name, text in fields.items()}


def bundle(authorities: Sequence[Authority], terms: Terms) -> str:
    """Return the certificates of all authorities as PEM."""
    return "".join(_pem(_authority_certificate(one, terms)) for one in authorities)


def issue(authorities: Sequence[Authority], role: Role, period: Period, terms: Terms) -> Issued:
    """Issue a certificate, signed by the first authority, for a process that trusts all of them."""
    signer = authorities[0]
    key = _key(signer, f"key of {role.name} from {period.start:.0f}")
    usages = [ExtendedKeyUsageOID.SERVER_AUTH] * role.serves + [ExtendedKeyUsageOID.CLIENT_AUTH] * role.connects
    own = _authority_certificate(signer, terms)
    certificate = _sign(
        _builder(signer, f"certificate of {role.name} from {period.start:.0f}", key, period)
        .subject_name(x509.Name([]))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        # Critical, as RFC 5280 requires when the subject is empty.
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(role.name)]), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own.public_key()), critical=False),  # type: ignore[arg-type]
        signer,
    )
    return Issued(_pem(certificate), _key_pem(key), bundle(authorities, terms))


def _authority_certificate(authority: Authority, terms: Terms) -> x509.Certificate:
    key = _key(authority, "key of the authority")
    return _sign(
        _builder(
            authority,
            "certificate of the authority",
            key,
            Period(authority.created, authority.created + terms.authority_s),
        )
        .subject_name(_subject(authority))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False),
        authority,
    )


def _builder(
    signer: Authority, purpose: str, key: ec.EllipticCurvePrivateKey, period: Period
) -> x509.CertificateBuilder:
    serial = int.from_bytes(signer.derive(f"serial of the {purpose}")[:_SERIAL_BYTES]) or 1
    return (
        x509.CertificateBuilder()
        .issuer_name(_subject(signer))
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(datetime.fromtimestamp(int(period.start - BACKDATED_S), UTC))
        .not_valid_after(datetime.fromtimestamp(int(period.end), UTC))
    )


def _sign(builder: x509.CertificateBuilder, signer: Authority) -> x509.Certificate:
    return builder.sign(_key(signer, "key of the authority"), hashes.SHA256(), ecdsa_deterministic=True)


def _subject(authority: Authority) -> x509.Name:
    """Return the authority's own subject, so that no certificate chain mixes two authorities."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"slipway {authority.id}")])


def _key(authority: Authority, purpose: str) -> ec.EllipticCurvePrivateKey:
    number = int.from_bytes(authority.derive(purpose)) % (_ORDER - 1) + 1
    return ec.derive_private_key(number, ec.SECP256R1())


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
