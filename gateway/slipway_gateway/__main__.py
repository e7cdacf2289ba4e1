"""Composition root: settings → backends → source of routes → API and admin ports → drain."""

import asyncio
import contextlib
import ctypes
import logging
import resource
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple, Protocol

import aiohttp
from aiohttp import http_parser, web

from slipway_process import collector, logs
from slipway_process.supervisor import OnFailure, Supervisor

from .assembly.cluster import Run, authenticator_of, gateways_watch, provider_keys, service_accounts, tables_of
from .assembly.forwarding import adapter_runs, balancer_of, caches_of, forwarding_of
from .assembly.plane import join_lane
from .assembly.stores import (
    SharedStores,
    access_log_of,
    admission_of,
    experiments_of,
    generation_log_of,
    inference_log_of,
    jobs_of,
    ledger_of,
    ledger_url,
    shared_stores,
    traces_of,
)
from .assembly.streams import app_of
from .authentication.issuers import IssuerKeys
from .authentication.known_tenants import KnownTenants
from .authentication.pepper import PepperFile
from .authentication.service_accounts import ServiceAccountTokens
from .balancing.load_balancer import LoadBalancer
from .experiments.exposures import Experiments
from .external.keys import ReadKey
from .generations.log import GenerationLog
from .grpc_api.listener import GrpcServer
from .ledger.store import LedgerStore
from .ledger.writer import Ledger
from .plane.port import PlanePort, plane_port
from .serving.admin import AdminApi
from .serving.api import PublicApi
from .serving.listener import listen
from .serving.operator_token import OperatorToken
from .serving.tls import ServerTls, server_tls
from .settings import GatewaySettings
from .sharing.ready_gateways import ReadyGateways
from .shutdown import Shutdown
from .telemetry.access_log import AccessLog
from .telemetry.inference_log import InferenceLog
from .telemetry.metrics import GatewayMetrics
from .telemetry.tracing import Traces
from .token_streams.streams import TokenStreams
from .upstream.internal_tls import InternalTls, internal_tls
from .upstream.session import open_direct, open_session
from .upstream.warmup import Warmup

log = logging.getLogger("slipway_gateway")
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 128 << 10  # of mallopt


def main() -> None:
    settings = GatewaySettings.parse(sys.argv[1:])
    logs.configure(settings.log_level)
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy and not settings.allow_pure_python:
        sys.exit(
            "slipway-gateway: aiohttp's C extensions are missing; the pure Python parser is several times slower. "
            "Install an aiohttp wheel, or start with --allow-pure-python."
        )
    if settings.conversations and not settings.jobs_url:
        sys.exit("slipway-gateway: --conversations needs --jobs-url")
    _raise_file_limit()
    _return_memory()
    try:
        store = LedgerStore(ledger_url(settings))
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


async def _listen_grpc(
    edge: PublicApi, balancer: LoadBalancer, settings: GatewaySettings, tls: ServerTls | None, streams: TokenStreams
) -> GrpcServer | None:
    if not settings.grpc_port:
        return None
    server = GrpcServer(edge, balancer.published, settings, tls, streams=streams)
    try:
        await server.start()
    except OSError as error:
        sys.exit(f"slipway-gateway: gRPC cannot listen on port {settings.grpc_port}: {error}")
    return server


async def _listen_inside(admin: AdminApi, settings: GatewaySettings, tls: InternalTls | None) -> list[web.AppRunner]:
    """The admin port, and the operator's where there is a certificate."""
    runners = [await listen(admin.app(), settings.admin_host, settings.admin_port, settings)]
    if tls:
        place, context = (settings.admin_host, settings.internal_port), tls.server_context()
        runners.append(await listen(admin.internal_app(), *place, settings, context=context))
    return runners


def _supervisor(metrics: GatewayMetrics) -> tuple[Supervisor, asyncio.Event]:
    """What runs beside requests, and the event that ends the process: of a signal, or of a task that it needs."""
    stop = asyncio.Event()
    return Supervisor(metrics.task_restarted, stop.set), stop


def _supervise(tasks: Supervisor, runs: dict[str, tuple[Run | None, OnFailure]]) -> None:
    """Starts what runs as long as the process; None: it has nothing to do here."""
    for name, (run_, on_failure) in runs.items():
        if run_ is not None:
            tasks.start(name, run_, on_failure)


class Opened(NamedTuple):
    """What the process opens before it serves."""

    tls: ServerTls | None
    internal: InternalTls | None
    access_log: AccessLog
    inference_log: InferenceLog
    shared: SharedStores
    experiments: Experiments
    plane: PlanePort | None
    traces: Traces
    generations: GenerationLog

    @property
    def stores(self) -> "tuple[Closable, ...]":
        """What is written until the last request has ended."""
        return (*self.shared.stores, self.access_log, self.inference_log, self.generations, self.traces)


