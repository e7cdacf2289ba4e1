"""Keeps the metrics API served and registered: certificate, front proxy, port, APIServices; checks every minute."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from aiohttp import web

from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.writing.aggregation import FrontProxy, Host, NoFrontProxy, front_proxy, register
from slipway_operator.metrics_api import certificate
from slipway_operator.metrics_api.app import Api
from slipway_operator.metrics_api.certificate import Certificate
from slipway_operator.metrics_api.documents import VERSIONS
from slipway_operator.metrics_api.release import ReleaseLoads
from slipway_operator.metrics_api.sampler import MetricsSampler
from slipway_operator.model.cluster.observed import Observed

LOOK_S = 60.0
RETRY_S = 5.0
_RENEW_AFTER_S = certificate.DAYS * 86400 / 2
_SHUTDOWN_S = 2.0  # responses take milliseconds; shutdown does not wait longer for idle connections of the API server

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Served:
    """The running server, with its certificate and the CA of its clients."""

    own: Certificate
    clients_ca: str
    made_at: float
    runner: web.AppRunner


@dataclass(slots=True, eq=False)
class MetricsApi(Component):
    """The server of one operator. Failures are logged and retried: rollouts do not depend on it."""

    task = "metrics-api"

    client: Client
    sampler: MetricsSampler
    host: Host
    port: int
    changed: Callable[[dict[str, str]], None]  # gets the provider of each API group when one of them changes
    release: ReleaseLoads | None = None
    clock: Callable[[], float] = time.monotonic
    _providers: dict[str, str] = field(default_factory=dict)
    _names: frozenset[str] = frozenset()
    _served: _Served | None = None
    _problem: str = ""

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with who serves each group of metrics."""
        return replace(observed, metrics_providers=self.providers())

    def providers(self) -> dict[str, str]:
        """Return the provider of each API group, "" for this operator; empty while they are unknown."""
        return dict(self._providers)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            while True:
                pause_s = await self._look()
                await asyncio.sleep(pause_s)
        finally:
            await self._stop()

    async def _look(self) -> float:
        try:
            await self.keep()
        except (ApiError, NoFrontProxy, OSError) as error:
            self._log_once(f"the metrics API is not served as it should be: {error}")
            return RETRY_S
        self._log_once("")
        return LOOK_S

    async def keep(self) -> None:
        """Serve with the API server's current front proxy and our current certificate, and update the registrations.

        Raises:
            ApiError, NoFrontProxy: when the API server cannot be read or written, or has no front proxy.
            OSError: when the port cannot be opened.
        """
        proxy = await front_proxy(self.client)
        self._names = proxy.names
        served = self._served
        if not served or served.clients_ca != proxy.ca or self.clock() - served.made_at > _RENEW_AFTER_S:
            served = await self._serve(proxy)
        providers = await register(self.client, self.host, VERSIONS, served.own.certificate)
        if providers != self._providers:
            self._providers = providers
            for group, provider in providers.items():
                log.info("%s is served by %s", group, provider or "this operator")
            self.changed(self.providers())

    async def _serve(self, proxy: FrontProxy) -> _Served:
        own = certificate.make(self.host.dns_name, datetime.now(UTC))
        context = certificate.server_context(own, proxy.ca)
        await self._stop()
        application = Api(self.sampler, self.release).application(lambda: self._names)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, None, self.port, ssl_context=context).start()
        except OSError:
            await runner.cleanup()
            raise
        self._served = _Served(own, proxy.ca, self.clock(), runner)
        return self._served

    async def _stop(self) -> None:
        if self._served:
            served, self._served = self._served, None
            await served.runner.cleanup()

    def _log_once(self, problem: str) -> None:
        """Log a problem, unless the last try had the same one; empty: the last try had none."""
        if problem and problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem
