"""Decides every few seconds how many pods spec.autoscaling.objective needs, and publishes the number where it acts."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from slipway_operator.api.objects import ObjectKey
from slipway_operator.api.v1alpha1.status import SleepState, Status
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.metrics_api.sampler import MetricsSampler
from slipway_operator.metrics_api.scaling_state import LiveRevision, ScalingState, Terms, begun_s
from slipway_operator.metrics_api.series import PERIOD_S
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.model.deployment import status as written
from slipway_operator.model.deployment.spec import Spec

WRITE_S = 60.0  # how often the numbers are in the status although the number of pods stays
_MOST_STARTING = 256  # pods whose start is timed, of one ModelDeployment

PodId = tuple[str, datetime]  # name and creation: pods of a group have the names of former ones

log = logging.getLogger(__name__)


class ScalingRunner(Component):
    """The decisions about all ModelDeployments with an objective. `wake`: has one reconciled."""

    task = "scaling"

    def __init__(
        self,
        sampler: MetricsSampler,
        wake: Callable[[ObjectKey], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._sampler, self._wake, self._now = sampler, wake, now
        self._states: dict[ObjectKey, ScalingState] = {}
        self._starting: dict[ObjectKey, set[PodId]] = {}  # pods that were seen and were never ready
        self._started: dict[ObjectKey, set[PodId]] = {}  # pods that were ready once
        self._woken: dict[ObjectKey, float] = {}

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with the last decision."""
        state = self._states.get(deployment.key)
        same = state is not None and state.uid == deployment.obj["metadata"]["uid"]
        return replace(observed, scaling=state.report) if state and same else observed

    def after(self, deployment: ReconciledDeployment, observed: Observed, planned: Plan, now: datetime) -> None:
        """Store what decisions need of a reconcile; a former operator's numbers are in the status as it was read."""
        key, uid = deployment.key, deployment.obj["metadata"]["uid"]
        terms = terms_of(deployment.spec, observed, planned.status) if isinstance(deployment.spec, Spec) else None
        if terms is None:
            self.forget(key)
            return
        state = self._states.get(key)
        if state is None or state.uid != uid:
            former = written.parse(deployment.obj.get("status")).autoscaling
            state = self._states[key] = ScalingState.restored(uid, terms, former, self._now())
            self._starting.pop(key, None)
            self._started.pop(key, None)
        state.follow(terms)
        self._time_starts(key, state, observed, now)

    def forget(self, key: ObjectKey) -> None:
        """Drop a ModelDeployment that is gone, or has no objective."""
        for memory in (self._states, self._starting, self._started, self._woken):
            memory.pop(key, None)
        if series := self._sampler.peek(key):
            series.publish(None, self._sampler.clock())

    async def run(self) -> None:
        """Decide every PERIOD_S, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.look()

    async def look(self) -> None:
        """Decide on each ModelDeployment once. One whose numbers break a decision hinders no other."""
        for key in sorted(self._states):
            try:
                self.decide(key)
            except Exception:
                log.exception("a bug: nothing was decided about %s/%s", *key)
            await asyncio.sleep(0)  # others run between two decisions

    def decide(self, key: ObjectKey) -> None:
        """Decide on one ModelDeployment, if the sampler follows it."""
        state, series = self._states.get(key), self._sampler.peek(key)
        if state is None or series is None or series.followed.uid != state.uid:
            return
        first, before, at = state.report is None, state.memory.desired, self._now()
        decision = state.decide(series, self._sampler.clock(), at)
        series.publish(decision.desired if state.terms.objective.acts else None, self._sampler.clock())
        late = at - self._woken.get(key, float("-inf")) >= WRITE_S
        if first or late or before != decision.desired:
            self._woken[key] = at
            self._wake(key)
        if before != decision.desired:
            log.info("%s/%s: %s", *key, decision.message)

    def _time_starts(self, key: ObjectKey, state: ScalingState, observed: Observed, now: datetime) -> None:
        """Count how long pods took that were seen before and are ready now, for the first time: later they recover."""
        waiting, started = set[PodId](), set[PodId]()
        seen, ready_once = self._starting.get(key, set()), self._started.get(key, set())
        for live in state.terms.live:
            workload = observed.workloads.get(live.revision)
            for pod in workload.pods if workload else ():
                identity = (pod.name, pod.created_at)
                if not pod.ready and identity not in ready_once:
                    waiting.add(identity)
                    continue
                started.add(identity)
                if pod.ready and identity in seen:
                    state.started(live.revision, begun_s(pod.created_at, now))
        self._starting[key], self._started[key] = set(sorted(waiting)[:_MOST_STARTING]), started


def terms_of(spec: Spec, observed: Observed, status: Status) -> Terms | None:
    """What decisions need of a spec and what is observed; None without an objective."""
    scaled = spec.autoscaling
    if scaled is None or scaled.objective is None or spec.slo is None:
        return None
    asleep = status.sleep is not None and status.sleep.state is SleepState.ASLEEP
    backends = status.traffic.backends if status.traffic else ()
    weights = {backend.revision: backend.weight for backend in backends if backend.weight}
    if not weights and status.stable_revision:
        weights = {status.stable_revision: 100}
    live = tuple(
        LiveRevision(
            name,
            weight / 100,
            observed.ready(name),
            max(0, workload.replicas - workload.ready) if (workload := observed.workloads.get(name)) else 0,
        )
        for name, weight in sorted(weights.items())
    )
    return Terms(scaled.objective, spec.slo, spec.replicas, live, asleep)
