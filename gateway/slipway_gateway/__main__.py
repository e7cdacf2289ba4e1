"""Composition root: settings → backends → source of routes → API and admin ports → drain."""

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

from aiohttp import ClientSession, http_parser, web

from slipway_contracts.passes import PassKeys
from slipway_process import collector, logs
from slipway_process.supervisor import OnFailure, Supervisor

from .authentication.authenticator import Authenticator
from .authentication.issuers import IssuerKeys
from .authentication.known_tenants import KnownTenants
from .authentication.last_tenants import LastTenants
from .authentication.pepper import PepperFile
from .authentication.service_accounts import ServiceAccountTokens
from .balancing.failsafe import CutOffRule
from .balancing.failsafe_state import FailsafeSettings
from .balancing.load_balancer import LoadBalancer
from .balancing.outlier import OutlierDetection
from .feedback.endpoint import SharedClaims
from .forwarding.proxy import Proxy, max_sessions
from .grpc_api.listener import GrpcServer
from .identity.authenticate import OFF
from .ledger.inference_table import InferenceTable
from .ledger.store import LedgerStore
from .ledger.writer import Ledger
from .routing.last_table import LastTable
from .routing.routes_file import FileSource
from .serving.admin import AdminApi, TableSource
from .serving.admission import Admission
from .serving.api import PublicApi
from .serving.listener import ConnectionLimiter, listen
from .serving.operator_token import OperatorToken
from .serving.tls import ServerTls, server_tls
from .settings import GatewaySettings
from .sharing.counters import SharedBudgets, SharedCounters
from .sharing.limiter import Limiter
from .sharing.ready_gateways import ReadyGateways
from .telemetry.access_log import AccessLog, open_access_log
from .telemetry.inference_log import InferenceLog
from .telemetry.line_writer import LineWriter
from .telemetry.metrics import GatewayMetrics
from .upstream.internal_tls import InternalTls, internal_tls
from .upstream.jobs_process import JobsBackend
from .upstream.session import open_direct, open_session
from .upstream.warmup import Warmup

log = logging.getLogger("slipway_gateway")
Run = Callable[[], Awaitable[None]]
# For error events to reach clients after the drain's time is over.
_FAREWELL_S = 2.0
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 128 << 10  # of mallopt


def main() -> None:
    settings = GatewaySettings.parse(sys.argv[1:])
    logs.configure(settings.log_level)
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy and not settings.allow_pure_python:
        sys.exit(
            "slipway-gateway: aiohttp's C extensions are missing; the pure Python parser is several times slower. "
            "Install an aiohttp wheel, or start with --allow-pure-python."
        )
    _raise_file_limit()
    _return_memory()
    try:
        store = LedgerStore(_ledger_url(settings))
    except ValueError as error:
        sys.exit(f"slipway-gateway: --ledger-url: {error}")
    sys.exit(asyncio.run(run(settings, store)))


def _raise_file_limit() -> None:
    # A stream takes two descriptors: the usual soft limit of 1024 would end at 500 of them.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _return_memory() -> None:
    # By default glibc keeps freed memory once it saw large blocks; this threshold returns large blocks at once.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def _version() -> str:
    try:
        return version("slipway")
    except PackageNotFoundError:
        return "unknown"


def _source(settings: GatewaySettings, balancer: LoadBalancer, metrics: GatewayMetrics, last: LastTable) -> TableSource:
    if settings.routes:
        watch = FileSource(settings.routes, balancer.publish)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, watch.reload)
        return watch
    # Imported here: the client of Kubernetes costs 60 MB that a gateway with a file does not need.
    from .routing.cluster import ClusterSource

    names = (settings.own_namespace, settings.names_configmap)
    return ClusterSource(settings.kubeconfig, settings.namespaces, last.publish, metrics, names)


def _watch_gateways(settings: GatewaySettings, gateways: ReadyGateways, metrics: GatewayMetrics) -> Run | None:
    if settings.routes or settings.auth_mode == OFF or not settings.gateway_service:
        return None
    from .sharing.gateway_source import GatewaySource  # for the same reason

    service = (settings.own_namespace, settings.gateway_service)
    return GatewaySource(settings.kubeconfig, service, gateways, metrics).run


