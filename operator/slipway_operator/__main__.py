"""Composition root of the operator: settings → client → queue → admin port → watches; nothing imports it."""

import asyncio
import contextlib
import logging
import random
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

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
    queue: WorkQueue[ObjectKey] = WorkQueue(time.monotonic)
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
            readers = replace(readers, certificates=certificates, pools=pools)
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
    listed = asyncio.Event()
    pulse = health.Pulse()
    tasks: list[asyncio.Task[None]] = [asyncio.create_task(pulse.run(), name="pulse")]
    application = health.application(
        metrics.registry,
        live=[pulse.check, health.tasks_check(tasks), health.run_check(queue.longest_run_s)],
        ready=[lambda: None if listed.is_set() else "the first list of ModelDeployments is not done", lease.check],
    )
    runner = await health.serve(application, settings.admin_port)
    try:
        await watch.wait_for_crd(client, settings.namespaces)
        # kopf does not cancel tasks that were created before it starts.
        capacity, sampling = _scaling_sources(settings, readers, session, queue, metrics)
        tasks += sampling
        reconciler = Reconciler(readers, _planning(settings), metrics, lambda: datetime.now(UTC), runners, capacity)
        tasks += [
            asyncio.create_task(work(queue, reconciler, _failed), name=f"worker {number}")
            for number in range(settings.workers)
        ]

        def look_at_all() -> None:
            for key in cache.deployments():
                queue.add_after(key, random.uniform(0.0, SPREAD_S))

        calls = Calls(gateways, session, queue.add, settings.namespaces, look_at_all)
        tasks.append(asyncio.create_task(calls.run(), name="calls"))
        await cache.relist(client)
        readers.nodes.watched = await _may_watch_nodes(client)
        resync = watch.resync(client, cache, readers.nodes, settings.resync_s, queue.add_after)
        tasks.append(asyncio.create_task(resync, name="resync"))
        tasks.append(asyncio.create_task(cache.run(client, queue.add), name="cache"))
        tasks.append(asyncio.create_task(readers.names.run(), name="names"))
        tasks += _keepers(settings, readers) + _auditing(settings, client, cache, lease)
        if settings.tenant_status:
            tenants = TenantRunner(client, gateways, session, lease.held, lambda: datetime.now(UTC))
            tasks.append(asyncio.create_task(tenants.run(), name="tenants"))
        for key in cache.deployments():
            queue.add(key)
        listed.set()
        tasks.append(asyncio.create_task(lease.run(), name="lease"))
        log.info("slipway-operator %s runs: %s", product_version(), ", ".join(settings.namespaces) or "cluster-wide")
        listeners = watch.Listeners(
            queue.add, queue.add_first, metrics.event_received, cache, capacity.autoscalers.forget, readers.nodes
        )
        return await _watch(settings, client, listeners, tasks)
    finally:
        await _end(tasks, queue)
        await lease.release()
        await runner.cleanup()


def _keepers(settings: OperatorSettings, readers: Readers) -> list[asyncio.Task[None]]:
    """Start and return the tasks that keep ModelPools and the Secrets with keys, certificates and the pepper."""
    tasks = [asyncio.create_task(readers.keys.run(), name="keys")] if readers.keys else []
    tasks += [asyncio.create_task(readers.pools.run(), name="pools")] if readers.pools else []
    tasks += [asyncio.create_task(readers.certificates.run(), name="certificates")] if readers.certificates else []
    if settings.key_pepper_secret:
        pepper = Pepper(readers.client, settings.own_namespace, settings.key_pepper_secret)
        tasks.append(asyncio.create_task(pepper.run(), name="pepper"))
    return tasks


def _auditing(settings: OperatorSettings, client: Client, cache: ObjectCache, lease: Lease) -> list[asyncio.Task[None]]:
    if not settings.audit:
        return []
    trail = Trail(settings.audit_file, lambda: datetime.now(UTC))
    auditor = AuditRunner(client, cache, trail, lease.held, lambda: datetime.now(UTC))
    return [asyncio.create_task(auditor.run(), name="audit")]


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
) -> tuple[ScalingSources, list[asyncio.Task[None]]]:
    """Return how reconciles read autoscalers and metrics, and the started tasks of sampler and metrics API."""
    autoscalers = Autoscalers(readers.client)
    if not settings.metrics_api_service and not settings.engine_metrics_pods:
        return ScalingSources(autoscalers), []
    beside = settings.engine_metrics_pods
    sampler = MetricsSampler(readers.gateways, session, beside=beside, changed=queue.add)
    metrics.follow_engines(lambda: engine_series.rows(sampler.every(), sampler.clock()))
    sampling = asyncio.create_task(sampler.run(), name="sampler")
    if not settings.metrics_api_service:
        return ScalingSources(autoscalers, sampler), [sampling]

    def changed(providers: dict[str, str]) -> None:
        metrics.serves(providers)
        for key in sampler.known():
            queue.add(key)

    host = Host(settings.own_namespace, settings.metrics_api_service, settings.metrics_api_owner)
    api = MetricsApi(readers.client, sampler, host, settings.metrics_api_port, changed)
    serving = asyncio.create_task(api.run(), name="metrics api")
    return ScalingSources(autoscalers, sampler, api.providers), [sampling, serving]


async def _watch(
    settings: OperatorSettings, client: Client, listeners: watch.Listeners, tasks: Sequence[asyncio.Task[None]]
) -> int:
    """Watch until a signal and return 0. Return 1 when a watch or task ends: Kubernetes restarts the container."""
    stop = asyncio.Event()
    for task in tasks:
        task.add_done_callback(lambda _: stop.set())
    try:
        await watch.run(client, settings.namespaces, listeners, stop)
    except Exception:
        log.exception("the watches ended")
        return 1
    died = health.tasks_check(tasks)()
    if died:
        log.error("%s", died)
        return 1
    log.info("a signal ended the watches")
    return 0


async def _end(tasks: Sequence[asyncio.Task[None]], queue: WorkQueue[ObjectKey]) -> None:
    """Wait up to DRAIN_S for reconciles in progress, then cancel all tasks; the next process repeats the cancelled."""
    queue.close()
    workers = [task for task in tasks if task.get_name().startswith("worker")]
    if workers:
        await asyncio.wait(workers, timeout=DRAIN_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
