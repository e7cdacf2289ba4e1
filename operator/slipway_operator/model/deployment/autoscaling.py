"""`spec.autoscaling` as typed values; an invalid one raises ValueError with a message."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from slipway_contracts.api.reading import encoded, read
from slipway_operator.api.v1alpha1 import autoscaling as api
from slipway_operator.model import quantity
from slipway_operator.scaling_model import schedules
from slipway_operator.scaling_model.replicas import Policy
from slipway_operator.scaling_model.schedules import Schedule


class MetricType(StrEnum):
    """The metric that the number of pods follows."""

    QUEUE_DEPTH = "QueueDepth"  # requests that wait: in pods, or at gateways for a pod
    IN_FLIGHT = "InFlight"  # requests that gateways have in progress at the pods, streams included
    TOKENS_PER_SECOND = "TokensPerSecond"  # generated tokens per second, over the last minute
    TTFT = "TTFT"  # 95th percentile of the seconds to the first token, over the last minute
    KV_CACHE_USAGE = "KVCacheUsage"  # used share of the KV cache, 0 to 1
    GPU_UTILIZATION = "GPUUtilization"  # percent, as NVIDIA's DCGM exporter counts it
    CPU = "CPU"
    MEMORY = "Memory"
    EXTERNAL = "External"
    PODS = "Pods"
    DESIRED_REPLICAS = "DesiredReplicas"  # that spec.autoscaling.objective needs; no metric of spec.autoscaling


# The names under which the metrics API serves our own; docs/autoscaling.md describes each.
OWN_NAMES: Mapping[MetricType, str] = {
    MetricType.QUEUE_DEPTH: "slipway_queue_depth",
    MetricType.IN_FLIGHT: "slipway_in_flight",
    MetricType.TOKENS_PER_SECOND: "slipway_tokens_per_second",
    MetricType.TTFT: "slipway_ttft_p95_replica_seconds",
    MetricType.KV_CACHE_USAGE: "slipway_kv_cache_usage",
    MetricType.DESIRED_REPLICAS: "slipway_desired_replicas",
}
HOLD_S = 300  # as long as Knative's activator waits
AVERAGE = "AverageValue"
NAMED = (MetricType.EXTERNAL, MetricType.PODS)
OF_REQUESTS = (MetricType.CPU, MetricType.MEMORY)  # their target may be a percentage of the pods' requests


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric and its target, per pod unless `target_type` is Value."""

    type: MetricType
    target: str  # a quantity; or with a percent sign, a percentage of the pods' resource requests
    name: str = ""  # name of the metric, for External and Pods
    match_labels: tuple[tuple[str, str], ...] = ()
    target_type: str = AVERAGE  # or Value, only for External: the target of the whole metric


@dataclass(frozen=True, slots=True)
class AutoscalerPolicy:
    """A limit of scaling: at most `value` pods, or percent of the pods, in `period_s` seconds."""

    type: str  # Pods | Percent
    value: int
    period_s: int


@dataclass(frozen=True, slots=True)
class AutoscalerRules:
    """The speed of scaling up, or down: `HPAScalingRules` of autoscaling/v2 with the defaults filled in."""

    window_s: int
    select: str  # Max | Min | Disabled
    policies: tuple[AutoscalerPolicy, ...]


# Kubernetes' defaults, explicit so that the object in the API server can be compared with the wanted one.
SCALE_UP = AutoscalerRules(0, "Max", (AutoscalerPolicy("Pods", 4, 15), AutoscalerPolicy("Percent", 100, 15)))
SCALE_DOWN = AutoscalerRules(300, "Max", (AutoscalerPolicy("Percent", 100, 15),))


