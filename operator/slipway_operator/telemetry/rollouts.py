"""Series of ModelDeployments, by the status that was decided last. None outlives its object."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from slipway_operator.api.objects import ObjectKey
from slipway_operator.api.v1alpha1.accuracy_status import FEEDBACK
from slipway_operator.api.v1alpha1.analysis_run import Outcome
from slipway_operator.api.v1alpha1.status import NEVER, Phase, Rollout, State, Status
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.judging import watching
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.planning.conditions.table import is_problem

_DEPLOYMENT = ("namespace", "name")


class Rollouts(Collector, Component):
    """What the statuses of all ModelDeployments say, for alerts and dashboards."""

    def __init__(self) -> None:
        self._known: dict[ObjectKey, Status] = {}

    def after(self, deployment: ReconciledDeployment, observed: Observed, planned: Plan, now: datetime) -> None:
        """Show the status that was decided last."""
        self.show(deployment.key, planned.status)

    def show(self, key: ObjectKey, status: Status) -> None:
        """Store the status that was decided last."""
        self._known[key] = status

    def forget(self, key: ObjectKey) -> None:
        """Drop a ModelDeployment that is gone."""
        self._known.pop(key, None)

    def collect(self) -> Iterator[Any]:
        """Yield the current series; the registry calls this at each scrape."""
        yield from self._rollouts()
        yield from self._conditions()
        yield from self._objectives()
        yield from self._accuracy()

    def _rollouts(self) -> Iterator[GaugeMetricFamily]:
        phase = _gauge("slipway_rollout_phase", "1 for the phase it is in.", "phase")
        weight = _gauge("slipway_rollout_weight_percent", "Share of new requests.", "revision")
        begun = _gauge(
            "slipway_rollout_step_started_timestamp_seconds",
            "Start of the rollout's present step.",
            "revision",
            "state",
        )
        undecided = _gauge(
            "slipway_rollout_undecided",
            "1 while a rollout waits for a person: its analysis has no verdict.",
            "revision",
        )
        wake = _gauge("slipway_wake_seconds", "How long the last wake took.")
        for key, status in self._known.items():
            rollout = status.rollout
            for one in Phase:
                phase.add_metric([*key, one.value], float(one is status.phase))
            for backend in status.traffic.backends if status.traffic else ():
                weight.add_metric([*key, backend.revision], backend.weight)
            if status.sleep and status.sleep.wake_seconds:
                wake.add_metric([*key], status.sleep.wake_seconds[-1])
            if rollout and rollout.step_started_at != NEVER:
                begun.add_metric([*key, rollout.revision, rollout.state.value], rollout.step_started_at.timestamp())
            if rollout:
                undecided.add_metric([*key, rollout.revision], float(_is_undecided(rollout)))
        yield from (phase, weight, begun, undecided, wake)

    def _conditions(self) -> Iterator[GaugeMetricFamily]:
        problem = _gauge(
            "slipway_condition", "1 for each condition that reports a problem.", "type", "status", "reason"
        )
        for key, status in self._known.items():
            for one in filter(is_problem, status.conditions):
                problem.add_metric([*key, one.type, one.status, one.reason], 1.0)
        yield problem

    def _objectives(self) -> Iterator[GaugeMetricFamily]:
        target = _gauge(
            "slipway_slo_target_ratio", "Share of the requests that must meet an objective of spec.slo.", "objective"
        )
        left = _gauge(
            "slipway_slo_error_budget_left_ratio",
            "Share of an error budget that is left; below 0: overspent.",
            "objective",
        )
        for key, status in self._known.items():
            for one in status.slo.objectives if status.slo else ():
                target.add_metric([*key, one.objective], one.target / 100)
                left.add_metric([*key, one.objective], one.budget_left)
        yield from (target, left)

    def _accuracy(self) -> Iterator[GaugeMetricFamily]:
        """Of the revision that serves alone: one that served before raises no alarm."""
        right = _gauge(
            "slipway_accuracy_ratio", "Share of the labels of the last seven days that are right.", "revision"
        )
        evidence = _gauge(
            "slipway_accuracy_evidence_ratio",
            "Evidence of what spec.accuracy watches; an alarm is raised at 1.",
            "revision",
            "signal",
        )
        recent = _gauge(
            "slipway_accuracy_recent_observations",
            "Labels, or predictions, of the last seven days.",
            "revision",
            "signal",
        )
        for key, status in self._known.items():
            watched = status.accuracy.of(status.stable_revision) if status.accuracy else None
            if status.accuracy is None or watched is None:
                continue
            for one in watched.monitors:
                week = watching.recent(one, status.accuracy.read_at)
                total: int = sum(week)
                evidence.add_metric([*key, watched.revision, one.signal], one.evidence)
                recent.add_metric([*key, watched.revision, one.signal], total)
                if one.signal == FEEDBACK and total:
                    right.add_metric([*key, watched.revision], 1 - week[watching.WRONG] / total)
        yield from (right, evidence, recent)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """A family with these labels beside those of the ModelDeployment."""
    return GaugeMetricFamily(name, text, labels=(*_DEPLOYMENT, *labels))


def _is_undecided(rollout: Rollout) -> bool:
    """Whether it pauses at an analysis that ended without a verdict."""
    run = rollout.analysis
    if rollout.state is not State.PAUSED or run is None or run.id != rollout.step_token:
        return False
    return run.verdict is None or run.verdict.outcome is Outcome.INCONCLUSIVE