def _counters(settings: GatewaySettings, metrics: GatewayMetrics) -> SharedCounters | None:
    """
    Raises:
        ValueError: the URL of Redis cannot be used.
    """
    if not (url := settings.redis_url.get_secret_value()):
        return None
    from .sharing.redis_counters import RedisCounters  # as above: the client takes a while to load

    return RedisCounters(url, settings.redis_prefix, settings.redis_timeout_s, metrics)


def _budgets(settings: GatewaySettings, metrics: GatewayMetrics, ledger: Ledger) -> SharedBudgets | None:
    if not (url := settings.redis_url.get_secret_value()):
        return None
    from .sharing.redis_budgets import RedisBudgets  # as above

    shared = (url, settings.redis_prefix, settings.redis_timeout_s, metrics)
    return RedisBudgets(*shared, own=ledger.own, hour=lambda: ledger.hour)


def _claims(settings: GatewaySettings) -> SharedClaims | None:
    """Claims of feedback tokens at Redis; None without Redis. `_counters` has checked its URL."""
    if not (url := settings.redis_url.get_secret_value()):
        return None
    from .sharing.redis_claims import RedisClaims  # as above

    return RedisClaims(url, settings.redis_prefix, settings.redis_timeout_s)


def _admission(
    settings: GatewaySettings, metrics: GatewayMetrics, ledger: Ledger, balancer: LoadBalancer
) -> tuple[Admission, ReadyGateways, dict[str, SharedCounters | SharedBudgets]]:
    clock = time.monotonic
    gateways = ReadyGateways(socket.gethostname(), metrics.ready_gateways.set)
    try:
        counters, budgets = _counters(settings, metrics), _budgets(settings, metrics, ledger)
    except ValueError as error:
        sys.exit(f"slipway-gateway: {error}")
    admission = Admission(ledger, metrics, clock, Limiter(clock, gateways, counters), budgets)
    admission.on_implausible = balancer.usage_implausible
    found = {"limits": counters, "budgets": budgets}
    return admission, gateways, {name: one for name, one in found.items() if one is not None}


def _watch_tenants(settings: GatewaySettings, known: KnownTenants, metrics: GatewayMetrics) -> Run | None:
    if settings.auth_mode == OFF:
        return None
    if settings.routes:
        known.publish(())  # without a cluster there are no Tenants
        return None
    from .authentication.tenant_source import TenantSource  # for the same reason

    return TenantSource(settings.kubeconfig, known, metrics).run


@contextlib.asynccontextmanager
async def _accounts(settings: GatewaySettings, metrics: GatewayMetrics) -> AsyncIterator[ServiceAccountTokens | None]:
    """What reviews tokens of service accounts; None: their tokens are not reviewed."""
    if settings.routes or settings.auth_mode == OFF or not settings.token_review_audience:
        yield None
        return
    from .authentication.token_review import TokenReview  # for the same reason

    review = TokenReview(settings.kubeconfig, settings.token_review_audience)
    clock = time.monotonic
    tokens = ServiceAccountTokens(review.review, settings.token_review_audience, metrics, clock)
    try:
        yield tokens
    finally:
        await tokens.close()
        await review.close()


def _ledger_url(settings: GatewaySettings) -> str:
    if given := settings.ledger_url.get_secret_value():
        return given
    return f"sqlite:///{Path(settings.state_dir).absolute()}/ledger.db" if settings.state_dir else "sqlite://"


def _ledger(settings: GatewaySettings, store: LedgerStore, metrics: GatewayMetrics) -> Ledger:
    quarantine = Path(settings.state_dir) / "ledger-quarantine.jsonl" if settings.state_dir else None
    return Ledger(store, metrics, quarantine=quarantine)


def _balancer(settings: GatewaySettings, metrics: GatewayMetrics, incarnation: str) -> LoadBalancer:
    rule = CutOffRule(settings.cut_off_failures, settings.cut_off_after_s, settings.cut_off_cooldown_s)
    outliers = OutlierDetection(**{field.name: getattr(settings, field.name) for field in fields(OutlierDetection)})
    return LoadBalancer(
        metrics,
        FailsafeSettings(rule, settings.failsafe_ttl_s),
        hung_after_s=settings.hung_after_s,
        incarnation=incarnation,
        outlier_detection=outliers,
        max_sessions=max_sessions(settings),
    )


