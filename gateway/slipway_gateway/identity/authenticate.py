"""Which tenant sends a request (pure): a decision from its headers, the table of tenants, and the time."""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from msgspec.structs import force_setattr
from multidict import MultiMapping, istr

from ..wire.request_fields import PLACEHOLDER_KEYS
from . import api_keys, tokens
from .certificates import ClientCertificate
from .tenants import KeyHash, KnownTenant, TenantTable
from .tokens import UnverifiedToken

MAX_SUBJECT = 255  # characters, as OpenID Connect has it
AUTO, REQUIRED, OPTIONAL, OFF = AUTH_MODES = ("auto", "required", "optional", "off")
_AUTHORIZATION = istr("Authorization")
# What the hash of an unknown key is compared with: the comparison takes as long as with a known one.
_NO_HASH = api_keys.HASH_PREFIX + "0" * 64


class Method(StrEnum):
    """How a tenant was authenticated."""

    KEY = "key"
    JWT = "jwt"
    SERVICE_ACCOUNT = "service_account"
    CERTIFICATE = "certificate"
    BATCH = "batch"  # the jobs process sends it for the tenant


class AuthReason(StrEnum):
    """Why a request has no identity: no tenant is known, or the tenant may send nothing."""

    MISSING = "missing"  # no credentials
    FOREIGN = "foreign"  # credentials that this gateway does not verify, such as those of another scheme
    INVALID = "invalid"
    EXPIRED = "expired"
    DISABLED = "disabled"
    NOT_READY = "not_ready"  # tenants, the pepper, an issuer's keys or a review are not available now


class RequestIdentity(msgspec.Struct, frozen=True):
    """Who sends a request. `key_id`: of its API key; it is no secret. `subject`: of its token or certificate."""

    tenant: KnownTenant
    method: Method
    key_id: str = ""
    subject: str = ""

    # Derived from the other fields, because each request needs them often.
    name: str = ""  # of the tenant
    client: str = ""  # for which memory and samples of its requests are counted
    session: str = ""  # the sticky key of its requests without a session

    def __post_init__(self) -> None:
        force_setattr(self, "name", self.tenant.name)
        force_setattr(self, "client", f"tenant:{self.name}")
        force_setattr(self, "session", f"key:{self.name}/{self.key_id or self.subject}")

    @property
    def weight(self) -> int:
        return self.tenant.weight


class VerifiedKey(msgspec.Struct, frozen=True):
    """What requests with a key need that was verified once."""

    identity: RequestIdentity
    expires_s: float | None


@dataclass(frozen=True, slots=True)
class AuthRefusal:
    """Why a request has no identity."""

    reason: AuthReason
    method: Method = Method.KEY


def authenticate(
    headers: MultiMapping[str], table: TenantTable, now: float, certificate: ClientCertificate | None = None
) -> RequestIdentity | AuthRefusal | UnverifiedToken:
    """Decides who sends a request: by its header `Authorization` or, without credentials there, by its certificate.

    A returned token is one that the caller must verify: with its issuer's keys if a tenant trusts the issuer, then
    `by_token` decides; else by a review of the API server, then `by_username` decides. `now`: Unix time. `certificate`:
    the client's, verified.
    """
    given = headers.getall(_AUTHORIZATION, [])
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
    found: VerifiedKey | None = table.verified.find(key)
    if found is None:
        key_id = api_keys.key_id(key)
        tenant_and_key = _find(api_keys.digest(key, table.pepper), table.keys.get(key_id, ()))
        if tenant_and_key is None or not key_id:
            return AuthRefusal(AuthReason.INVALID)
        tenant, entry = tenant_and_key
        found = VerifiedKey(RequestIdentity(tenant, Method.KEY, entry.id), entry.expires_s)
        table.verified.add(key, found)
    if found.expires_s is not None and now >= found.expires_s:
        return AuthRefusal(AuthReason.EXPIRED)
    return AuthRefusal(AuthReason.DISABLED) if found.identity.tenant.disabled else found.identity


def by_token(
    token: UnverifiedToken, keys: Iterable[tokens.IssuerKey], table: TenantTable, now: float
) -> RequestIdentity | AuthRefusal:
    """Decides by a JWT. `keys`: those of its issuer that may have signed the token."""
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
    """Decides by a verified client certificate. One of no tenant is no credential: it may be there only to connect."""
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
    """The refusal of a token that is not valid here by its own claims; None: the API server must review the token."""
    if token.expires_s is None or audience not in token.audiences:
        return AuthRefusal(AuthReason.INVALID, Method.SERVICE_ACCOUNT)
    return AuthRefusal(AuthReason.EXPIRED, Method.SERVICE_ACCOUNT) if now >= token.expires_s else None


def by_username(username: str, table: TenantTable) -> RequestIdentity | AuthRefusal:
    """Decides by a reviewed token. `username`: the one that the API server has for the token; "": it has none."""
    tenant = table.service_accounts.get(username)
    if tenant is None:
        return AuthRefusal(AuthReason.INVALID, Method.SERVICE_ACCOUNT)
    if tenant.disabled:
        return AuthRefusal(AuthReason.DISABLED, Method.SERVICE_ACCOUNT)
    return RequestIdentity(tenant, Method.SERVICE_ACCOUNT, subject=username[:MAX_SUBJECT])


def on_behalf(name: str, table: TenantTable) -> RequestIdentity | AuthRefusal:
    """Decides about a request of the jobs process. `name`: of the tenant for which that process sends it."""
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
