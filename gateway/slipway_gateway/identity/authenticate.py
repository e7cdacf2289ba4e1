"""Which tenant sends a request (pure): a decision from its headers, the table of tenants, and the time."""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from multidict import MultiMapping

from ..wire.request_fields import PLACEHOLDER_KEYS
from . import api_keys, tokens
from .certificates import ClientCertificate
from .tenants import KeyHash, KnownTenant, TenantTable
from .tokens import UnverifiedToken

MAX_SUBJECT = 255  # characters, as OpenID Connect has it
AUTO, REQUIRED, OPTIONAL, OFF = AUTH_MODES = ("auto", "required", "optional", "off")
# What the hash of an unknown key is compared with: the comparison takes as long as with a known one.
_NO_HASH = api_keys.HASH_PREFIX + "0" * 64


class Method(StrEnum):
    """How a tenant was known."""

    KEY = "key"
    JWT = "jwt"
    SERVICE_ACCOUNT = "service_account"
    CERTIFICATE = "certificate"
    BATCH = "batch"  # the jobs process sends it for the tenant


class AuthReason(StrEnum):
    """Why no tenant is known, or why it may send nothing."""

    MISSING = "missing"  # no credentials
    FOREIGN = "foreign"  # credentials that are none of this gateway's
    INVALID = "invalid"
    EXPIRED = "expired"
    DISABLED = "disabled"
    NOT_READY = "not_ready"  # the pepper is not there yet


class RequestIdentity(msgspec.Struct, frozen=True):
    """Who sends a request. `key_id`: of its API key; it is no secret. `subject`: of its token or certificate."""

    tenant: KnownTenant
    method: Method
    key_id: str = ""
    subject: str = ""

    @property
    def name(self) -> str:
        """Of the tenant."""
        return self.tenant.name

    @property
    def weight(self) -> int:
        return self.tenant.weight


@dataclass(frozen=True, slots=True)
class AuthRefusal:
    """Why a request has no identity."""

    reason: AuthReason
    method: Method = Method.KEY


def authenticate(
    headers: MultiMapping[str], table: TenantTable, now: float, certificate: ClientCertificate | None = None
) -> RequestIdentity | AuthRefusal | UnverifiedToken:
    """`now`: Unix time. `certificate`: of the client, verified; it counts where no credentials are sent.

    Of a token of an issuer that a tenant trusts, `by_token` decides, with the issuer's keys; of another one that names
    a service account of a tenant, `by_username`, after the API server reviewed it.
    """
    given = headers.getall("Authorization", [])
    if len(given) > 1:
        return AuthRefusal(AuthReason.INVALID)  # proxies before and after might each read another one
    scheme, _, credentials = (given[0] if given else "Bearer").partition(" ")
    credentials = credentials.strip()
    if scheme.lower() != "bearer":
        return AuthRefusal(AuthReason.FOREIGN)
    if credentials.startswith(api_keys.PREFIX):
        return by_key(credentials, table, now)
    if credentials.lower() in PLACEHOLDER_KEYS:
        return by_certificate(certificate, table, now) if certificate else AuthRefusal(AuthReason.MISSING)
    token = tokens.read(credentials)
    if token is not None and (token.issuer in table.issuers or token.subject in table.service_accounts):
        return token
    return AuthRefusal(AuthReason.FOREIGN)


def by_key(key: str, table: TenantTable, now: float) -> RequestIdentity | AuthRefusal:
    if not table.pepper:
        return AuthRefusal(AuthReason.NOT_READY)
    found = table.verified.find(key)
    if found is None:
        key_id = api_keys.key_id(key)
        found = _find(api_keys.digest(key, table.pepper), table.keys.get(key_id, ()))
        if found is None or not key_id:
            return AuthRefusal(AuthReason.INVALID)
        table.verified.add(key, found)
    tenant, entry = found
    if entry.expires_s is not None and now >= entry.expires_s:
        return AuthRefusal(AuthReason.EXPIRED)
    return AuthRefusal(AuthReason.DISABLED) if tenant.disabled else RequestIdentity(tenant, Method.KEY, entry.id)


def by_token(
    token: UnverifiedToken, keys: Iterable[tokens.IssuerKey], table: TenantTable, now: float
) -> RequestIdentity | AuthRefusal:
    """`keys`: those of its issuer that may have signed it."""
    claims = tokens.verify(token, keys, now)
    if claims is None:
        return AuthRefusal(AuthReason.INVALID, Method.JWT)
    for tenant, trusted in table.issuers.get(token.issuer, ()):
        if tokens.audiences(claims).intersection(trusted.audiences) and tokens.has_claims(claims, trusted.claims):
            if tenant.disabled:
                return AuthRefusal(AuthReason.DISABLED, Method.JWT)
            return RequestIdentity(tenant, Method.JWT, subject=str(claims.get("sub", ""))[:MAX_SUBJECT])
    return AuthRefusal(AuthReason.INVALID, Method.JWT)


def by_certificate(certificate: ClientCertificate, table: TenantTable, now: float) -> RequestIdentity | AuthRefusal:
    """A certificate of no tenant is no credential: it may be there only to connect."""
    known = [(table.certificates[name], name) for name in certificate.names if name in table.certificates]
    if not known:
        return AuthRefusal(AuthReason.MISSING)
    # A connection outlives the handshake, in which the certificate was verified.
    if now >= certificate.expires_s:
        return AuthRefusal(AuthReason.EXPIRED, Method.CERTIFICATE)
    tenant, name = min(known, key=lambda one: (one[0].created, one[0].name))
    if tenant.disabled:
        return AuthRefusal(AuthReason.DISABLED, Method.CERTIFICATE)
    return RequestIdentity(tenant, Method.CERTIFICATE, subject=name.partition(":")[2][:MAX_SUBJECT])


def before_review(token: UnverifiedToken, audience: str, now: float) -> AuthRefusal | None:
    """Why the API server need not review the token: for what it says of itself it is not valid here."""
    if token.expires_s is None or audience not in token.audiences:
        return AuthRefusal(AuthReason.INVALID, Method.SERVICE_ACCOUNT)
    return AuthRefusal(AuthReason.EXPIRED, Method.SERVICE_ACCOUNT) if now >= token.expires_s else None


def by_username(username: str, table: TenantTable) -> RequestIdentity | AuthRefusal:
    """`username`: that the API server has for a token; "": it has none."""
    tenant = table.service_accounts.get(username)
    if tenant is None:
        return AuthRefusal(AuthReason.INVALID, Method.SERVICE_ACCOUNT)
    if tenant.disabled:
        return AuthRefusal(AuthReason.DISABLED, Method.SERVICE_ACCOUNT)
    return RequestIdentity(tenant, Method.SERVICE_ACCOUNT, subject=username[:MAX_SUBJECT])


def on_behalf(name: str, table: TenantTable) -> RequestIdentity | AuthRefusal:
    """`name`: of the tenant that the jobs process calls for."""
    tenant = table.tenants.get(name)
    if tenant is None:
        return AuthRefusal(AuthReason.INVALID, Method.BATCH)
    return AuthRefusal(AuthReason.DISABLED, Method.BATCH) if tenant.disabled else RequestIdentity(tenant, Method.BATCH)


def _find(digest: str, entries: tuple[tuple[KnownTenant, KeyHash], ...]) -> tuple[KnownTenant, KeyHash] | None:
    """The entry with this hash, compared in a time that does not depend on where two hashes differ."""
    if not entries:
        hmac.compare_digest(digest, _NO_HASH)
        return None
    found = [entry for entry in entries if hmac.compare_digest(digest.encode(), entry[1].hash.encode())]
    return found[0] if found else None
