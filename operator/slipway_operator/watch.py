"""Turns watch events into keys on the queue; the only importer of kopf."""

import asyncio
import logging
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import kopf

from slipway_operator.api.objects import ObjectKey
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, NotFound
from slipway_operator.kube.reading.autoscalers import about
from slipway_operator.kube.reading.cache import CHILDREN, SUBJECTS, ObjectCache
from slipway_operator.kube.reading.nodes import Nodes
from slipway_operator.kube.resources import AUTOSCALERS, MODEL_DEPLOYMENTS, NODES, Resource
from slipway_operator.model import labels

Add = Callable[[ObjectKey], None]
CHUNK = 5  # objects in one page of a list by kopf

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listeners:
    """Receivers of events; each receives an event before its ModelDeployment is queued."""

    add: Add
    add_first: Add
    on_event: Callable[[str], None]  # gets the plural of the event's kind
    cache: ObjectCache
    forget: Callable[[str], None]  # gets a namespace whose autoscalers changed
    nodes: Nodes = field(default_factory=Nodes)


class CrdMissing(Exception):
    """The API server does not know ModelDeployments."""


async def wait_for_crd(client: Client, namespaces: Sequence[str], patience_s: float = 60.0) -> None:
    """Return when ModelDeployments can be listed: kopf would wait for them forever, without a log line.

    Raises:
        CrdMissing: when they cannot be listed within `patience_s`; the message names the remedy.
    """
    problem = ""
    try:
        async with asyncio.timeout(patience_s):
            while problem := await _problem(client, namespaces):
                log.warning("%s", problem)
                await asyncio.sleep(2.0)
    except TimeoutError:
        raise CrdMissing(f"{problem or 'the API server did not answer'}; gave up after {patience_s:.0f} s") from None


async def _problem(client: Client, namespaces: Sequence[str]) -> str:
    try:
        for namespace in namespaces or (None,):
            await client.keys(MODEL_DEPLOYMENTS, namespace)
    except NotFound:
        return f"the API server does not know {labels.PLURAL}.{labels.GROUP}: install crds/modeldeployments.yaml"
    except ApiError as error:
        return f"{labels.PLURAL}.{labels.GROUP} cannot be listed: {error}"
    return ""


async def resync(
    client: Client, cache: ObjectCache, nodes: Nodes, period_s: float, add_after: Callable[[ObjectKey, float], None]
) -> None:
    """List and queue all ModelDeployments every `period_s`: kopf reports no deletion that its watch missed."""
    while True:
        await asyncio.sleep(period_s * random.uniform(0.9, 1.1))
        try:
            gone = await cache.relist(client)
            if nodes.watched:
                nodes.keep(item["metadata"]["name"] for item in await client.metadata(NODES, None))
        except ApiError as error:
            log.warning("resync: %s", error)
            continue
        for key in {*cache.subjects(), *gone}:
            # Spread over a quarter of the period, so that many ModelDeployments are no burst.
            add_after(key, random.uniform(0.0, period_s / 4))


async def run(
    client: Client,
    namespaces: Sequence[str],
    listeners: Listeners,
    stop: asyncio.Event,
    leaving: asyncio.Event | None = None,
) -> None:
    """Watch until `stop`; a watch that cannot continue raises: the process has to restart.

    SIGTERM and SIGINT set `leaving`, whose reader sets `stop`; without `leaving` they end the watches.
    """
    handlers = registry(client, listeners, stop)
    if leaving:
        _on_signals(handlers, leaving.set)
    await kopf.operator(
        registry=handlers,
        settings=settings(),
        # kopf's default identity needs the name of a user, which may be missing in a container.
        identity=labels.FIELD_MANAGER,  # type: ignore[arg-type]
        standalone=True,
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        stop_flag=stop,
    )


def _on_signals(registry: kopf.OperatorRegistry, on_signal: Callable[[], None]) -> None:
    """Replace kopf's handlers of signals, which it installs one step of the loop after its first activity has begun."""

    @kopf.on.startup(registry=registry)
    async def started(**_: Any) -> None:
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)


