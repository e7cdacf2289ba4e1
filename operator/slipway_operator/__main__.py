"""Composition root of the operator: settings → client → queue → admin port → watches; nothing imports it."""

import asyncio
import contextlib
import logging
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from slipway_operator import explain, watch
from slipway_operator.api.objects import ObjectKey
from slipway_operator.assembly import Process, certificates_of, components_of, gateways_of, keys_of, planning_of
from slipway_operator.component import Component, close_all, start_tasks
from slipway_operator.fetching.reader import new_session
from slipway_operator.kube import auth, subjects
from slipway_operator.kube.client import TIMEOUT_S, Client
from slipway_operator.kube.errors import ApiError, Refused, Unavailable
from slipway_operator.kube.lease import RENEW_EVERY, WRITE_FOR, Lease, LeaseTerms
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.calls import Calls
from slipway_operator.kube.reading.nodes import Nodes
from slipway_operator.kube.reading.objects import ObjectReader
from slipway_operator.kube.reading.observe import Observer
from slipway_operator.kube.resources import NODES
from slipway_operator.outbound.inside import open_inside
from slipway_operator.queue import WorkQueue, work
from slipway_operator.reconcile import Reconciler
from slipway_operator.settings import Command, OperatorSettings, parse, product_version
from slipway_operator.telemetry import health, tracing
from slipway_operator.telemetry.metrics import Metrics
from slipway_process import logs
from slipway_process.spans import Exporter, exporter
from slipway_process.supervisor import OnFailure, Supervisor

DRAIN_S = 0.5  # how long shutdown waits for reconciles in progress: the next operator waits meanwhile

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


def _names_file(target: str) -> bool:
    """Whether the target is a file, by a slash, its ending, or because it exists; else it is an object's name."""
    return "/" in target or Path(target).suffix in (".yaml", ".yml", ".json") or Path(target).is_file()


def _explain_file(command: Command) -> int:
    planning = planning_of(command.settings)
    print(explain.to_text(explain.from_file(Path(command.target), planning, datetime.now(UTC))))
    return 0


async def _explain(command: Command) -> int:
    now, settings = datetime.now(UTC), command.settings
    async with Client(await _configuration(settings)) as client, aiohttp.ClientSession() as session:
        try:
            obj = await subjects.read(client, (command.namespace, command.target))
            settings = _as_operator_of(obj, settings)
            gateways, planning = gateways_of(settings, client, session), planning_of(settings)
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
            configuration,
            metrics.wrote,
            may_write=lease.held,
            write_timeout_s=min(TIMEOUT_S, settings.lease_s * WRITE_FOR),
            on_call=metrics.api_called,
            on_answer=cache.update,
        ) as client,
        open_inside(lambda: certificates.identity() if certificates else None) as session,
        new_session() as pods,
    ):
        certificates, keys = certificates_of(settings, client, cache), keys_of(settings, client, cache)
        gateways = gateways_of(settings, client, session, keys, tls=certificates is not None)
        process = Process(settings, client, cache, session, queue, lease, metrics, gateways, keys, certificates)
        components = components_of(process, pods)
        return await _serve(process, components)


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


