"""Composition root of the operator: settings → client → queue → admin port → watches; nothing imports it."""

import asyncio
import contextlib
import logging
import random
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from slipway_operator import explain, watch
from slipway_operator.api.objects import ObjectKey
from slipway_operator.audit.runner import AuditRunner
from slipway_operator.audit.trail import Trail
from slipway_operator.fetching.reader import DownloadReader, new_session
from slipway_operator.hooks.post import Poster
from slipway_operator.hooks.runner import HookRunner
from slipway_operator.kube import auth
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Refused, Unavailable
from slipway_operator.kube.lease import RENEW_EVERY, Lease, LeaseTerms
from slipway_operator.kube.reading.autoscalers import Autoscalers
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.calls import Calls
from slipway_operator.kube.reading.gateways import Gateways
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS, NODES
from slipway_operator.kube.secrets.certificates import Certificates, CertificateSecrets
from slipway_operator.kube.secrets.keys import Keys
from slipway_operator.kube.secrets.pepper import Pepper
from slipway_operator.kube.writing import names
from slipway_operator.kube.writing.aggregation import Host
from slipway_operator.kube.writing.disruption_budgets import DisruptionBudgets
from slipway_operator.kube.writing.network_policies import NetworkPolicies
from slipway_operator.metrics_api import engine_series
from slipway_operator.metrics_api.sampler import MetricsSampler
from slipway_operator.metrics_api.server import MetricsApi
from slipway_operator.outbound.dialer import Dialer
from slipway_operator.outbound.inside import open_inside
from slipway_operator.planning.decided import PlanSettings
from slipway_operator.pools.runner import PoolAccess, PoolRunner, PoolSettings
from slipway_operator.providers.dispatch import Providers
from slipway_operator.providers.runner import MeasurementRunner
from slipway_operator.queue import WorkQueue, work
from slipway_operator.reconcile import CallRunners, Readers, Reconciler, ScalingSources
from slipway_operator.settings import Command, OperatorSettings, parse, product_version
from slipway_operator.telemetry import health
from slipway_operator.telemetry.metrics import Metrics
from slipway_operator.tenants.runner import TenantRunner
from slipway_process import logs
from slipway_process.supervisor import OnFailure, Supervisor

SPREAD_S = 2.0  # all ModelDeployments are reconciled within this time after gateways came or left
DRAIN_S = 10.0  # how long shutdown waits for reconciles in progress; SIGKILL follows after 30 s