def registry(client: Client, listeners: Listeners, stop: asyncio.Event) -> kopf.OperatorRegistry:
    """Return the handlers: each event queues the key of what is reconciled, that it is about or that has the child."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await _connection(client)

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        # After a signal kopf leaves its own task behind that waits for this flag, and then waits 5 s for the task.
        stop.set()

    for kind in SUBJECTS:
        _on_subject(registry, kind, listeners)
    for kind in CHILDREN:
        _on_child(registry, kind, listeners)
    _on_autoscaler(registry, listeners)
    if listeners.nodes.watched:
        _on_node(registry, listeners)
    return registry


def _on_subject(registry: kopf.OperatorRegistry, kind: Resource, listeners: Listeners) -> None:
    @kopf.on.event(*kind.group_version, kind.plural, registry=registry)
    async def subject(event: kopf.RawEvent, **_: Any) -> None:
        listeners.on_event(kind.plural)
        obj = dict(event["object"])
        # A change by a user goes before the effects of earlier changes.
        add = listeners.add if _is_answered(obj) else listeners.add_first
        for key in listeners.cache.on_event(kind, event["type"], obj):
            add(key)


def _is_answered(obj: dict[str, Any]) -> bool:
    """Whether the status is about the current spec."""
    return bool((obj.get("status") or {}).get("observedGeneration") == obj["metadata"].get("generation"))


def _on_child(registry: kopf.OperatorRegistry, kind: Resource, listeners: Listeners) -> None:
    marked = {labels.MODEL_DEPLOYMENT: kopf.PRESENT}

    @kopf.on.event(*kind.group_version, kind.plural, registry=registry, labels=marked)
    async def child(event: kopf.RawEvent, **_: Any) -> None:
        listeners.on_event(kind.plural)
        for key in sorted(listeners.cache.on_event(kind, event["type"], dict(event["object"]))):
            listeners.add(key)


def _on_autoscaler(registry: kopf.OperatorRegistry, listeners: Listeners) -> None:
    """Handle events of all autoscalers: those of users and of KEDA lack our labels, but target the ModelDeployment."""
    seen: dict[tuple[str, str], tuple[str, set[str]]] = {}

    @kopf.on.event(*AUTOSCALERS.group_version, AUTOSCALERS.plural, registry=registry)
    async def autoscaler(event: kopf.RawEvent, namespace: str | None, name: str, body: kopf.Body, **_: Any) -> None:
        listeners.on_event(AUTOSCALERS.plural)
        place = namespace or ""
        item = {"metadata": {"name": name}, "spec": dict(body.get("spec") or {})}
        concerned, seen_now = about(item), _relevant(body)
        former, before = seen.pop((place, name), ("", set()))
        if event.get("type") != "DELETED" and concerned:
            seen[place, name] = seen_now, concerned
            if former == seen_now:
                return
        listeners.forget(place)
        for target in concerned | before:
            listeners.add((place, target))


def _on_node(registry: kopf.OperatorRegistry, listeners: Listeners) -> None:
    @kopf.on.event(*NODES.group_version, NODES.plural, registry=registry)
    async def node(event: kopf.RawEvent, **_: Any) -> None:
        listeners.on_event(NODES.plural)
        changed = listeners.nodes.on_event(event["type"], dict(event["object"]))
        for key in sorted(listeners.cache.deployments_on(changed)):
            listeners.add(key)


def _relevant(body: kopf.Body) -> str:
    """Return what a reconcile reads, as text to compare: not the metrics in the status, which change every 15 s."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    looked_at = [one for one in conditions if one["type"] in ("AbleToScale", "ScalingActive")]
    words = sorted(
        (one["type"], one["status"], one.get("message") if one["status"] == "False" else "") for one in looked_at
    )
    return repr((body.get("spec"), words))


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings as an event source: bounded streams, retries while the API server restarts, no writes."""
    settings = kopf.OperatorSettings()
    settings.watching.server_timeout, settings.watching.client_timeout = 300, 330
    settings.watching.connect_timeout = settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    # About ten minutes: a control plane takes longer to upgrade than kopf's default of 54 s; no limit would hide a 403.
    settings.networking.error_backoffs = [
        delay * random.uniform(0.8, 1.2) for delay in (1, 1, 2, 3, 5, 8, 13, *[21] * 27)
    ]
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = 25
    # kopf reads whole pages, and keeps each object for as long as its worker waits for the next event: a list of large
    # objects would need more memory than the operator has.
    settings.watching.chunk_size = CHUNK
    settings.queueing.idle_timeout = 0.1
    for kind in CHILDREN:
        settings.watching.label_selectors[*kind.group_version, kind.plural] = labels.MODEL_DEPLOYMENT
    _claim_prefixes(settings)
    return settings


def _claim_prefixes(settings: kopf.OperatorSettings) -> None:
    # Event handlers do not use these; any other kind of handler would use them, with our prefix.
    settings.persistence.finalizer = f"{labels.GROUP}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=labels.GROUP, v1=False)
    settings.persistence.diffbase_storage = _NothingToCompare()


class _NothingToCompare(kopf.DiffBaseStorage):
    """Disables kopf's copies, key by key, of each object of each event: change handlers need them, and we have none."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


async def _connection(client: Client) -> kopf.ConnectionInfo:
    """Return the address and credentials of our own calls for kopf, with the current token."""
    now = await client.credentials()
    return kopf.ConnectionInfo(
        server=now.server,
        ca_path=now.ca_path,
        insecure=now.insecure,
        scheme="Bearer" if now.token else None,
        token=now.token,
        certificate_path=now.certificate_path,
        private_key_path=now.key_path,
        proxy_url=now.proxy,
    )