async def _listen_grpc(
    edge: PublicApi, balancer: LoadBalancer, settings: GatewaySettings, tls: ServerTls | None
) -> GrpcServer | None:
    if not settings.grpc_port:
        return None
    server = GrpcServer(edge, balancer.published, settings, tls)
    try:
        await server.start()
    except OSError as error:
        sys.exit(f"slipway-gateway: gRPC cannot listen on port {settings.grpc_port}: {error}")
    return server


def _access_log(settings: GatewaySettings, metrics: GatewayMetrics) -> AccessLog:
    """
    Raises:
        OSError: its file cannot be written.
    """
    bounds = (settings.access_log_max_bytes, settings.access_log_max_files)
    return open_access_log(settings.access_log, bounds, metrics, settings.access_log_sample)


def _inference_log(settings: GatewaySettings, metrics: GatewayMetrics) -> InferenceLog:
    """
    Raises:
        ValueError: its URL names no database that is known.
    """
    if not (url := settings.inference_log_url.get_secret_value()):
        return InferenceLog()
    try:
        table = InferenceTable(url, settings.inference_log_retention_s)
    except ValueError as error:
        raise ValueError(f"--inference-log-url: {error}") from None
    restarted = metrics.task_restarted
    writer = LineWriter(table, metrics.inference_log_dropped, name="inference log", on_restart=restarted)
    return InferenceLog(writer, settings.inference_log_max_content_bytes)


async def _listen_inside(admin: AdminApi, settings: GatewaySettings, tls: InternalTls | None) -> list[web.AppRunner]:
    """The admin port, and the operator's where there is a certificate."""
    runners = [await listen(admin.app(), settings.admin_host, settings.admin_port, settings)]
    if tls:
        place, context = (settings.admin_host, settings.internal_port), tls.server_context()
        runners.append(await listen(admin.internal_app(), *place, settings, context=context))
    return runners


def _jobs(settings: GatewaySettings, session: ClientSession, balancer: LoadBalancer) -> JobsBackend | None:
    if not settings.jobs_url:
        return None
    return JobsBackend(settings, session, PassKeys(settings.tenant_keys_file), balancer)


def _supervise(tasks: Supervisor, runs: dict[str, tuple[Run | None, OnFailure]]) -> None:
    """Starts what runs as long as the process; None: it has nothing to do here."""
    for name, (run_, on_failure) in runs.items():
        if run_ is not None:
            tasks.start(name, run_, on_failure)


def _open_files(
    settings: GatewaySettings, metrics: GatewayMetrics
) -> tuple[ServerTls | None, InternalTls | None, AccessLog, InferenceLog]:
    """Certificates and logs. The process ends with a sentence where one cannot be used."""
    try:
        tls, internal = server_tls(settings, metrics), internal_tls(settings, metrics)
        return tls, internal, _access_log(settings, metrics), _inference_log(settings, metrics)
    except (OSError, ValueError) as error:
        sys.exit(f"slipway-gateway: {error}")


