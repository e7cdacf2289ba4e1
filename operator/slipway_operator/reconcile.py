"""The reconcile of one ModelDeployment: get → observe → plan → apply."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from http import HTTPStatus

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.api.v1alpha1.status import Decision, Status
from slipway_operator.component import Component, NotYet, ReconciledDeployment, each
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Leaving, NotFound, Refused, Stale, Unavailable
from slipway_operator.kube.reading.objects import ObjectReader
from slipway_operator.kube.reading.observe import Observer
from slipway_operator.kube.writing import apply, events
from slipway_operator.kube.writing.adoption import adopt
from slipway_operator.kube.writing.analysis_runs import AnalysisRuns, RunRefused
from slipway_operator.kube.writing.written import WrittenStatuses
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Event, Plan
from slipway_operator.model.deployment import status
from slipway_operator.model.deployment.adapter_spec import base_of, parse_adapter
from slipway_operator.model.deployment.spec import Invalid, Spec, parse
from slipway_operator.planning.analysis.continuing import identified, uids_of
from slipway_operator.planning.decided import PlanSettings
from slipway_operator.planning.facts import restore
from slipway_operator.planning.plan import plan
from slipway_operator.telemetry.metrics import Metrics
from slipway_process import logs
from slipway_process.backoff import Backoff

# From this consecutive failure on, the status shows why a child is refused. Earlier refusals often end by themselves:
# for example, children of a deleted namesake go within 1 s.
REPORTED_FROM_FAILURE = 3
REPORT_AGAIN_S = 5.0
WAITS_REPORTED_S = 60.0  # a component that cannot observe for so long gets an Event; it is waited for on
WAITS_AGAIN_S = 5.0  # between two tries from then on
STALE = Backoff(0.05, 5.0)  # after a conflict at once; a webhook or another writer may make one of each write

log = logging.getLogger(__name__)


class Reconciler:
    """Brings one ModelDeployment one step nearer to its spec; every step may be repeated."""

    def __init__(
        self,
        client: Client,
        objects: ObjectReader,
        observer: Observer,
        components: Sequence[Component],
        settings: PlanSettings,
        metrics: Metrics,
        clock: Callable[[], datetime],
    ) -> None:
        """`components`: those with a say in reconciles, in the order in which they have it."""
        self._client, self._objects, self._observer = client, objects, observer
        self._components, self._settings = tuple(components), settings
        self._metrics, self._clock = metrics, clock
        self._leaving: dict[ObjectKey, str] = {}  # uid of a ModelDeployment whose namespace is being deleted
        self._conflicts: dict[ObjectKey, int] = {}  # in a row
        self._written, self._runs = WrittenStatuses(), AnalysisRuns(client)
        self._waits: dict[ObjectKey, datetime] = {}  # since when a component cannot observe
        self._reported: dict[ObjectKey, Decision | None] = {}  # the last decision whose Event this process knows of

    def reset(self) -> None:
        """Forget what this process wrote: the lease was acquired or lost, and another operator writes, or did."""
        for key in self._objects.subjects():
            self._forget(key)
        list(each(self._components, lambda component: component.reset()))

    async def __call__(self, key: ObjectKey, failures: int) -> float | None:
        """Reconcile; returns the seconds until the next one, None to wait for an event. An ApiError means backoff."""
        started, result = time.monotonic(), "error"
        with logs.about(key="/".join(key)):
            try:
                again_after_s = await self._reconcile(key, failures)
                result = "ok"
                self._conflicts.pop(key, None)
                return again_after_s
            except NotYet as error:
                result = "ok"
                return await self._wait(key, error)
            except Stale:
                result = "stale"
                self._objects.doubt(key)
                self._conflicts[key] = self._conflicts.get(key, 0) + 1
                return STALE.delay_s(self._conflicts[key])
            except ApiError as error:
                result = type(error).__name__.lower()
                self._objects.doubt(key)
                raise
            finally:
                self._metrics.reconciled(result, time.monotonic() - started)

    async def _reconcile(self, key: ObjectKey, failures: int) -> float | None:
        try:
            obj = await self._objects.deployment(key)
        except NotFound:
            self._forget(key)
            return None
        if obj["metadata"].get("deletionTimestamp") or self._leaving.get(key) == obj["metadata"]["uid"]:
            self._leave(key)
            return None
        logs.add(generation=obj["metadata"].get("generation"))
        return await self._advance(ReconciledDeployment(key, obj, await self._spec(obj)), failures)

    async def _spec(self, obj: Object) -> Spec | Invalid:
        if not (base := base_of(obj)):
            return parse(obj)
        return parse_adapter(obj, await self._objects.base((obj["metadata"]["namespace"], base)))

    async def _advance(self, deployment: ReconciledDeployment, failures: int) -> float | None:
        key, obj = deployment.key, deployment.obj
        observed = await self._observe(deployment)
        self._waits.pop(key, None)
        now = self._clock()
        former, unread = status.parse_parts(obj.get("status"))
        await self._report_lost_events(key, obj, former, now)
        planned = plan(obj, deployment.spec, former, observed, self._settings, now)
        if planned.takes_away and not self._objects.is_fresh(key):
            # The cache may be stale, or its watch may be dead: the next reconcile reads before it removes.
            self._objects.doubt(key)
            return 0.0
        self._objects.trust(key)
        logs.add(revision=planned.status.current_revision)
        try:
            observed, planned = await self._autoscale(deployment, former, observed, planned, now)
            observed, planned = await self._write_runs(deployment, former, observed, planned, now)
            edited = self._written.edited(key, obj, former)
            planned = replace(planned, events=(*edited, *restore.unread(unread), *planned.events))
            self._written.writes(key, obj, former, planned.status)
            reported = await self._execute(deployment, planned, now)
        except Leaving:
            # The deletion of a namespace cannot be cancelled; a later one of its name holds another object.
            log.info("the namespace is being deleted: nothing more is done for this ModelDeployment")
            self._leaving[key] = obj["metadata"]["uid"]
            self._leave(key)
            return None
        except apply.CannotCreate as error:
            if failures + 1 >= REPORTED_FROM_FAILURE:
                refused = replace(observed, refusal=error.message)
                shown = plan(obj, deployment.spec, former, refused, self._settings, now)
                rollout = identified(shown.status.rollout, uids_of(planned.status.rollout))
                shown = replace(shown, status=replace(shown.status, rollout=rollout))
                self._written.writes(key, obj, former, shown.status)
                await self._report(deployment, refused, shown, error.message, now)
            raise
        if reported:
            self._reported[key] = planned.status.last_decision
        for event in planned.events:
            log.info("%s: %s", event.reason, event.message)
        again_after_s = self._act(deployment, observed, planned, now)
        return again_after_s if reported else _at_latest(again_after_s, REPORT_AGAIN_S)

    async def _observe(self, deployment: ReconciledDeployment) -> Observed:
        obj, key = deployment.obj, deployment.key
        children = await self._objects.children(key)
        if await adopt(self._client, obj, children, self._clock()):
            children = await self._objects.read_children(key)
        observed = await self._observer.observe(obj, deployment.spec, children)
        observed = replace(observed, analysis_runs=await self._runs.read(obj))
        for component in self._components:
            observed = component.observe(deployment, observed)
        return observed

    async def _autoscale(
        self, deployment: ReconciledDeployment, former: Status, observed: Observed, planned: Plan, now: datetime
    ) -> tuple[Observed, Plan]:
        """Apply the plan's autoscaler. When the API server refuses it, return a plan whose status reports that."""
        refusal = await apply.autoscale(self._client, planned.autoscaler) if planned.autoscaler else ""
        if not refusal:
            return observed, planned
        refused = replace(observed, autoscaler_refusal=refusal)
        return refused, plan(deployment.obj, deployment.spec, former, refused, self._settings, now)

    async def _write_runs(
        self, deployment: ReconciledDeployment, former: Status, observed: Observed, planned: Plan, now: datetime
    ) -> tuple[Observed, Plan]:
        """Write the plan's AnalysisRuns; returns the plan with their UIDs. When they are refused, analyses wait."""
        try:
            uids = await self._runs.write(deployment.obj, planned.runs)
        except RunRefused as error:
            refused = replace(observed, run_refusal=str(error))
            return refused, plan(deployment.obj, deployment.spec, former, refused, self._settings, now)
        rollout = identified(planned.status.rollout, uids)
        return observed, replace(planned, status=replace(planned.status, rollout=rollout))

    async def _execute(self, deployment: ReconciledDeployment, planned: Plan, now: datetime) -> bool:
        """Execute the plan, after what pods need is written; returns False when only an Event could not be posted."""
        await self._prepare(deployment, planned)
        try:
            reported = await apply.execute(self._client, deployment.obj, planned, now)
        except apply.NameTaken as error:
            await self._rename(deployment, error.message, now)
            raise Stale(error.message) from error
        self._metrics.happened(planned.events)
        return reported

    async def _prepare(self, deployment: ReconciledDeployment, planned: Plan) -> None:
        """Write what pods need. Raises CannotCreate, as for a child: an admission webhook that is down may be why."""
        try:
            for component in self._components:
                await component.before(deployment, planned)
        except Leaving:
            raise
        except (Refused, Unavailable) as error:
            status = error.status if isinstance(error, Refused) else HTTPStatus.SERVICE_UNAVAILABLE
            raise apply.CannotCreate(status, f"what pods need cannot be written: {error}") from error

    def _act(self, deployment: ReconciledDeployment, observed: Observed, planned: Plan, now: datetime) -> float | None:
        """Let components act on the status that was written; returns the seconds until the next reconcile, if any."""
        pauses = each(self._components, lambda component: component.after(deployment, observed, planned, now))
        return min((pause for pause in (planned.requeue_after_s, *pauses) if pause is not None), default=None)

    async def _wait(self, key: ObjectKey, waits: NotYet) -> float:
        """The pause until the next try. What does not come for long gets an Event, repeated with a count."""
        now = self._clock()
        lasts_s = (now - self._waits.setdefault(key, now)).total_seconds()
        if lasts_s < WAITS_REPORTED_S:
            return waits.after_s
        text = (
            f"nothing is done for it for more than {WAITS_REPORTED_S:.0f} s: {waits.what}; the operator's log says why"
        )
        log.warning("%s", text)
        obj = await self._objects.deployment(key)
        await events.post(self._client, obj, Event("Warning", "ReconcileWaits", text), now)
        return max(waits.after_s, WAITS_AGAIN_S)

    def _leave(self, key: ObjectKey) -> None:
        list(each(self._components, lambda component: component.leave(key)))

    def _forget(self, key: ObjectKey) -> None:
        list(each(self._components, lambda component: component.forget(key)))
        self._written.forget(key)
        self._runs.forget(key)
        self._reported.pop(key, None)
        self._leaving.pop(key, None)
        self._waits.pop(key, None)
        self._objects.trust(key)

    async def _report_lost_events(self, key: ObjectKey, obj: Object, former: Status, now: datetime) -> None:
        """Post the Events of a decision whose writer died, lost the response, or failed right after the write."""
        if self._reported.get(key) != former.last_decision and await events.post_missing(
            self._client, obj, former.decisions, now
        ):
            self._reported[key] = former.last_decision

    async def _rename(self, deployment: ReconciledDeployment, why: str, now: datetime) -> None:
        """Increment `collision_count` in the status, so that new children get other names, as in a Deployment."""
        obj, former = deployment.obj, status.parse(deployment.obj.get("status"))
        renamed = replace(former, collision_count=(former.collision_count or 0) + 1)
        self._written.writes(deployment.key, obj, former, renamed)
        await apply.write_status(self._client, obj, renamed)
        text = f"{why}; what Slipway makes in its place gets another name"
        await events.post(self._client, obj, Event("Warning", "NameTaken", text), now)

    async def _report(
        self, deployment: ReconciledDeployment, observed: Observed, refused: Plan, why: str, now: datetime
    ) -> None:
        """Report a child that cannot be created: in the status, so that the progress deadline runs, and as an Event."""
        await apply.write_status(self._client, deployment.obj, refused.status)
        event = Event("Warning", "CreateFailed", why)
        await events.post(self._client, deployment.obj, event, now)
        self._act(deployment, observed, replace(refused, events=(event,)), now)


def _at_latest(planned_s: float | None, limit_s: float) -> float:
    return limit_s if planned_s is None else min(planned_s, limit_s)
