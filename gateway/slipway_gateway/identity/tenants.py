"""Tenants as gateways see them, and the table by which keys are found (pure)."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.guards import GuardSpec, guards_refusal
from slipway_contracts.tenants import TenantLimits, TenantPrice, TenantSpec

from ..quotas.policy import Budget, Policy, RequestBounds
from ..quotas.prices import Price, micro, nano
from ..quotas.tenant import Limits
from .certificates import COMMON_NAME, DNS, URI, key_of

EVERY_MODEL = "*"
_MAX_VERIFIED = 4096  # keys, some 150 bytes each


_Found = TypeVar("_Found")


class UnreadableTenant(ValueError):
    """An object of the API server is no Tenant of this release. The message names the field."""


@dataclass(frozen=True, slots=True)
class KeyHash:
    """The hash of one API key. `expires_s`: Unix time; None: never."""

    id: str
    hash: str
    expires_s: float | None = None


@dataclass(frozen=True, slots=True)
class TrustedIssuer:
    """Tokens of this issuer for one of these audiences, and with all of these claims, are the tenant's."""

    issuer: str
    audiences: tuple[str, ...]
    claims: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownTenant:
    """One Tenant. `created`: RFC 3339 in UTC, in which text order is time order."""

    name: str
    models: tuple[str, ...] = (EVERY_MODEL,)
    disabled: bool = False
    weight: int = 1
    priority_limit: int | None = None  # None: that of the gateway
    keys: tuple[KeyHash, ...] = ()
    created: str = ""
    issuers: tuple[TrustedIssuer, ...] = ()
    policy: Policy = field(default_factory=Policy)
    generation: int = 0  # of the object
    service_accounts: tuple[str, ...] = ()  # their user names
    certificates: tuple[str, ...] = ()  # names in them, as `certificates.key_of` has them
    content_capture: str = ""  # who may get contents of its requests
    generation_log: str = ""  # what may be kept of its requests for text
    guards: tuple[GuardSpec, ...] = ()  # checks of its requests, and of the responses to them
    external: bool = False  # its requests may go to APIs of other providers

    def may_use(self, names: Iterable[str]) -> bool:
        """Whether the tenant may use a model with these names: `namespace/name`, and the short one if it has that."""
        return EVERY_MODEL in self.models or any(_matches(pattern, name) for name in names for pattern in self.models)


class VerifiedKeys(Generic[_Found]):
    """What was found for the keys that one table verified: the next request with such a key needs no HMAC.

    The keys are kept as BLAKE2b, at most `most` of them, the oldest dropped first. The next table begins without them.
    """

    def __init__(self, most: int = _MAX_VERIFIED) -> None:
        self._most = most
        self._of: dict[bytes, _Found] = {}

    @property
    def kept(self) -> Collection[bytes]:
        return self._of.keys()

    def find(self, key: str) -> _Found | None:
        return self._of.get(_fingerprint(key))

    def add(self, key: str, found: _Found) -> None:
        if len(self._of) >= self._most:
            del self._of[next(iter(self._of))]
        self._of[_fingerprint(key)] = found


def _fingerprint(key: str) -> bytes:
    # Of the hashes of the standard library the one that begins fastest: keys are short.
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class TenantTable:
    """One immutable state of all tenants; a request is authenticated by exactly one of them.

    `pepper`: the secret of the release by which keys are hashed; empty: it is not known yet.
    """

    tenants: Mapping[str, KnownTenant] = field(default_factory=dict)
    pepper: bytes = field(default=b"", repr=False)
    # By the id of a key. Two tenants may have written the same id: the older one comes first.
    keys: Mapping[str, tuple[tuple[KnownTenant, KeyHash], ...]] = field(default_factory=dict, repr=False)
    # By the URL of an issuer; the older tenant comes first here too.
    issuers: Mapping[str, tuple[tuple[KnownTenant, TrustedIssuer], ...]] = field(default_factory=dict, repr=False)
    # By the user name of a service account; of several tenants the oldest one has it.
    service_accounts: Mapping[str, KnownTenant] = field(default_factory=dict, repr=False)
    # By a name in a client certificate, in the same way.
    certificates: Mapping[str, KnownTenant] = field(default_factory=dict, repr=False)
    verified: VerifiedKeys[Any] = field(default_factory=VerifiedKeys, repr=False, compare=False)