async def run(settings: GatewaySettings, store: LedgerStore) -> int:
    metrics = GatewayMetrics(_version())
    tls, internal, access_log, inference_log = _open_files(settings, metrics)
    incarnation, clock = uuid.uuid4().hex, time.monotonic
    balancer = _balancer(settings, metrics, incarnation)
    async with open_session(settings, internal) as session, _accounts(settings, metrics) as accounts:
        known = KnownTenants(PepperFile(settings.key_pepper_file, clock).read)
        issuers = IssuerKeys(clock, settings.oidc_ca_file)
        verifies = bool(settings.tls_client_ca_file)
        authenticator = Authenticator(settings.auth_mode, known, metrics, issuers, accounts, verifies_clients=verifies)
        ledger = _ledger(settings, store, metrics)
        admission, gateways, shared = _admission(settings, metrics, ledger, balancer)
        known.on_publish = admission.tenants_changed
        proxy = Proxy(settings, balancer, metrics, session, inference_log)
        edge = PublicApi(settings, balancer, proxy, metrics, authenticator, admission)
        jobs, claims = _jobs(settings, session, balancer), _claims(settings)
        edge.access_log, edge.jobs, edge.feedback.shared = access_log, jobs, claims
        remembered = "" if settings.routes else settings.state_dir  # a file of routes is its own memory
        last = LastTable(remembered, settings.state_max_age_s, balancer.publish, metrics)
        source = _source(settings, balancer, metrics, last)
        tenants = _watch_tenants(settings, known, metrics)
        stop = asyncio.Event()
        tasks = Supervisor(metrics.task_restarted, stop.set)
        operator = OperatorToken(settings.operator_token_file)
        admin = AdminApi(edge, balancer, metrics, source, incarnation, operator, last, tasks=tasks)
        admin_runners = await _listen_inside(admin, settings, internal)
        door = edge.door()
        runner = await listen(edge.app(), settings.host, settings.port, settings, door, tls)
        grpc_port = await _listen_grpc(edge, balancer, settings, tls)
        collector.spare()
        _log_ports(runner, *admin_runners, tls=tls is not None)
        warmup = Warmup(open_direct(session), settings.warm_connections, clock)
        last_tenants = LastTenants(settings.state_dir, settings.state_max_age_s, known)
        _supervise(
            tasks,
            {
                "routes": (source.run, OnFailure.EXIT),
                "tenants": (tenants, OnFailure.EXIT),
                "ledger": (ledger.run, OnFailure.UNREADY),
                **{name: (one.run, OnFailure.UNREADY) for name, one in shared.items()},
                # Without these a gateway serves all the same.
                "collector": (collector.collect_when_grown, OnFailure.SHOW),
                "gateways": (_watch_gateways(settings, gateways, metrics), OnFailure.SHOW),
                "warm-up": (partial(warmup.run, balancer) if settings.warm_connections else None, OnFailure.SHOW),
                "last-table": (last.run if remembered else None, OnFailure.SHOW),
                "last-tenants": (last_tenants.run if settings.state_dir and tenants else None, OnFailure.SHOW),
                "probes": (proxy.twins.run if settings.twin_max_inflight else None, OnFailure.SHOW),
                "grpc-connections": (grpc_port.run if grpc_port else None, OnFailure.SHOW),
            },
        )
        try:
            await Shutdown(settings, edge, door, grpc_port, stop).wait(runner)
            return int(bool(tasks.gave_up))
        finally:
            await tasks.close()
            await issuers.close()
            await ledger.close_down()
            await _close(*shared.values(), *([claims] if claims else []), access_log, inference_log)
            await asyncio.gather(*(one.cleanup() for one in admin_runners))


def _log_ports(*runners: web.AppRunner, tls: bool) -> None:
    ports = zip(("api", "admin", "internal"), runners, strict=False)
    log.info("listening", extra={"tls": tls, **{name: runner.addresses for name, runner in ports}})


class Closable(Protocol):
    """What is ended with the process."""

    async def close(self) -> None: ...


async def _close(*parts: Closable) -> None:
    """Ends the connections and the files of the parts, one after the other."""
    for part in parts:
        await part.close()


class Shutdown:
    """The end of the process: the first signal drains, or `stop`; the second signal exits now."""

    def __init__(
        self,
        settings: GatewaySettings,
        edge: PublicApi,
        door: ConnectionLimiter,
        grpc_port: GrpcServer | None,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._edge = edge
        self._door = door
        self._grpc_port = grpc_port
        self._stop = stop
        self._delay_s = settings.drain_delay_s
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._signalled, settings.drain_delay_s)
        # Ctrl-C at a terminal: no load balancer has to remove this gateway first.
        loop.add_signal_handler(signal.SIGINT, self._signalled, 0.0)

    def _signalled(self, delay_s: float) -> None:
        if self._edge.draining:
            log.warning("second signal: exiting now")
            os._exit(1)
        self._delay_s = delay_s
        self._edge.draining = True
        self._stop.set()

    async def wait(self, runner: web.AppRunner) -> None:
        await self._stop.wait()
        self._edge.draining = True
        await self._drain(runner)

    async def _drain(self, runner: web.AppRunner) -> None:
        log.info("draining", extra={"running": self._edge.running, "delay_s": self._delay_s})
        await self._edge.stop_mirroring()
        await asyncio.sleep(self._delay_s)
        for site in list(runner.sites):
            await site.stop()
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await asyncio.gather(self._door.drain(), *([self._grpc_port.drain()] if self._grpc_port else []))
        except TimeoutError:
            log.warning("drain timeout: requests are cut", extra={"running": self._edge.running})
            self._edge.cut()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    await self._edge.idle()
        if self._grpc_port:
            await self._grpc_port.close()
        await runner.cleanup()
        log.info("drained")


if __name__ == "__main__":
    main()