log = logging.getLogger("slipway_operator")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    command = parse(sys.argv[1:] if arguments is None else arguments)
    _configure_logs(command.settings.log_level)
    try:
        if command.name == "run":
            return asyncio.run(_run(command.settings))
        return _explain_file(command) if _names_file(command.target) else asyncio.run(_explain(command))
    except (auth.ConfigMissing, explain.NotExplainable, watch.CrdMissing) as error:
        print(f"slipway-operator: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _configure_logs(level: str) -> None:
    logs.configure(level)
    # At DEBUG kopf prints whole objects, secrets included; at INFO `kopf.objects` logs `succeeded` for every event.
    logging.getLogger("kopf").setLevel(max(logging.INFO, logging.getLogger().level))
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    for chatty in ("aiohttp.access", "asyncio", "kubernetes"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


async def _configuration(settings: OperatorSettings) -> Any:
    return await auth.load(settings.kubeconfig, in_pod=bool(settings.api_server_host))


def _planning(settings: OperatorSettings) -> PlanSettings:
    lease = f"{settings.own_namespace}/{settings.lease_name}"
    tls = settings.tls_new_revisions and bool(settings.internal_ca_secret)
    return PlanSettings(settings.server_image, settings.endpoint, lease, settings.policy, tls, settings.predict_image)


def _names_file(target: str) -> bool:
    """Whether the target is a file, by a slash, its ending, or because it exists; else it is an object's name."""
    return "/" in target or Path(target).suffix in (".yaml", ".yml", ".json") or Path(target).is_file()


def _explain_file(command: Command) -> int:
    planning = _planning(command.settings)
    print(explain.to_text(explain.from_file(Path(command.target), planning, datetime.now(UTC))))
    return 0


async def _explain(command: Command) -> int:
    now, settings = datetime.now(UTC), command.settings
    async with Client(await _configuration(settings)) as client, aiohttp.ClientSession() as session:
        try:
            obj = await client.get(MODEL_DEPLOYMENTS, command.namespace, command.target)
            settings = _as_operator_of(obj, settings)
            gateways, planning = _gateways(settings, client, session), _planning(settings)
            found = await explain.from_cluster(client, gateways, obj, planning, now)
        except ApiError as error:
            print(f"slipway-operator: {command.namespace}/{command.target}: {error}", file=sys.stderr)
            return 1
    print(explain.to_text(found))
    return 0


def _as_operator_of(obj: dict[str, Any], settings: OperatorSettings) -> OperatorSettings:
    """Return `settings` with the namespace, Lease and endpoint in the status of `obj`: `explain` runs anywhere."""
    status = obj.get("status") or {}
    namespace, _, lease = str(status.get("lease") or "").partition("/")
    if not (namespace and lease):
        return settings
    endpoint = str(status.get("endpoint") or settings.endpoint)
    return settings.model_copy(update={"own_namespace": namespace, "lease_name": lease, "endpoint": endpoint})


async def _run(settings: OperatorSettings) -> int:
    metrics = Metrics(product_version(), dict(settings.prices))
    queue: WorkQueue[ObjectKey] = WorkQueue(time.monotonic, share_of=lambda key: key[0])
    metrics.follow_queue(queue)
    configuration = await _configuration(settings)
    cache = ObjectCache(settings.namespaces)
    async with (
        _lease(settings, configuration, queue, metrics) as lease,
        Client(
            configuration, metrics.wrote, may_write=lease.held, on_call=metrics.api_called, on_answer=cache.update
        ) as client,
        open_inside(lambda: certificates.identity() if certificates else None) as session,
        new_session() as pods,
    ):
        certificates = _certificates(settings, client, cache)
        poster = Poster(Dialer(settings.outbound, "hooks"), settings.hook_signing_key_file, time.time)
        hooks = HookRunner(poster, queue.add, metrics.called)
        providers = Providers(client, Dialer(settings.outbound, "analyses"))
        measurements = MeasurementRunner(providers, queue.add, metrics.measured)
        downloads = DownloadReader(pods, queue.add)
        try:
            network_policies = NetworkPolicies(client, settings.network_policy) if settings.network_policy else None
            keys = _keys(settings, client, cache)
            gateways = _gateways(settings, client, session, keys, tls=certificates is not None)
            claims = _names(settings, client, cache, queue, lease)
            budgets = DisruptionBudgets(client)
            readers = Readers(client, gateways, cache, network_policies, claims, keys, budgets, downloads=downloads)
            access, tls = PoolAccess(client, cache, session, certificates), _planning(settings).tls
            terms = PoolSettings(settings.server_image, settings.namespaces, tls, settings.network_policy or None)
            pools = PoolRunner(access, terms, lease.held, queue.add)
            tenants = _tenants(settings, client, gateways, session, lease, partial(_look_at_all, cache, queue))
            readers = replace(readers, certificates=certificates, pools=pools, tenants=tenants)
            return await _serve(settings, readers, session, queue, metrics, lease, CallRunners(hooks, measurements))
        finally:
            await asyncio.gather(hooks.close(), measurements.close(), downloads.close())


def _names(
    settings: OperatorSettings, client: Client, cache: ObjectCache, queue: WorkQueue[ObjectKey], lease: Lease
) -> names.Names:
    terms = names.NameTerms(
        settings.own_namespace,
        settings.names_configmap,
        settings.name_retention_s,
        settings.name_grants,
        settings.name_annotations,
        settings.namespaces,
    )
    return names.Names(client, cache, terms, queue.add, lease.held, lambda: datetime.now(UTC))


def _keys(settings: OperatorSettings, client: Client, cache: ObjectCache) -> Keys | None:
    if not settings.keys_secret:
        return None
    return Keys(client, settings.own_namespace, settings.keys_secret, settings.key_rotation_s, cache.deployments)


def _look_at_all(cache: ObjectCache, queue: WorkQueue[ObjectKey]) -> None:
    for key in cache.deployments():
        queue.add_after(key, random.uniform(0.0, SPREAD_S))


def _tenants(
    settings: OperatorSettings,
    client: Client,
    gateways: Gateways,
    session: aiohttp.ClientSession,
    lease: Lease,
    changed: Callable[[], None],
) -> TenantRunner | None:
    if not settings.tenant_status:
        return None
    return TenantRunner(client, gateways, session, lease.held, lambda: datetime.now(UTC), changed)


def _certificates(settings: OperatorSettings, client: Client, cache: ObjectCache) -> Certificates | None:
    if not settings.internal_ca_secret:
        return None
    own = CertificateSecrets(settings.own_namespace, settings.internal_ca_secret, settings.gateway_tls_secret)
    return Certificates(client, own, cache.deployments, issuer=settings.internal_issuer)


def _gateways(
    settings: OperatorSettings,
    client: Client,
    session: aiohttp.ClientSession,
    keys: Keys | None = None,
    *,
    tls: bool = False,
) -> Gateways:
    """Return the client of the gateways. Each request reads the current token: from a file if set, else `keys`."""

    def token() -> str:
        if not settings.gateway_token_file:
            return keys.token() if keys else ""
        try:
            words = settings.gateway_token_file.read_text().split()
        except (OSError, UnicodeDecodeError):  # gateways that need a token report that it is missing
            words = []
        return words[0] if words else ""

    return Gateways(client, session, settings.own_namespace, settings.gateway_service, token=token, tls=tls)


@contextlib.asynccontextmanager
async def _lease(
    settings: OperatorSettings, configuration: Any, queue: WorkQueue[ObjectKey], metrics: Metrics
) -> AsyncIterator[Lease]:
    """Yield the lease; only its holder works on the queue."""

    def changed(held: bool) -> None:
        (queue.resume if held else queue.pause)()
        metrics.leads(held)

    identity = settings.identity or f"{socket.gethostname()}-{secrets.token_hex(4)}"
    terms = LeaseTerms(settings.own_namespace, settings.lease_name, identity, settings.lease_s)
    queue.pause()
    async with Client(configuration, timeout_s=settings.lease_s * RENEW_EVERY, attempts=1) as client:
        yield Lease(client, terms, changed)


async def _serve(
    settings: OperatorSettings,
    readers: Readers,
    session: aiohttp.ClientSession,
    queue: WorkQueue[ObjectKey],
    metrics: Metrics,
    lease: Lease,
    runners: CallRunners,
) -> int:
    client, gateways, cache = readers.client, readers.gateways, readers.cache
    assert cache and readers.names, "the operator has a cache and names"
    listed, stop = asyncio.Event(), asyncio.Event()
    tasks = Supervisor(metrics.task_restarted, stop.set)
    admin = _admin(metrics, queue, lease, listed, tasks)
    runner = await health.serve(admin, settings.admin_port)
    workers: list[asyncio.Task[None]] = []
    try:
        await watch.wait_for_crd(client, settings.namespaces)
        # kopf does not cancel tasks that were created before it starts.
        capacity = _scaling_sources(settings, readers, session, queue, metrics, tasks)
        reconciler = Reconciler(readers, _planning(settings), metrics, lambda: datetime.now(UTC), runners, capacity)
        workers += [
            tasks.start("worker", partial(work, queue, reconciler, _failed), OnFailure.EXIT, ends=True)
            for _ in range(settings.workers)
        ]

        looks = partial(_look_at_all, cache, queue)
        calls = Calls(gateways, session, queue.add, tasks, settings.namespaces, looks)
        tasks.start("calls", calls.run, OnFailure.EXIT)
        await cache.relist(client)
        readers.nodes.watched = await _may_watch_nodes(client)
        resync = partial(watch.resync, client, cache, readers.nodes, settings.resync_s, queue.add_after)
        tasks.start("resync", resync, OnFailure.EXIT)
        tasks.start("cache", partial(cache.run, client, queue.add), OnFailure.EXIT)
        _start_keepers(settings, readers, lease, tasks)
        for key in cache.deployments():
            queue.add(key)
        listed.set()
        tasks.start("lease", lease.run, OnFailure.EXIT)
        log.info("slipway-operator %s runs: %s", product_version(), ", ".join(settings.namespaces) or "cluster-wide")
        listeners = watch.Listeners(
            queue.add, queue.add_first, metrics.event_received, cache, capacity.autoscalers.forget, readers.nodes
        )
        return await _watch(settings, client, listeners, tasks, stop)
    finally:
        queue.close()
        if workers:
            # Reconciles in progress end; the next process repeats those that are cancelled.
            await asyncio.wait(workers, timeout=DRAIN_S)
        await tasks.close()
        await lease.release()
        await runner.cleanup()


def _admin(
    metrics: Metrics, queue: WorkQueue[ObjectKey], lease: Lease, listed: asyncio.Event, tasks: Supervisor
) -> web.Application:
    """Return the application of the admin port; starts the task that measures how late the event loop is."""
    pulse = health.Pulse()
    tasks.start("pulse", pulse.run, OnFailure.EXIT)
    return health.application(
        metrics.registry,
        live=[pulse.check, lambda: tasks.trouble if tasks.gave_up else None, health.run_check(queue.longest_run_s)],
        ready=[
            lambda: None if listed.is_set() else "the first list of ModelDeployments is not done",
            lease.check,
            lambda: tasks.trouble or None,
        ],
        missing=lambda: tasks.missing,
    )


def _start_keepers(settings: OperatorSettings, readers: Readers, lease: Lease, tasks: Supervisor) -> None:
    """Start what keeps the Secrets with keys, certificates and the pepper, pools, names, Tenants and the audit log.

    What objects of one namespace may break does not make the operator unready, which serves autoscalers of all.
    """
    client, cache = readers.client, readers.cache
    assert cache and readers.names, "the operator has a cache and names"
    tasks.start("names", readers.names.run, OnFailure.SHOW)
    if readers.keys:
        tasks.start("keys", readers.keys.run)
    if readers.certificates:
        tasks.start("certificates", readers.certificates.run)
    if readers.pools:
        tasks.start("pools", readers.pools.run, OnFailure.SHOW)
    if readers.tenants:
        tasks.start("tenants", readers.tenants.run, OnFailure.SHOW)
    if settings.key_pepper_secret:
        tasks.start("pepper", Pepper(client, settings.own_namespace, settings.key_pepper_secret).run)
    if settings.audit:
        trail = Trail(settings.audit_file, lambda: datetime.now(UTC))
        auditor = AuditRunner(client, cache, trail, lease.held, lambda: datetime.now(UTC))
        tasks.start("audit", auditor.run, OnFailure.SHOW)


async def _may_watch_nodes(client: Client) -> bool:
    """Whether the operator may watch nodes for drains. Namespaced Roles cannot permit it: nodes are cluster-scoped."""
    try:
        await client.metadata(NODES, None)
    except Refused as error:
        log.info("pods are not replaced before their node is drained, because nodes cannot be watched: %s", error)
        return False
    return True


def _scaling_sources(
    settings: OperatorSettings,
    readers: Readers,
    session: aiohttp.ClientSession,
    queue: WorkQueue[ObjectKey],
    metrics: Metrics,
    tasks: Supervisor,
) -> ScalingSources:
    """Return how reconciles read autoscalers and metrics; starts the tasks of sampler and metrics API."""
    autoscalers = Autoscalers(readers.client)
    if not settings.metrics_api_service and not settings.engine_metrics_pods:
        return ScalingSources(autoscalers)
    beside = settings.engine_metrics_pods
    sampler = MetricsSampler(readers.gateways, session, beside=beside, changed=queue.add)
    metrics.follow_engines(lambda: engine_series.rows(sampler.every(), sampler.clock()))
    tasks.start("sampler", sampler.run)
    if not settings.metrics_api_service:
        return ScalingSources(autoscalers, sampler)

    def changed(providers: dict[str, str]) -> None:
        metrics.serves(providers)
        for key in sampler.known():
            queue.add(key)

    host = Host(settings.own_namespace, settings.metrics_api_service, settings.metrics_api_owner)
    api = MetricsApi(readers.client, sampler, host, settings.metrics_api_port, changed)
    tasks.start("metrics-api", api.run)
    return ScalingSources(autoscalers, sampler, api.providers)


async def _watch(
    settings: OperatorSettings,
    client: Client,
    listeners: watch.Listeners,
    tasks: Supervisor,
    stop: asyncio.Event,
) -> int:
    """Watch until a signal and return 0. Return 1 when a watch ends, or a task for good: Kubernetes restarts it."""
    try:
        await watch.run(client, settings.namespaces, listeners, stop)
    except Exception:
        log.exception("the watches ended")
        return 1
    if tasks.gave_up:
        return 1
    log.info("a signal ended the watches")
    return 0


def _failed(key: ObjectKey, error: Exception) -> None:
    """Log a reconcile that failed; it is retried."""
    with logs.about(key="/".join(key)):
        if isinstance(error, Unavailable):
            log.warning("the API server is not available: %s", error)
        elif isinstance(error, ApiError):
            log.warning("%s", error)
        else:
            log.error("a bug: the reconcile raised", exc_info=error)


if __name__ == "__main__":
    sys.exit(main())
