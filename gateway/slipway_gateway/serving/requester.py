"""Under which names a request counts: its tenant where it has one, else what its headers and body name."""

from collections.abc import Collection
from functools import lru_cache

from aiohttp import web

from slipway_contracts.tenants import ALL, SCORERS

from ..guards.texts import is_guarded
from ..identity.authenticate import Method, RequestIdentity
from ..limits.connections import address_owner
from ..routing import guards
from ..routing.guards import BoundGuard
from ..routing.table import Route, RouteTable
from ..settings import GatewaySettings
from ..upstream.jobs_process import BATCH_PRIORITY
from ..wire import isolation, request_fields
from ..wire.inference import ModelPath
from ..wire.isolation import Isolation
from ..wire.request_fields import RequestFields
from ..wire.responses import WITHOUT_MODEL
from .model_routes import Way


def owner_of(request: web.BaseRequest) -> str:
    """Whose places a request without an identity takes. A key that is not verified counts for nothing here."""
    return f"address:{address_owner(request.remote or '')}"


def client_of(request: web.Request, identity: RequestIdentity | None, settings: GatewaySettings) -> str:
    """The client for which the request's memory is counted."""
    if identity is not None:
        return identity.client
    return request_fields.client(request.headers, address_owner(request.remote or ""), settings.share_by)


def tenant_of(
    request: web.Request, fields: RequestFields, identity: RequestIdentity | None, settings: GatewaySettings
) -> str:
    """The pseudonym of the request's tenant that servers get; empty when none is known."""
    salt = settings.tenant_salt.get_secret_value()
    if identity is not None:
        return _pseudonym_of(identity.client, salt)
    return request_fields.tenant(request.headers, fields, settings.tenant_by, salt)


@lru_cache(maxsize=4096)  # an HMAC for each request would cost more than finding its route
def _pseudonym_of(name: str, salt: str) -> str:
    return request_fields.pseudonym(name, salt)


def sticky_key_of(
    request: web.Request,
    fields: RequestFields,
    identity: RequestIdentity | None,
    settings: GatewaySettings,
    request_id: str,
) -> str:
    """The key that the split hashes, which keeps a client's requests at one revision."""
    alone = identity is None or identity.method is Method.BATCH  # requests of a batch follow the weights one by one
    own = "" if identity is None or alone else identity.session
    return request_fields.sticky_key(request.headers, fields, request_id, settings.sticky_by, own)


def priority_limit_of(identity: RequestIdentity | None, settings: GatewaySettings, *, batch: bool = False) -> int:
    """The most urgent priority that the request may have; a lower number is more urgent."""
    if batch:
        return BATCH_PRIORITY
    limit = identity.tenant.priority_limit if identity is not None else None
    return settings.priority_limit if limit is None else limit


def isolation_of(
    request: web.Request,
    fields: RequestFields,
    path: ModelPath | None,
    identity: RequestIdentity | None,
    deployment: str,
    priority_limit: int,
) -> Isolation | None:
    """What keeps a tenant apart at an engine that knows none; None without one, and for what is no prompt in JSON."""
    if identity is None or request.path in WITHOUT_MODEL or (path and path.opaque):
        return None
    return isolation.isolation_of(fields, identity.name, deployment, priority_limit)


def guards_of(
    request: web.Request,
    path: ModelPath | None,
    table: RouteTable,
    route: Route,
    way: Way,
    identity: RequestIdentity | None,
) -> tuple[BoundGuard, ...]:
    """The guards of a request; none where its path has no texts."""
    if (path and path.opaque) or request.method != "POST" or not is_guarded(request.path):
        return ()
    tenant = identity.tenant if identity else None
    of_tenant = tenant.guards if tenant else ()
    passed, fallbacks = (name for name, _ in way.passed), route.fallbacks if way.fallbacks is None else way.fallbacks
    return guards.guards_of(table, route, passed, tenant.name if tenant else "", of_tenant, fallbacks)


def may_be_scored(identity: RequestIdentity | None) -> bool:
    """Whether a scorer may get the request's contents. Without a tenant the AnalysisTemplate alone decides."""
    return identity is None or identity.tenant.content_capture in (SCORERS, ALL)


def forwarded_for(identity: RequestIdentity | None, forwarded: Collection[str]) -> tuple[str, ...]:
    """Names of the headers with credentials that the server gets: never the header that identified the tenant here."""
    if identity is None:
        return tuple(forwarded)
    return tuple(name for name in forwarded if name != "authorization") if forwarded else ()