@dataclass(frozen=True, slots=True)
class Objective:
    """How the number of pods follows the objectives of spec.slo."""

    acts: bool  # the number is published too
    policy: Policy
    schedules: tuple[Schedule, ...] = ()
    season_s: float | None = None  # None: no forecast


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Bounds of the number of pods, the metrics, and the scaling speed."""

    max_replicas: int
    metrics: tuple[Metric, ...]
    min_replicas: int = 1
    scale_up: AutoscalerRules = SCALE_UP
    scale_down: AutoscalerRules = SCALE_DOWN
    idle_s: int | None = None  # seconds without a request after which all pods are removed; only with min_replicas 0
    hold_s: int = HOLD_S  # how long a gateway holds a request while the first pod starts; 0: not at all
    objective: Objective | None = None

    @property
    def acts(self) -> bool:
        """Whether the number of pods that the objective needs is published."""
        return self.objective is not None and self.objective.acts

    @property
    def has_autoscaler(self) -> bool:
        """Whether there is something that our HorizontalPodAutoscaler follows."""
        return bool(self.metrics) or self.acts


def parse_autoscaling(spec: Mapping[str, Any]) -> Autoscaling | None:
    """Read `spec.autoscaling`.

    Raises:
        ValueError: when it is invalid.
    """
    return autoscaling_of(read(api.AutoscalingSpec, encoded(spec), "spec.autoscaling"))


def autoscaling_of(written: api.AutoscalingSpec | None) -> Autoscaling | None:
    """Return spec.autoscaling with its defaults filled in; None without the field.

    Raises:
        ValueError: for bounds that exclude each other, and for targets that are not positive quantities.
    """
    if written is None:
        return None
    if written.min_replicas > written.max_replicas:
        raise ValueError(
            f"spec.autoscaling: minReplicas {written.min_replicas} must be from 0 to maxReplicas {written.max_replicas}"
        )
    if (written.min_replicas == 0) != (written.idle_seconds is not None):
        raise ValueError("spec.autoscaling: minReplicas 0 and idleSeconds go together: write both or neither")
    if not written.metrics and written.objective is None:
        raise ValueError("spec.autoscaling needs metrics, or an objective: write one of them")
    behavior = written.behavior or api.Behavior()
    metrics = tuple(map(_metric, written.metrics))
    objective = _objective(written)
    # The number that the objective publishes is stable already.
    stable = objective is not None and objective.acts and not metrics
    return Autoscaling(
        max_replicas=written.max_replicas,
        metrics=metrics,
        objective=objective,
        min_replicas=written.min_replicas,
        scale_up=_rules(behavior.scale_up, SCALE_UP),
        scale_down=_rules(behavior.scale_down, replace(SCALE_DOWN, window_s=0) if stable else SCALE_DOWN),
        idle_s=written.idle_seconds,
        hold_s=HOLD_S if written.hold_seconds is None else written.hold_seconds,
    )


def _objective(written: api.AutoscalingSpec) -> Objective | None:
    terms = written.objective
    if terms is None:
        return None
    up, down = terms.scale_up, terms.scale_down
    policy = Policy(
        min_replicas=max(1, written.min_replicas),
        max_replicas=written.max_replicas,
        utilization=terms.target_utilization_percent / 100,
        above=up.utilization_percent / 100 if up else None,
        above_s=up.for_seconds if up else 0.0,
        below=down.utilization_percent / 100 if down else None,
        below_s=down.for_seconds if down else 0.0,
        window_s=terms.stabilization_window_seconds,
        cooldown_s=terms.cooldown_seconds,
        empty_s=terms.empty_seconds,
        latency_s=terms.missed_seconds,
        backlog=terms.backlog_percent / 100,
    )
    season_s = float(terms.forecast.season_seconds) if terms.forecast else None
    return Objective(terms.mode == "Act", policy, tuple(map(_schedule, terms.schedules)), season_s)


def _schedule(written: api.ScalingSchedule) -> Schedule:
    duration = timedelta(seconds=written.duration_seconds)
    bounds = (written.min_replicas, written.max_replicas)
    schedule = Schedule(written.name, written.cron, written.time_zone, duration, *bounds)
    if reason := schedules.problem(schedule):
        raise ValueError(f"spec.autoscaling.objective.schedules: {schedule.name}: {reason}")
    return schedule


def _metric(metric: api.AutoscalingMetric) -> Metric:
    kind, target = MetricType(metric.type), metric.target
    share = target.endswith("%") and kind in OF_REQUESTS
    if quantity.parse(target.removesuffix("%") if share else target) <= 0:
        raise ValueError(f"spec.autoscaling.metrics: the target {target} of {kind} must be above 0")
    if kind in NAMED and not metric.name:
        raise ValueError(f"spec.autoscaling.metrics: {kind} needs the name of a metric")
    labels = (metric.selector and metric.selector.match_labels) or {}
    return Metric(kind, target, metric.name or "", tuple(sorted(labels.items())), metric.target_type or AVERAGE)


def _rules(given: api.ScaleUpRules | api.ScaleDownRules | None, default: AutoscalerRules) -> AutoscalerRules:
    if given is None:
        return default
    window, policies = given.stabilization_window_seconds, given.policies
    return AutoscalerRules(
        default.window_s if window is None else window,
        given.select_policy or default.select,
        tuple(AutoscalerPolicy(one.type, one.value, one.period_seconds) for one in policies) or default.policies,
    )
