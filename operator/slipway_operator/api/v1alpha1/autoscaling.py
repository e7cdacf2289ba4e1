"""spec.autoscaling: limits, metrics and speed of scaling."""

from typing import Annotated, Literal

from pydantic import Field

from slipway_contracts.api.markers import CelRule, rule
from slipway_contracts.api.types import ApiType, Int32


class MetricSelector(ApiType):
    """Selector of the series of an External or Pods metric."""

    match_labels: (
        Annotated[
            dict[str, Annotated[str, Field(max_length=63, description="Value of the label.")]], Field(max_length=16)
        ]
        | None
    ) = None
    """Labels of the series. All must match."""


@rule(
    "(self.type in ['External', 'Pods']) == has(self.name)",
    (
        "spec.autoscaling.metrics.name goes with External and Pods, and they need it: name the metric there, "
        "remove it elsewhere"
    ),
)
@rule(
    "!has(self.selector) || self.type in ['External', 'Pods']",
    "spec.autoscaling.metrics.selector goes with External and Pods only: remove it",
)
@rule(
    "!has(self.targetType) || self.type == 'External'",
    "spec.autoscaling.metrics.targetType goes with External only: remove it, every other target is per pod",
)
@rule(
    (
        "self.type in ['CPU', 'Memory'] && self.target.endsWith('%') ? self.target.matches('^[1-9][0-9]{0,3}%$') "
        ": isQuantity(self.target) && quantity(self.target).isGreaterThan(quantity('0'))"
    ),
    (
        "spec.autoscaling.metrics.target is a positive quantity: write for example 4 or 500m, and for CPU and "
        "Memory also a share of the request like 70%"
    ),
)
class AutoscalingMetric(ApiType):
    """Metric and its target."""

    type: Literal[
        "QueueDepth",
        "InFlight",
        "TokensPerSecond",
        "TTFT",
        "KVCacheUsage",
        "GPUUtilization",
        "CPU",
        "Memory",
        "External",
        "Pods",
    ]
    """Type of the metric. QueueDepth: requests that wait in the pods, or at gateways for a pod. InFlight: requests in
    progress, as counted by the gateways. TokensPerSecond: generated tokens. TTFT: time to the first token in seconds,
    95th percentile over one minute. KVCacheUsage: from 0 to 1. GPUUtilization: percent, from the DCGM exporter through
    an adapter. CPU, Memory: from metrics-server. External, Pods: any metric of a registered provider."""
    target: Annotated[str, Field(max_length=32)]
    """Target value for each pod, for example 4 or 500m, and for CPU and Memory also a share of the request like 70%.
    For TTFT, the longest time to the first token in seconds."""
    target_type: Literal["AverageValue", "Value"] | None = None
    """For External: whether the target is a value for each pod (AverageValue, the default) or a total (Value)."""
    name: (
        Annotated[
            str,
            Field(min_length=1, max_length=253),
            CelRule(
                "!self.contains('/') && !self.contains('%') && self != '.' && self != '..'",
                (
                    "spec.autoscaling.metrics.name is a part of a URL: write it without / and %, and another one than "
                    ". and .."
                ),
            ),
        ]
        | None
    ) = None
    """Name of an External or Pods metric."""
    selector: MetricSelector | None = None


class ScalingPolicy(ApiType):
    """Limit on a change in one period."""

    type: Literal["Pods", "Percent"]
    """Unit of value."""
    value: Annotated[Int32, Field(ge=1, le=10000)]
    """Maximum change in one period: a number of pods, or percent of the current pods."""
    period_seconds: Annotated[Int32, Field(ge=1, le=1800)]
    """Length of the period in seconds."""


class ScalingRules(ApiType):
    """Limits on how fast the number of pods changes in one direction."""

    select_policy: Literal["Max", "Min", "Disabled"] | None = None
    """Policy that applies. Max: the one that allows the largest change. Min: the one that allows the smallest.
    Disabled: no change in this direction. Default is Max."""


class ScaleUpRules(ScalingRules):
    """Rules for adding pods."""

    stabilization_window_seconds: Annotated[Int32, Field(ge=0, le=3600)] | None = None
    """Length of the window in seconds. The smallest recommendation in the window applies. Default is 0."""
    policies: Annotated[tuple[ScalingPolicy, ...], Field(min_length=1, max_length=8)] = ()
    """Limits on the change in one period. Default is 4 pods or 100 percent in 15 s."""


class ScaleDownRules(ScalingRules):
    """Rules for removing pods."""

    stabilization_window_seconds: Annotated[Int32, Field(ge=0, le=3600)] | None = None
    """Length of the window in seconds. The largest recommendation in the window applies. Default is 300."""
    policies: Annotated[tuple[ScalingPolicy, ...], Field(min_length=1, max_length=8)] = ()
    """Limits on the change in one period. Default is 100 percent in 15 s."""


class Behavior(ApiType):
    """Speed of scaling in both directions, as in autoscaling/v2."""

    scale_up: ScaleUpRules | None = None
    scale_down: ScaleDownRules | None = None


class UtilizationThreshold(ApiType):
    """Utilization of the pods for some time. Utilization is demand by what the ready pods carry while the objectives
    of spec.slo hold."""

    utilization_percent: Annotated[Int32, Field(ge=1, le=1000)]
    """Utilization in percent."""
    for_seconds: Annotated[Int32, Field(ge=0, le=86400)]
    """Time in seconds for which it lasts."""


class DemandForecast(ApiType):
    """Forecast of demand by its season, from the history of the deployment itself. Pods are added before the peak. It
    never lowers the number of pods, and counts only while it is better than the last value."""

    season_seconds: Annotated[Int32, Field(ge=3600, le=604800)] = 86400
    """Length of a season in seconds."""


