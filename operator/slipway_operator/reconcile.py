"""The reconcile of one ModelDeployment: get → observe → plan → apply."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from slipway_operator.api.objects import ObjectKey
from slipway_operator.api.v1alpha1.status import Decision, Status
from slipway_operator.fetching.reader import DownloadReader
from slipway_operator.hooks.runner import HookRunner
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Leaving, NotFound, Stale
from slipway_operator.kube.reading.autoscalers import Autoscalers
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.gateways import Gateways
from slipway_operator.kube.reading.kubelet_events import KubeletEvents
from slipway_operator.kube.reading.nodes import Nodes
from slipway_operator.kube.reading.observe import observe
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS
from slipway_operator.kube.secrets.certificates import Certificates
from slipway_operator.kube.secrets.keys import Keys
from slipway_operator.kube.writing import apply, events
from slipway_operator.kube.writing.adoption import adopt
from slipway_operator.kube.writing.disruption_budgets import DisruptionBudgets
from slipway_operator.kube.writing.names import Names
from slipway_operator.kube.writing.network_policies import NetworkPolicies
from slipway_operator.kube.writing.pins import Pins
from slipway_operator.kube.writing.prefetches import Prefetches
from slipway_operator.kube.writing.written import WrittenStatuses
from slipway_operator.metrics_api.sampler import MetricsSampler, followed
from slipway_operator.model.cluster import downloads
from slipway_operator.model.cluster.cost import revision_pods
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Event, Plan
from slipway_operator.model.deployment import status
from slipway_operator.planning.decided import PlanSettings
from slipway_operator.planning.facts import restore
from slipway_operator.planning.plan import plan
from slipway_operator.planning.rollout.hook_calls import notices
from slipway_operator.pools import serving
from slipway_operator.pools.runner import PoolRunner
from slipway_operator.providers.runner import MeasurementRunner
from slipway_operator.telemetry.metrics import Metrics
from slipway_operator.tenants.runner import TenantRunner
from slipway_process import logs

# From this consecutive failure on, the status shows why a child is refused. Earlier refusals often end by themselves:
# for example, children of a deleted namesake go within 1 s.
REPORTED_FROM_FAILURE = 3
BUSY_PAUSE_S, POOLS_AWAITED_S = 5.0, 1.0
REPORT_AGAIN_S = 5.0
STALE_PAUSE_S = 0.05  # at once, but without a busy loop

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScalingSources:
    """Autoscalers and the metrics of pods that they read; `sampler` is None where nothing scrapes pods."""

    autoscalers: Autoscalers
    sampler: MetricsSampler | None = None
    providers: Callable[[], dict[str, str]] = dict  # who serves each metrics API, as in `Observed.metrics_providers`


@dataclass(frozen=True, slots=True)
class CallRunners:
    """Make the webhook calls and measurements that a plan names, and keep the results for later reconciles."""

    hooks: HookRunner
    measurements: MeasurementRunner

    def forget(self, key: ObjectKey) -> None:
        self.hooks.forget(key)
        self.measurements.forget(key)


@dataclass(frozen=True, slots=True)
class Readers:
    """What a reconcile reads with. Without `cache` it lists children; without `names` it reports no name conflict."""

    client: Client
    gateways: Gateways
    cache: ObjectCache | None = None
    network_policies: NetworkPolicies | None = None  # of model pods; None where the release has none
    names: Names | None = None
    keys: Keys | None = None  # by which gateways prove tenants to pods; None where the release has none
    budgets: DisruptionBudgets | None = None  # of model pods
    nodes: Nodes = field(default_factory=Nodes)  # drained or unreachable ones
    downloads: DownloadReader | None = None  # download progress of pods
    pools: PoolRunner | None = None  # state of ModelPools
    certificates: Certificates | None = None  # of pods with TLS; None where the release has no authority
    tenants: TenantRunner | None = None  # None where the release has none


class Reconciler:
    """Brings one ModelDeployment one step nearer to its spec; every step may be repeated."""

    def __init__(
        self,
        readers: Readers,
        settings: PlanSettings,
        metrics: Metrics,
        clock: Callable[[], datetime],
        runners: CallRunners,
        capacity: ScalingSources | None = None,
    ) -> None:
        self._client, self._gateways, self._cache = readers.client, readers.gateways, readers.cache
        self._network_policies, self._keys = readers.network_policies, readers.keys
        self._certificates, self._pools, self._tenants = readers.certificates, readers.pools, readers.tenants
        self._names, self._budgets, self._nodes = readers.names, readers.budgets, readers.nodes
        self._kubelet, self._downloads = KubeletEvents(readers.client), readers.downloads
        self._capacity = capacity or ScalingSources(Autoscalers(readers.client))
        self._pins, self._prefetches = Pins(), Prefetches()
        self._doubted: set[ObjectKey] = set()  # the cache may be stale for these: their next reconcile lists again
        self._settings, self._metrics, self._clock, self._runners = settings, metrics, clock, runners
        self._leaving: dict[ObjectKey, str] = {}  # uid of a ModelDeployment whose namespace is being deleted
        self._written = WrittenStatuses()
        self._reported: dict[ObjectKey, Decision | None] = {}  # the last decision whose Event this process knows of

    async def __call__(self, key: ObjectKey, failures: int) -> float | None:
        """Reconcile; returns the seconds until the next one, None to wait for an event. An ApiError means backoff."""
        started, result = time.monotonic(), "error"
        with logs.about(key="/".join(key)):
            try:
                again_after_s = await self._reconcile(key, failures)
                result = "ok"
                return again_after_s
            except Stale:
                result = "stale"
                self._doubted.add(key)
                return STALE_PAUSE_S
            except ApiError as error:
                result = type(error).__name__.lower()
                self._doubted.add(key)
                raise
            finally:
                self._metrics.reconciled(result, time.monotonic() - started)

    async def _reconcile(self, key: ObjectKey, failures: int) -> float | None:
        try:
            obj = await self._get(key)
        except NotFound:
            self._forget(key)
            return None
        if obj["metadata"].get("deletionTimestamp") or self._leaving.get(key) == obj["metadata"]["uid"]:
            self._runners.forget(key)
            return None
        logs.add(generation=obj["metadata"].get("generation"))
        return await self._advance(key, obj, failures)

    async def _advance(self, key: ObjectKey, obj: dict[str, Any], failures: int) -> float | None:
        observed = await self._observe(key, obj)
        if self._pools and self._pools.views is None and serving.has_members(observed):
            return POOLS_AWAITED_S  # pools were not read yet: their pods must not look as if they were gone
        now = self._clock()
        former, unread = status.parse_parts(obj.get("status"))
        await self._report_lost_events(key, obj, former, now)
        planned = plan(obj, former, observed, self._settings, now)
        if planned.takes_away and self._cache and key not in self._doubted:
            # The cache may be stale, or its watch may be dead: the next reconcile reads before it removes.
            self._doubted.add(key)
            return 0.0
        self._doubted.discard(key)
        logs.add(revision=planned.status.current_revision)
        try:
            planned = await self._autoscale(obj, observed, planned, now)
            edited = self._written.edited(key, obj, former)
            planned = replace(planned, events=(*edited, *restore.unread(unread), *planned.events))
            self._written.writes(key, obj, former, planned.status)
            reported = await self._execute(obj, planned, now)
        except Leaving:
            # The deletion of a namespace cannot be cancelled; a later one of its name holds another object.
            log.info("the namespace is being deleted: nothing more is done for this ModelDeployment")
            self._leaving[key] = obj["metadata"]["uid"]
            return None
        except apply.CannotCreate as error:
            if failures + 1 >= REPORTED_FROM_FAILURE:
                refused = replace(observed, refusal=error.message)
                shown = plan(obj, former, refused, self._settings, now)
                self._written.writes(key, obj, former, shown.status)
                await self._report(key, obj, shown, error.message, now)
            raise
        if reported:
            self._reported[key] = planned.status.last_decision
        self._metrics.rollouts.show(key, planned.status)
        live = (planned.status.stable_revision, planned.status.canary_revision)
        self._metrics.costs.show(key, revision_pods(observed, live))
        if self._capacity.sampler:
            self._capacity.sampler.follow(key, followed(obj, planned.status, observed))
        for event in planned.events:
            log.info("%s: %s", event.reason, event.message)
        again_after_s = self._make_calls(key, obj, planned, now)
        return again_after_s if reported else _at_latest(again_after_s, REPORT_AGAIN_S)

    async def _autoscale(self, obj: dict[str, Any], observed: Observed, planned: Plan, now: datetime) -> Plan:
        """Apply the plan's autoscaler. When the API server refuses it, return a plan whose status reports that."""
        refusal = await apply.autoscale(self._client, planned.autoscaler) if planned.autoscaler else ""
        if not refusal:
            return planned
        refused = replace(observed, autoscaler_refusal=refusal)
        return plan(obj, status.parse(obj.get("status")), refused, self._settings, now)

    async def _execute(self, obj: dict[str, Any], planned: Plan, now: datetime) -> bool:
        """Execute the plan; returns False when only an Event could not be posted.

        What pods need is written before them: pins of weights, NetworkPolicy, budget, keys and certificates.
        """
        await self._pins.hold(self._client, obj, planned.pins)
        if any(item.manifest["kind"] == "ControllerRevision" for item in planned.create):
            self._pins.forget(obj)
        if self._network_policies:
            await self._network_policies.keep(obj, grouped=planned.grouped)
        if self._budgets and planned.min_available is not None:
            await self._budgets.keep(obj, planned.min_available)
        if self._keys:
            await self._keys.keep(obj["metadata"]["namespace"])
        if self._certificates:
            await self._certificates.keep(obj["metadata"]["namespace"])
        key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        await self._prefetches.start(self._client, key, planned.prefetch)
        try:
            return await apply.execute(self._client, obj, planned, now)
        except apply.NameTaken as error:
            await self._rename(obj, error.message, now)
            raise Stale(error.message) from error

    async def _get(self, key: ObjectKey) -> dict[str, Any]:
        """Return the ModelDeployment from the cache; read the API server when the cache lacks it or may be stale."""
        obj = self._cache.get(key) if self._cache and key not in self._doubted else None
        if obj is None:
            obj = await self._client.get(MODEL_DEPLOYMENTS, *key)
            if self._cache:
                self._cache.update(MODEL_DEPLOYMENTS, obj)
        return obj

    async def _observe(self, key: ObjectKey, obj: dict[str, Any]) -> Observed:
        if self._cache and key not in self._doubted:
            children = self._cache.children(key)
        else:
            children = await (self._cache or ObjectCache()).read(self._client, key)
        if await adopt(self._client, obj, children, self._clock()):
            children = await (self._cache or ObjectCache()).read(self._client, key)
        seen = await observe(
            self._client, self._gateways, obj, children, self._capacity.autoscalers, self._nodes, self._kubelet
        )
        if self._pools:
            stable = (obj.get("status") or {}).get("stableRevision")
            seen = serving.served(seen, key[0], self._pools.views or {}, stable)
        fetching = [pod for _, pod in downloads.fetching(seen)]
        return replace(
            seen,
            downloads=self._downloads.read(key, fetching) if self._downloads else {},
            prefetches=self._prefetches.states(key),
            standing=self._names.of(key, obj) if self._names else None,
            hooks=self._runners.hooks.answers(key),
            measured=self._runners.measurements.answers(key),
            metrics_providers=self._capacity.providers(),
            certificate=self._certificates.problem(key[0]) if self._certificates else None,
            tenants=self._tenants.present if self._tenants else False,
            pages=self._capacity.sampler.pages(key) if self._capacity.sampler else None,
        )

    def _forget(self, key: ObjectKey) -> None:
        self._metrics.rollouts.forget(key)
        self._metrics.costs.forget(key)
        self._prefetches.forget(key)
        if self._names:
            self._names.gone(key)
        if self._capacity.sampler:
            self._capacity.sampler.forget(key)
        self._runners.forget(key)
        if self._downloads:
            self._downloads.forget(key)
        if self._network_policies:
            self._network_policies.forget(key)
        if self._budgets:
            self._budgets.forget(key)
        if self._keys:
            self._keys.forget(key[0])
        if self._certificates:
            self._certificates.forget(key[0])
        self._written.forget(key)
        self._reported.pop(key, None)
        self._leaving.pop(key, None)
        self._doubted.discard(key)

    def _make_calls(self, key: ObjectKey, obj: dict[str, Any], planned: Plan, now: datetime) -> float | None:
        """Start the plan's calls; returns the seconds until the next reconcile, None to wait for an event.

        Runs after the status write: the status has a call before it is made, and a response before it is dropped.
        """
        self._runners.hooks.notify(key, notices(obj, planned.status, planned.events, now))
        room = [
            self._runners.hooks.follow(key, planned.calls),
            self._runners.measurements.follow(key, planned.questions),
        ]
        return planned.requeue_after_s if all(room) else _at_latest(planned.requeue_after_s, BUSY_PAUSE_S)

    async def _report_lost_events(self, key: ObjectKey, obj: dict[str, Any], former: Status, now: datetime) -> None:
        """Post the Events of a decision whose writer died, lost the response, or failed right after the write."""
        if self._reported.get(key) != former.last_decision and await events.post_missing(
            self._client, obj, former.decisions, now
        ):
            self._reported[key] = former.last_decision

    async def _rename(self, obj: dict[str, Any], why: str, now: datetime) -> None:
        """Increment `collision_count` in the status, so that new children get other names, as in a Deployment."""
        former = status.parse(obj.get("status"))
        renamed = replace(former, collision_count=(former.collision_count or 0) + 1)
        self._written.writes((obj["metadata"]["namespace"], obj["metadata"]["name"]), obj, former, renamed)
        await apply.write_status(self._client, obj, renamed)
        text = f"{why}; what Slipway makes in its place gets another name"
        await events.post(self._client, obj, Event("Warning", "NameTaken", text), now)

    async def _report(self, key: ObjectKey, obj: dict[str, Any], refused: Plan, why: str, now: datetime) -> None:
        """Report a child that cannot be created: in the status, so that the progress deadline runs, and as an Event."""
        await apply.write_status(self._client, obj, refused.status)
        event = Event("Warning", "CreateFailed", why)
        await events.post(self._client, obj, event, now)
        self._make_calls(key, obj, replace(refused, events=(event,)), now)


def _at_latest(planned_s: float | None, limit_s: float) -> float:
    return limit_s if planned_s is None else min(planned_s, limit_s)
