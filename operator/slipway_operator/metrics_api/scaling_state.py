"""What is known of one ModelDeployment with spec.autoscaling.objective, and a decision on its number of pods; pure.

`at` is in seconds since the epoch, as forecasts have hours of days; the series have a clock of their own.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from slipway_contracts.service_levels import TTFT
from slipway_operator.api.v1alpha1.status import AutoscalingStatus, RevisionCapacity
from slipway_operator.metrics_api.pod_loads import load_of
from slipway_operator.metrics_api.series import Series, Unknown
from slipway_operator.model.cluster.observed import ScalingReport
from slipway_operator.model.deployment.autoscaling import Objective
from slipway_operator.model.deployment.objectives import ErrorBudgetTerms
from slipway_operator.scaling_model import fit_text, schedules
from slipway_operator.scaling_model.capacity_model import CapacityModel, PodLoad, robust_total
from slipway_operator.scaling_model.forecast import Forecast
from slipway_operator.scaling_model.replicas import Carries, Decision, Look, Memory, decide, utilization

BUDGET = 0.05  # share of the requests that may miss; of an objective with another percentile it is scaled to this one
LOAD_S = 35.0  # of which loads are: three or four readings
LEARN_S = 30.0  # between two observations of the model, so that they share no request
_MOST_PERCENT = 1_000_000  # of utilization: pods report what they like, and an API server refuses what is no int32


@dataclass(frozen=True, slots=True)
class LiveRevision:
    """A revision that serves: its share of the requests from 0 to 1, ready pods, and those that are not ready."""

    revision: str
    share: float
    ready: int
    starting: int


@dataclass(frozen=True, slots=True)
class Terms:
    """What the spec and the last reconcile say."""

    objective: Objective
    levels: ErrorBudgetTerms
    replicas: int  # spec.replicas
    live: tuple[LiveRevision, ...]
    asleep: bool = False


@dataclass(slots=True)
class ScalingState:
    """Models of revisions, the forecast, and the memory of decisions; all bounded."""

    uid: str
    terms: Terms
    models: dict[str, CapacityModel] = field(default_factory=dict)
    forecast: Forecast = field(default_factory=lambda: Forecast(86_400.0))
    memory: Memory = field(default_factory=Memory)
    learned_at: float = -math.inf
    waited: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=8))  # (when, work that waited)
    report: ScalingReport | None = None

    @classmethod
    def restored(cls, uid: str, terms: Terms, status: AutoscalingStatus | None, at: float) -> "ScalingState":
        """From what the status has of a former operator. The window of stabilization begins again."""
        season_s = terms.objective.season_s or 86_400.0
        if status is None:
            return cls(uid, terms, forecast=Forecast(season_s))
        models = {capacity.revision: fit_text.model_of(capacity.fit) for capacity in status.revisions}
        forecast = Forecast.of(fit_text.numbers_of(status.history), season_s)
        desired = min(max(status.desired_replicas, 0), terms.objective.policy.max_replicas)
        since = min(status.since.timestamp(), at)
        return cls(uid, terms, models, forecast, Memory(desired, since, since, needs=((at, desired),)))

    def follow(self, terms: Terms) -> None:
        """Store what a reconcile observed; models of revisions that are gone are dropped."""
        season_s = terms.objective.season_s or 86_400.0
        if season_s != self.forecast.season_s:
            self.forecast = Forecast(season_s)
        self.terms = terms
        names = {live.revision for live in terms.live}
        self.models = {name: model for name, model in self.models.items() if name in names}

    def started(self, revision: str, seconds: float) -> None:
        """A pod of a revision became ready."""
        self.models[revision] = self.models.get(revision, CapacityModel()).started(seconds)

    def decide(self, series: Series, clock: float, at: float) -> Decision:
        """Learn from the series, whose clock is `clock`, and decide."""
        look = self._look(series, clock, at)
        decision = decide(self.terms.objective.policy, look, self.memory)
        self.memory = decision.memory
        used = utilization(look)
        self.report = ScalingReport(
            decision.desired,
            decision.needed,
            decision.rule,
            decision.message,
            None if used is None else round(min(_MOST_PERCENT, 100 * used)),
            _rounded(look.demand),
            _rounded(look.forecast),
            _rounded(self.forecast.skill),
            tuple(self._capacity(live.revision) for live in self.terms.live),
            fit_text.text_of(self.forecast.numbers()),
        )
        return decision

    def _look(self, series: Series, clock: float, at: float) -> Look:
        terms = self.terms
        pods = {live.revision: series.readings(live.revision, LOAD_S, clock) for live in terms.live}
        limit_s = self._ttft_limit_s()
        loads = {name: [load_of(readings, limit_s) for readings in within] for name, (within, _) in pods.items()}
        seconds, counted = series.outcomes(LOAD_S, clock)
        missed = self._pressure(counted) if seconds else None
        self._learn(loads, missed, sum(requests for requests, _ in counted.values()), seconds, at)
        silent = {name: number for name, (_, number) in pods.items()}
        demand, backlog = self._demand(loads, silent, series, clock, seconds, counted)
        if demand is not None:
            self.forecast = self.forecast.add(at, demand)
        floor, ceiling = schedules.bounds(terms.objective.schedules, datetime.fromtimestamp(at, UTC))
        return Look(
            at=at,
            replicas=terms.replicas,
            ready=sum(live.ready for live in terms.live),
            starting=sum(live.starting for live in terms.live),
            demand=demand,
            backlog=backlog,
            in_flight=_in_flight(series, clock),
            latency=self._latency(series, clock, missed, limit_s),
            forecast=self._expected(at),
            floor=floor,
            ceiling=ceiling,
            revisions=tuple(
                Carries(live.revision, live.share, self._model(live.revision).capacity(BUDGET)) for live in terms.live
            ),
        )

    def _learn(
        self, loads: Mapping[str, list[PodLoad]], missed: float | None, requests: float, seconds: float, at: float
    ) -> None:
        """Every LEARN_S. Gateways count all revisions together, so their counts are of one that serves alone."""
        if at - self.learned_at < LEARN_S:
            return
        self.learned_at = at
        serving = [live.revision for live in self.terms.live if live.share > 0]
        alone = serving[0] if len(serving) == 1 else None
        for name, pods in loads.items():
            if name == alone and pods and all(pod.generated is None for pod in pods) and seconds:
                # Requests of a model without tokens are counted by gateways.
                pods = [_with_requests(pod, requests / seconds / len(pods)) for pod in pods]
            self.models[name] = self._model(name).observe(pods, LEARN_S, missed if name == alone else None)

    def _demand(
        self,
        loads: Mapping[str, list[PodLoad]],
        silent: Mapping[str, int],
        series: Series,
        clock: float,
        seconds: float,
        counted: Mapping[str, tuple[int, int]],
    ) -> tuple[float | None, float]:
        """Work that arrives per second, and work that waits. None while more pods are silent than report."""
        if self.terms.asleep:
            return 0.0, 0.0
        served = requests = waiting = 0.0
        for name, pods in loads.items():
            if silent[name] > len(pods) or not (pods or silent[name] == 0):
                return None, 0.0
            share = (len(pods) + silent[name]) / len(pods) if pods else 0.0
            served += share * robust_total([self._model(name).work(pod) for pod in pods])
            requests += share * robust_total([pod.requests for pod in pods])
            waiting += share * robust_total([pod.waiting for pod in pods])
        if not any(loads.values()):
            return None, 0.0
        if all(pod.generated is None for pods in loads.values() for pod in pods):
            if not seconds:
                return None, 0.0
            arrived = max((total for total, _ in counted.values()), default=0) / seconds
            return arrived, (waiting + series.held(clock))
        work = served / requests if requests > 0 else 0.0
        return self._arrived(served, work * (waiting + series.held(clock)), clock)

    def _arrived(self, served: float, backlog: float, clock: float) -> tuple[float, float]:
        """Work that arrives: what was served, and what the waiting work grew by. Pods at their limit serve no more."""
        self.waited.append((clock, backlog))
        while clock - self.waited[0][0] > LOAD_S:
            self.waited.popleft()
        (first, before), seconds = self.waited[0], clock - self.waited[0][0]
        grown = (backlog - before) / seconds if clock > first else 0.0
        return max(0.0, served + grown), backlog

    def _pressure(self, counted: Mapping[str, tuple[int, int]]) -> float | None:
        """The largest share of missed requests, each scaled from its objective's budget to BUDGET; None without any."""
        names = self.terms.levels.levels.by_key()
        shares = [
            missed / total * BUDGET / float(self.terms.levels.budget(names[key]))
            for key, (total, missed) in counted.items()
            if total > 0 and key in names
        ]
        return min(1.0, max(shares)) if shares else None

    def _latency(self, series: Series, clock: float, missed: float | None, limit_s: float | None) -> float | None:
        """The 95th percentile of the time to the first token by its limit; above 1 while any objective is missed."""
        ratio = None
        if limit_s:
            try:
                ratio = series.ttft_p95(clock).value / limit_s
            except Unknown:
                ratio = None
        if missed is not None and missed > BUDGET:
            return max(ratio or 0.0, 1.0 + missed)
        return ratio

    def _ttft_limit_s(self) -> float | None:
        limits = dict(self.terms.levels.levels.limits_ms())
        return limits[TTFT] / 1000 if TTFT in limits else None

    def _expected(self, at: float) -> float | None:
        """The highest demand until pods that are created now are ready; None where the spec has no forecast."""
        if self.terms.objective.season_s is None:
            return None
        start_s = max((self._model(live.revision).start_s for live in self.terms.live), default=0.0)
        return self.forecast.peak(at, at + start_s + LEARN_S)

    def _model(self, revision: str) -> CapacityModel:
        return self.models.get(revision, CapacityModel())

    def _capacity(self, revision: str) -> RevisionCapacity:
        model = self._model(revision)
        capacity = model.capacity(BUDGET)
        return RevisionCapacity(
            revision,
            _rounded(capacity.load) if capacity else None,
            _rounded(capacity.low) if capacity else None,
            _rounded(capacity.high) if capacity else None,
            capacity.basis if capacity else "",
            round(model.start_s) if model.starts_s else None,
            fit_text.of_model(model),
        )


def _rounded(number: float | None) -> float | None:
    """Four digits: further ones would change with each reading. Infinity is no number of JSON."""
    return None if number is None or not math.isfinite(number) else float(f"{number:.4g}")


def begun_s(created: datetime, now: datetime) -> float:
    """Seconds from the creation of a pod to now."""
    return (now - created) / timedelta(seconds=1)


def _with_requests(pod: PodLoad, requests: float) -> PodLoad:
    return PodLoad(pod.running, pod.waiting, None, None, requests, pod.missed)


def _in_flight(series: Series, clock: float) -> int | None:
    try:
        return int(series.inflight(clock).value)
    except Unknown:
        return None