@rule(
    "has(self.minReplicas) || has(self.maxReplicas)",
    "spec.autoscaling.objective.schedules changes a bound: write minReplicas, maxReplicas or both",
)
@rule(
    "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
    "spec.autoscaling.objective.schedules.minReplicas is at most maxReplicas: lower it, or raise maxReplicas",
)
class ScalingSchedule(ApiType):
    """Bounds of the number of pods for some time from each time of a cron expression on."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the schedule."""
    cron: Annotated[str, Field(min_length=9, max_length=128, pattern=r"^[0-9A-Za-z*/,#-]+( [0-9A-Za-z*/,#-]+){4}$")]
    """Times at which it begins, as five fields: minute, hour, day of the month, month and day of the week."""
    time_zone: Annotated[
        str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9+_-]*(/[A-Za-z0-9+_-]+)*$")
    ] = "UTC"
    """Name of the time zone in the database of IANA, for example Europe/Berlin."""
    duration_seconds: Annotated[Int32, Field(ge=60, le=604800)]
    """Time in seconds for which it lasts."""
    min_replicas: Annotated[Int32, Field(ge=1, le=10000)] | None = None
    """Minimum number of pods in this time, where it is above that of spec.autoscaling."""
    max_replicas: Annotated[Int32, Field(ge=1, le=10000)] | None = None
    """Maximum number of pods in this time, where it is below that of spec.autoscaling."""


class ScalingObjective(ApiType):
    """Number of pods with which the objectives of spec.slo hold, by what the pods of each revision are measured to
    carry."""

    mode: Literal["Advise", "Act"]
    """Advise: the status shows how many pods there should be, and why. Act: the metric slipway_desired_replicas has
    this number too, and the HorizontalPodAutoscaler of spec.autoscaling follows it."""
    target_utilization_percent: Annotated[Int32, Field(ge=10, le=100)] = 80
    """Utilization for which pods are planned, in percent."""
    scale_up: UtilizationThreshold | None = None
    """Utilization above which pods are added. Default is as soon as demand needs them. Waiting work, a missed
    objective, forecasts and schedules do not wait for it."""
    scale_down: UtilizationThreshold | None = None
    """Utilization below which pods are removed. Default is when demand has needed fewer for the stabilization
    window."""
    stabilization_window_seconds: Annotated[Int32, Field(ge=0, le=3600)] = 300
    """Length of the window in seconds. Its largest need applies before pods are removed."""
    cooldown_seconds: Annotated[Int32, Field(ge=0, le=3600)] = 0
    """Time in seconds from a change of the number until pods are removed."""
    empty_seconds: Annotated[Int32, Field(ge=10, le=86400)] = 300
    """Time in seconds without any request after which minReplicas applies at once."""
    missed_seconds: Annotated[Int32, Field(ge=10, le=3600)] = 30
    """Time in seconds for which the objective is missed before pods are added for it."""
    backlog_percent: Annotated[Int32, Field(ge=10, le=10000)] = 120
    """Waiting work, in percent of what the ready pods do in a second, above which pods are added for it."""
    forecast: DemandForecast | None = None
    schedules: Annotated[tuple[ScalingSchedule, ...], Field(max_length=16)] = ()
    """Bounds at some times. Of several the highest minimum and the lowest maximum apply."""


@rule(
    "has(self.metrics) || has(self.objective)",
    "spec.autoscaling needs metrics, or an objective: write one of them",
)
@rule(
    "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
    "spec.autoscaling.minReplicas is at most maxReplicas: lower it, or raise maxReplicas",
)
@rule(
    "(has(self.minReplicas) && self.minReplicas == 0) == has(self.idleSeconds)",
    (
        "spec.autoscaling.minReplicas: 0 and idleSeconds go together: write both to scale to zero, or remove "
        "idleSeconds and keep at least 1"
    ),
)
@rule(
    "!has(self.holdSeconds) || has(self.idleSeconds)",
    "spec.autoscaling.holdSeconds goes with idleSeconds only: remove it, or write idleSeconds and minReplicas: 0",
)
class AutoscalingSpec(ApiType):
    """Automatic scaling. The operator creates a HorizontalPodAutoscaler (autoscaling/v2) named NAME-autoscaler, which
    writes spec.replicas: do not write it yourself. While another autoscaler targets the same ModelDeployment, the
    operator deletes its own."""

    min_replicas: Annotated[Int32, Field(ge=0, le=10000)] = 1
    """Minimum number of pods. With 0, which needs idleSeconds, there are no pods while there are no requests, and
    otherwise at least 1."""
    max_replicas: Annotated[Int32, Field(ge=1, le=10000)]
    """Maximum number of pods. A rollout may temporarily add its surge."""
    idle_seconds: Annotated[Int32, Field(ge=5, le=604800)] | None = None
    """Time in seconds without a request or stream at any gateway after which all pods are removed. The next request
    waits at its gateway and starts pods. The time starts again after each rollout."""
    hold_seconds: Annotated[Int32, Field(ge=0, le=3600)] | None = None
    """Maximum time in seconds that a gateway holds a request while pods start. After it, or when the gateway already
    holds as many requests as it may, the response is 503 with Retry-After. 0 means that no request is held. Default is
    300."""
    metrics: Annotated[tuple[AutoscalingMetric, ...], Field(min_length=1, max_length=10)] = ()
    """Metrics that determine the number of pods. The metric with the highest recommendation applies. Optional with an
    objective; with one whose mode is Advise, and without metrics, there is no HorizontalPodAutoscaler."""
    objective: ScalingObjective | None = None
    behavior: Behavior | None = None
