"""What a gateway reads from the cluster; with a file of routes it needs none.

The client of Kubernetes is imported where it is used: it costs 60 MB that a gateway with a file does not need.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from slipway_process.supervisor import OnFailure

from ..authentication.authenticator import Authenticator
from ..authentication.issuers import IssuerKeys
from ..authentication.known_tenants import KnownTenants
from ..authentication.last_tenants import LastTenants
from ..authentication.service_accounts import ServiceAccountTokens
from ..balancing.load_balancer import LoadBalancer
from ..external.keys import ReadKey
from ..identity.authenticate import OFF
from ..routing.last_table import LastTable
from ..routing.routes_file import FileSource
from ..serving.admin import TableSource
from ..settings import GatewaySettings
from ..sharing.ready_gateways import ReadyGateways
from ..telemetry.metrics import GatewayMetrics

Run = Callable[[], Awaitable[None]]


class Tables(NamedTuple):
    """Where routes and tenants come from. `runs`: the tasks that keep them up to date, by name."""

    source: TableSource
    last: LastTable
    runs: dict[str, tuple[Run | None, OnFailure]]


def tables_of(
    settings: GatewaySettings, balancer: LoadBalancer, known: KnownTenants, metrics: GatewayMetrics
) -> Tables:
    remembered = "" if settings.routes else settings.state_dir  # a file of routes is its own memory
    last = LastTable(remembered, settings.state_max_age_s, balancer.publish, metrics)
    source, tenants = _table_source(settings, balancer, metrics, last), _tenants_watch(settings, known, metrics)
    last_tenants = LastTenants(settings.state_dir, settings.state_max_age_s, known)
    runs: dict[str, tuple[Run | None, OnFailure]] = {
        "routes": (source.run, OnFailure.EXIT),
        "tenants": (tenants, OnFailure.EXIT),
        "last-table": (last.run if remembered else None, OnFailure.SHOW),
        "last-tenants": (last_tenants.run if settings.state_dir and tenants else None, OnFailure.SHOW),
    }
    return Tables(source, last, runs)


def _table_source(
    settings: GatewaySettings, balancer: LoadBalancer, metrics: GatewayMetrics, last: LastTable
) -> TableSource:
    if settings.routes:
        watch = FileSource(settings.routes, balancer.publish)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, watch.reload)
        return watch
    from ..routing.cluster import ClusterSource

    names = (settings.own_namespace, settings.names_configmap)
    return ClusterSource(settings.kubeconfig, settings.namespaces, last.publish, metrics, names)


@contextlib.asynccontextmanager
async def provider_keys(settings: GatewaySettings) -> AsyncIterator[ReadKey | None]:
    """What reads API keys of providers; None: no provider is called."""
    if settings.routes or not settings.external_hosts:
        yield None
        return
    from ..external.secret_keys import SecretKeys

    keys = SecretKeys(settings.kubeconfig)
    try:
        yield keys.read
    finally:
        await keys.close()


def gateways_watch(settings: GatewaySettings, gateways: ReadyGateways, metrics: GatewayMetrics) -> Run | None:
    if settings.routes or settings.auth_mode == OFF or not settings.gateway_service:
        return None
    from ..sharing.gateway_source import GatewaySource

    service = (settings.own_namespace, settings.gateway_service)
    return GatewaySource(settings.kubeconfig, service, gateways, metrics).run


def _tenants_watch(settings: GatewaySettings, known: KnownTenants, metrics: GatewayMetrics) -> Run | None:
    if settings.auth_mode == OFF:
        return None
    if settings.routes:
        known.publish(())  # without a cluster there are no Tenants
        return None
    from ..authentication.tenant_source import TenantSource

    return TenantSource(settings.kubeconfig, known, metrics).run


def authenticator_of(
    settings: GatewaySettings,
    known: KnownTenants,
    metrics: GatewayMetrics,
    issuers: IssuerKeys,
    accounts: ServiceAccountTokens | None,
) -> Authenticator:
    verifies = bool(settings.tls_client_ca_file)
    return Authenticator(settings.auth_mode, known, metrics, issuers, accounts, verifies_clients=verifies)


@contextlib.asynccontextmanager
async def service_accounts(
    settings: GatewaySettings, metrics: GatewayMetrics
) -> AsyncIterator[ServiceAccountTokens | None]:
    """What reviews tokens of service accounts; None: their tokens are not reviewed."""
    if settings.routes or settings.auth_mode == OFF or not settings.token_review_audience:
        yield None
        return
    from ..authentication.token_review import TokenReview

    review = TokenReview(settings.kubeconfig, settings.token_review_audience)
    clock = time.monotonic
    tokens = ServiceAccountTokens(review.review, settings.token_review_audience, metrics, clock)
    try:
        yield tokens
    finally:
        await tokens.close()
        await review.close()