def _opened(settings: GatewaySettings, metrics: GatewayMetrics, ledger: Ledger, balancer: LoadBalancer) -> Opened:
    """Certificates, logs and stores. The process ends with a sentence where one cannot be used."""
    try:
        shared = shared_stores(settings, metrics, ledger)
        return Opened(
            server_tls(settings, metrics),
            internal_tls(settings, metrics),
            access_log_of(settings, metrics),
            inference_log_of(settings, metrics),
            shared,
            experiments_of(settings, balancer, metrics, shared.exposures),
            plane_port(settings, metrics),
            traces_of(settings),
            generation_log_of(settings, metrics, balancer),
        )
    except (OSError, ValueError) as error:
        sys.exit(f"slipway-gateway: {error}")


@contextlib.asynccontextmanager
async def _connections(
    settings: GatewaySettings, internal: InternalTls | None, metrics: GatewayMetrics
) -> AsyncIterator[tuple[aiohttp.ClientSession, ServiceAccountTokens | None, ReadKey | None]]:
    """To pods, and to the API server for tokens of service accounts and for keys of providers."""
    async with (
        open_session(settings, internal) as session,
        service_accounts(settings, metrics) as accounts,
        provider_keys(settings) as read_key,
    ):
        yield session, accounts, read_key


async def run(settings: GatewaySettings, store: LedgerStore) -> int:
    metrics, clock = GatewayMetrics(_version()), time.monotonic
    gateways = ReadyGateways(socket.gethostname(), metrics.ready_gateways.set)
    ledger, incarnation = ledger_of(settings, store, metrics), uuid.uuid4().hex
    balancer = balancer_of(settings, metrics, incarnation)
    opened = _opened(settings, metrics, ledger, balancer)
    tls, internal, access_log, inference_log, shared, experiments, plane, traces, generations = opened
    admission = admission_of(metrics, ledger, balancer, gateways, shared)
    async with _connections(settings, internal, metrics) as (session, accounts, read_key):
        known = KnownTenants(PepperFile(settings.key_pepper_file, clock).read, admission.tenants_changed)
        issuers = IssuerKeys(clock, settings.oidc_ca_file)
        authenticator = authenticator_of(settings, known, metrics, issuers, accounts)
        forwarding = forwarding_of(settings, balancer, metrics, session, inference_log, experiments, read_key)
        edge = PublicApi(
            settings,
            balancer,
            forwarding,
            metrics,
            authenticator,
            admission,
            access_log=access_log,
            jobs=jobs_of(settings, session, balancer),
            claims=shared.claims,
            traces=traces,
            caches=caches_of(settings, balancer, metrics, forwarding, shared.responses),
            generations=generations,
        )
        join_lane(settings, plane, metrics, balancer, forwarding, edge, authenticator)
        tables = tables_of(settings, balancer, known, metrics)
        (tasks, stop), token = _supervisor(metrics), OperatorToken(settings.operator_token_file)
        admin = AdminApi(edge, balancer, metrics, tables.source, incarnation, token, tables.last, tasks=tasks)
        admin_runners = await _listen_inside(admin, settings, internal)
        door, (app, streams) = edge.door(), app_of(edge, settings, metrics)
        runner = await listen(app, settings.host, settings.port, settings, door, tls, plane=plane)
        grpc_port = await _listen_grpc(edge, balancer, settings, tls, streams)
        _ports_are_open(runner, *admin_runners, tls=tls is not None)
        warmup = Warmup(open_direct(session), settings.warm_connections, clock)
        _supervise(
            tasks,
            {
                **(tables.runs | experiments.runs | adapter_runs(session, balancer, metrics)),
                "ledger": (ledger.run, OnFailure.UNREADY),
                "plane": (plane.run if plane else None, OnFailure.UNREADY),
                **{name: (store_.run, OnFailure.UNREADY) for name, store_ in shared.tasks.items()},
                "collector": (collector.collect_when_grown, OnFailure.SHOW),  # without it and these a gateway serves
                "gateways": (gateways_watch(settings, gateways, metrics), OnFailure.SHOW),
                "warm-up": (partial(warmup.run, balancer) if settings.warm_connections else None, OnFailure.SHOW),
                "guards": (forwarding.guards.run, OnFailure.SHOW),
                "probes": (forwarding.twins.run if settings.twin_max_inflight else None, OnFailure.SHOW),
                "grpc-connections": (grpc_port.run if grpc_port else None, OnFailure.SHOW),
            },
        )
        try:
            await Shutdown(settings, edge, door, grpc_port, stop).wait(runner)
            return int(bool(tasks.gave_up))
        finally:
            await _close(tasks, issuers)
            await ledger.close_down()
            await _close(experiments, *opened.stores, forwarding.external, forwarding.guards)
            await asyncio.gather(*(one.cleanup() for one in admin_runners))


def _ports_are_open(*runners: web.AppRunner, tls: bool) -> None:
    """Says where, and spares the collector what lives as long as the process."""
    collector.spare()
    ports = zip(("api", "admin", "internal"), runners, strict=False)
    log.info("listening", extra={"tls": tls, **{name: runner.addresses for name, runner in ports}})


class Closable(Protocol):
    """What is ended with the process."""

    async def close(self) -> None: ...


async def _close(*parts: Closable) -> None:
    """Ends the connections and the files of the parts, one after the other."""
    for part in parts:
        await part.close()


if __name__ == "__main__":
    main()