def build(tenants: Iterable[KnownTenant], pepper: bytes = b"") -> TenantTable:
    ordered = sorted(tenants, key=lambda tenant: (tenant.created, tenant.name))
    keys: dict[str, tuple[tuple[KnownTenant, KeyHash], ...]] = {}
    issuers: dict[str, tuple[tuple[KnownTenant, TrustedIssuer], ...]] = {}
    service_accounts: dict[str, KnownTenant] = {}
    certificates: dict[str, KnownTenant] = {}
    for tenant in ordered:
        for username in tenant.service_accounts:
            service_accounts.setdefault(username, tenant)
        for name in tenant.certificates:
            certificates.setdefault(name, tenant)
        for key in tenant.keys:
            keys[key.id] = (*keys.get(key.id, ()), (tenant, key))
        for trusted in tenant.issuers:
            issuers[trusted.issuer] = (*issuers.get(trusted.issuer, ()), (tenant, trusted))
    tenants_by_name = {tenant.name: tenant for tenant in ordered}
    return TenantTable(tenants_by_name, pepper, keys, issuers, service_accounts, certificates)


def parse(obj: Mapping[str, Any]) -> KnownTenant:
    """A Tenant from the API server.

    Raises:
        UnreadableTenant: when it is none that this release understands.
    """
    meta = obj["metadata"]
    try:
        spec = read(TenantSpec, encoded(obj.get("spec")), "spec")
        policy, certificates = _policy(spec), _certificates(spec)
        if refusal := guards_refusal(spec.guards, deployments=False):
            raise ValueError(f"spec.{refusal}")
    except ValueError as error:
        raise UnreadableTenant(f"Tenant {meta['name']}: {error}") from None
    keys = tuple(KeyHash(key.id, key.hash, _unix(key.expires_at)) for key in spec.auth.keys)
    created = str(meta.get("creationTimestamp") or "")
    limits = (spec.disabled, spec.weight, spec.priority_limit)
    issuers = tuple(TrustedIssuer(one.issuer, one.audiences, one.claims) for one in spec.auth.jwt)
    generation = int(meta.get("generation") or 0)
    accounts = tuple(username_of(one.namespace, one.name) for one in spec.auth.service_accounts)
    proofs = (accounts, certificates, spec.content_capture)
    return KnownTenant(
        meta["name"],
        spec.models,
        *limits,
        keys,
        created,
        issuers,
        policy,
        generation,
        *proofs,
        generation_log=spec.generation_log,
        guards=spec.guards,
        external=spec.external,
    )


def username_of(namespace: str, name: str) -> str:
    """The user name of a service account, as Kubernetes has it."""
    return f"system:serviceaccount:{namespace}:{name}"


def _certificates(spec: TenantSpec) -> tuple[str, ...]:
    """The names of `spec.auth.clientCertificates`, as `certificates.key_of` has them.

    Raises:
        ValueError: an item has none or several names. The message names the item.
    """
    found = []
    for index, one in enumerate(spec.auth.client_certificates):
        given = {URI: one.uri, DNS: one.dns, COMMON_NAME: one.common_name}
        names = [key_of(kind, name) for kind, name in given.items() if name]
        if len(names) != 1:
            raise ValueError(f"spec.auth.clientCertificates[{index}] needs one of uri, dns and commonName")
        found += names
    return tuple(found)


def _policy(spec: TenantSpec) -> Policy:
    """Limits, prices and budget of a Tenant.

    Raises:
        ValueError: an amount is no number. The message names the field.
    """
    limits, budget = spec.limits, spec.budget
    return Policy(
        Limits(
            limits.requests_per_minute or 0,
            limits.input_tokens_per_minute or 0,
            limits.output_tokens_per_minute or 0,
            limits.concurrency or 0,
            float(limits.burst_seconds),
        ),
        tuple(_price(price, f"spec.prices[{index}]") for index, price in enumerate(spec.prices)),
        Budget(_nano(budget.per_day, "spec.budget.perDay"), _nano(budget.per_month, "spec.budget.perMonth")),
        spec.default_estimated_output_tokens,
        _bounds(limits),
    )


def _bounds(limits: TenantLimits) -> RequestBounds:
    request, long_context = limits.per_request, limits.long_context
    bounds = RequestBounds(request.context_tokens or 0, request.output_tokens or 0)
    if long_context is None:
        return bounds
    return replace(bounds, long_context=long_context.input_tokens, long_concurrency=long_context.concurrency)


def _price(price: TenantPrice, path: str) -> Price:
    cached = price.cached_input_per_million
    return Price(
        price.model,
        micro(price.input_per_million, f"{path}.inputPerMillion"),
        micro(price.output_per_million, f"{path}.outputPerMillion"),
        None if cached is None else micro(cached, f"{path}.cachedInputPerMillion"),
        nano(price.per_request, f"{path}.perRequest"),
        price.cache_hit_percentage,
    )


def _nano(amount: str | None, path: str) -> int | None:
    return None if amount is None else nano(amount, path)


def _unix(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern fits a name. Without a slash it fits short names, so it opens no namespace; `*` fits all."""
    if pattern == EVERY_MODEL:
        return True
    if ("/" in pattern) != ("/" in name):
        return False
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
