"""Authenticates requests by the mode of the gateway, and counts the results."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from multidict import MultiMapping

from slipway_process.places import Places

from ..identity import certificates
from ..identity.authenticate import (
    AUTO,
    OFF,
    OPTIONAL,
    AuthReason,
    AuthRefusal,
    Method,
    RequestIdentity,
    authenticate,
    before_review,
    by_token,
    by_username,
    on_behalf,
)
from ..identity.failures import FailureDelays
from ..identity.tenants import KnownTenant, TenantTable
from ..identity.tokens import UnverifiedToken
from ..limits.connections import address_owner
from ..telemetry.metrics import GatewayMetrics
from ..wire import errors
from .issuers import IssuerKeys, IssuerUnavailable
from .known_tenants import KnownTenants
from .service_accounts import ReviewUnavailable, ServiceAccountTokens

# Refusals that are delayed at the same time, with a share for each address; a further one is 429 without a delay.
MAX_WAITING = 256
_NO_CREDENTIALS = (AuthReason.MISSING, AuthReason.FOREIGN)


class Authenticator:
    """Authenticates the requests of one gateway.

    `mode`: one of `AUTH_MODES`; with `auto`, credentials are required as soon as there is a Tenant. `accounts` None:
    tokens of service accounts are not reviewed. `verifies_clients`: whether the listener verifies client certificates.
    """

    def __init__(
        self,
        mode: str,
        known: KnownTenants,
        metrics: GatewayMetrics,
        issuers: IssuerKeys,
        accounts: ServiceAccountTokens | None = None,
        *,
        verifies_clients: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._issuers = issuers
        self._accounts = accounts
        self.verifies_clients = verifies_clients
        self._mode = mode
        self.known = known
        self._metrics = metrics
        self._clock = clock
        self._failures = FailureDelays()
        self._waiting = Places(MAX_WAITING)

    @property
    def waiting_for(self) -> str:
        """Why no request can be authenticated now; empty when they can."""
        return "" if self._mode == OFF or self.known.current is not None else f"tenants: {self.known.trouble()}"

    @property
    def needs_none(self) -> bool:
        """Whether no request has an identity now, whatever it sends."""
        table = self.known.current
        return self._mode == OFF or (self._mode == AUTO and table is not None and not table.tenants)

    @property
    def looks_at_tenants(self) -> bool:
        return self._mode != OFF

    def trouble_of(self, tenant: KnownTenant, pepper: bytes) -> tuple[str, str] | None:
        """Why credentials of this tenant cannot be checked now, as a reason and a message; None when they can."""
        if tenant.keys and not pepper:
            return (
                "KeyPepperMissing",
                "gateways have no pepper, so no key is valid: is the Secret of the release there?",
            )
        for one in tenant.issuers:
            if trouble := self._issuers.trouble(one.issuer):
                return "IssuerUnavailable", f"the keys of the issuer {one.issuer} cannot be read: {trouble}"
        if tenant.service_accounts and self._accounts is None:
            return "TokenReviewOff", "gateways review no tokens: set auth.tokenReview.audience of the chart"
        if tenant.service_accounts and self._accounts is not None and self._accounts.trouble:
            trouble = self._accounts.trouble
            return "TokenReviewUnavailable", f"tokens of service accounts cannot be reviewed: {trouble}"
        if tenant.certificates and not self.verifies_clients:
            return "ClientCertificatesOff", "gateways verify no certificates: set gateway.tls.clientCASecretName"
        return None

    async def identify(
        self, headers: MultiMapping[str], address: str, certificate: Mapping[str, Any] | None = None
    ) -> RequestIdentity | None:
        """The sender of a request; None: the request has no credentials and needs none.

        `address`: the client's IP address; after many refusals of one address, further ones are delayed.
        `certificate`: the client's verified one, as `ssl.SSLSocket.getpeercert` returns it.

        Raises:
            RequestError: the request is refused.
        """
        if self._mode == OFF:
            return None
        table = self.known.current
        if table is None:
            raise _error(AuthRefusal(AuthReason.NOT_READY))
        if self.needs_none:
            return None
        verified = certificates.read(certificate) if table.certificates else None
        found = authenticate(headers, table, self._clock(), verified)
        if isinstance(found, UnverifiedToken):
            by_issuer = found.issuer in table.issuers
            found = await (self._verify(found, table) if by_issuer else self._review(found, table, address))
        if isinstance(found, RequestIdentity):
            self._metrics.authenticated(found.method, "ok")
            return found
        await self._refuse(found, address)
        return None

    def on_behalf(self, tenant: str) -> RequestIdentity | None:
        """The identity of a request that the jobs process sends for this tenant; its signature was verified before.

        None: the gateway requires no credentials now.

        Raises:
            RequestError: the tenant is gone or disabled, or tenants are not known yet.
        """
        table = self.known.current
        if self._mode == OFF or (self._mode == AUTO and table is not None and not table.tenants):
            return None
        found = AuthRefusal(AuthReason.NOT_READY) if table is None else on_behalf(tenant, table)
        if isinstance(found, AuthRefusal):
            raise _error(found)
        self._metrics.authenticated(found.method, "ok")
        return found

    async def _refuse(self, found: AuthRefusal, address: str) -> None:
        """Raises RequestError, except where no credentials are needed."""
        if self._mode == OPTIONAL and found.reason in _NO_CREDENTIALS:
            self._metrics.authenticated("none", "anonymous")
            return
        self._metrics.authenticated("none" if found.reason in _NO_CREDENTIALS else found.method, found.reason)
        if found.reason is not AuthReason.NOT_READY:
            await self._slow_down(address_owner(address))
        raise _error(found)

    async def _verify(self, token: UnverifiedToken, table: TenantTable) -> RequestIdentity | AuthRefusal:
        try:
            keys = await self._issuers.of(token)
        except IssuerUnavailable:
            return AuthRefusal(AuthReason.NOT_READY, Method.JWT)
        finally:
            self._issuers.keep(frozenset(table.issuers))
        return by_token(token, keys, table, self._clock())

    async def _review(self, token: UnverifiedToken, table: TenantTable, address: str) -> RequestIdentity | AuthRefusal:
        if self._accounts is None:
            return AuthRefusal(AuthReason.FOREIGN)
        if refusal := before_review(token, self._accounts.audience, self._clock()):
            return refusal
        try:
            username = await self._accounts.username(token, address_owner(address))
        except ReviewUnavailable:
            return AuthRefusal(AuthReason.NOT_READY, Method.SERVICE_ACCOUNT)
        return by_username(username, table)

    async def _slow_down(self, source: str) -> None:
        delay_s = self._failures.failed(source, self._clock())
        if not delay_s:
            return
        if self._waiting.take(source):
            raise errors.too_many_failures()
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._waiting.leave(source)


def _error(refusal: AuthRefusal) -> errors.RequestError:
    match refusal.reason:
        case AuthReason.MISSING:
            return errors.no_credentials()
        case AuthReason.EXPIRED:
            return errors.expired_credentials()
        case AuthReason.DISABLED:
            return errors.tenant_disabled()
        case AuthReason.NOT_READY:
            return errors.no_tenants()
        case _:
            return errors.bad_credentials()