async def _serve(process: Process, components: tuple[Component, ...]) -> int:
    settings, client, cache, queue = process.settings, process.client, process.cache, process.queue
    spans = exporter(settings.spans_endpoint, tracing.SERVICE, settings.spans_service)
    listed, stop = asyncio.Event(), asyncio.Event()
    tasks = Supervisor(process.metrics.task_restarted, stop.set)
    admin = _admin(process.metrics, queue, process.lease, listed, tasks)
    runner = await health.serve(admin, settings.admin_port)
    workers: list[asyncio.Task[None]] = []
    leaving, hand_over = asyncio.Event(), _HandOver(process, components, workers)
    try:
        await watch.wait_for_crd(client, settings.namespaces)
        # kopf does not cancel tasks that were created before it starts.
        nodes = Nodes()
        observer = Observer(client, process.gateways, nodes)
        workers += _start_workers(process, observer, components, tasks, spans)
        calls = Calls(process.gateways, process.session, queue.add, tasks, settings.namespaces, process.look_at_all)
        tasks.start("calls", calls.run, OnFailure.EXIT)
        await cache.relist(client)
        nodes.watched = await _may_watch_nodes(client)
        resync = partial(watch.resync, client, cache, nodes, settings.resync_s, queue.add_after)
        tasks.start("resync", resync, OnFailure.EXIT)
        tasks.start("cache", partial(cache.run, client, queue.add), OnFailure.EXIT)
        start_tasks(components, tasks)
        for key in cache.subjects():
            queue.add(key)
        listed.set()
        tasks.start("lease", process.lease.run, OnFailure.EXIT)
        tasks.start("hand-over", partial(_leave, leaving, hand_over, stop), OnFailure.EXIT, ends=True)
        log.info("slipway-operator %s runs: %s", product_version(), ", ".join(settings.namespaces) or "cluster-wide")
        listeners = watch.Listeners(
            queue.add, queue.add_first, process.metrics.event_received, cache, observer.autoscalers.forget, nodes
        )
        return await _watch(settings, client, listeners, tasks, stop, leaving)
    finally:
        await hand_over()
        await tasks.close()
        await asyncio.to_thread(spans.close)
        await runner.cleanup()


class _HandOver:
    """Gives the lease to the next operator as soon as no write of this one can arrive any more; once."""

    def __init__(
        self, process: Process, components: Sequence[Component], workers: Sequence[asyncio.Task[None]]
    ) -> None:
        """`workers`: a list that the caller fills as it starts them."""
        self._process, self._components, self._workers = process, components, workers
        self._lock, self._is_done = asyncio.Lock(), False

    async def __call__(self) -> None:
        async with self._lock:
            if self._is_done:
                return
            self._process.queue.close()
            if self._workers:
                # Reconciles in progress end; the next operator repeats those that find the fence closed.
                await asyncio.wait(self._workers, timeout=DRAIN_S)
            # What the next operator calls again, this one does not call any more.
            await close_all(self._components)
            self._process.lease.resign()
            await self._process.client.settle()
            await self._process.lease.release()
            self._is_done = True


async def _leave(leaving: asyncio.Event, hand_over: _HandOver, stop: asyncio.Event) -> None:
    """After a signal hand over before the watches end: kopf takes seconds for that."""
    await leaving.wait()
    await hand_over()
    stop.set()


def _start_workers(
    process: Process, observer: Observer, components: tuple[Component, ...], tasks: Supervisor, spans: Exporter
) -> list[asyncio.Task[None]]:
    """Start the tasks that reconcile what is queued."""
    objects, planning = ObjectReader(process.client, process.cache), planning_of(process.settings)
    reconciler = Reconciler(
        process.client, objects, observer, components, planning, process.metrics, lambda: datetime.now(UTC)
    )
    process.lease.follow(lambda _: reconciler.reset())
    traced = tracing.traced(reconciler, spans)
    return [
        tasks.start("worker", partial(work, process.queue, traced, _failed), OnFailure.EXIT, ends=True)
        for _ in range(process.settings.workers)
    ]


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
            lambda: None if lease.stands_by() else lease.check(),
            lambda: tasks.trouble or None,
        ],
        missing=lambda: "\n".join(filter(None, [lease.check() if lease.stands_by() else "", tasks.missing])),
    )


async def _may_watch_nodes(client: Client) -> bool:
    """Whether the operator may watch nodes for drains. Namespaced Roles cannot permit it: nodes are cluster-scoped."""
    try:
        await client.metadata(NODES, None)
    except Refused as error:
        log.info("pods are not replaced before their node is drained, because nodes cannot be watched: %s", error)
        return False
    return True


async def _watch(
    settings: OperatorSettings,
    client: Client,
    listeners: watch.Listeners,
    tasks: Supervisor,
    stop: asyncio.Event,
    leaving: asyncio.Event,
) -> int:
    """Watch until a signal and return 0. Return 1 when a watch ends, or a task for good: Kubernetes restarts it."""
    try:
        await watch.run(client, settings.namespaces, listeners, stop, leaving)
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
