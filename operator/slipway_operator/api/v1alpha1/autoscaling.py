"""spec.autoscaling: between how many pods, by which metrics, how fast."""

from typing import Annotated, Literal

from pydantic import Field

from slipway_operator.api.markers import CelRule, rule
from slipway_operator.api.types import ApiType, Int32


class MetricSelector(ApiType):
    """Which series of an External or Pods metric."""

    match_labels: (
        Annotated[dict[str, Annotated[str, Field(max_length=63, description="One value.")]], Field(max_length=16)]
        | None
    ) = None
    """Labels that the series has."""


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
    """One metric."""

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
    """QueueDepth: requests that wait, in the pods or at gateways for one. InFlight: requests in progress, as
    gateways count them. TokensPerSecond: generated. TTFT: seconds to the first token, 95th percentile of a
    minute. KVCacheUsage: 0 to 1. GPUUtilization: percent, from DCGM's exporter through an adapter. CPU, Memory:
    from metrics-server. External, Pods: any metric of a registered provider."""
    target: Annotated[str, Field(max_length=32)]
    """What one pod is to have of it; for TTFT what each request is to wait at most."""
    target_type: Literal["AverageValue", "Value"] | None = None
    """Of External: whether the target is per pod (AverageValue, the default) or for the whole (Value)."""
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
    """One limit."""

    type: Literal["Pods", "Percent"]
    """What value counts."""
    value: Annotated[Int32, Field(ge=1, le=10000)]
    """So many pods or percent of the present ones."""
    period_seconds: Annotated[Int32, Field(ge=1, le=1800)]
    """In so many seconds."""


class ScalingRules(ApiType):
    """How fast one direction goes."""

    select_policy: Literal["Max", "Min", "Disabled"] | None = None
    """Which policy counts: the one that allows the largest or the smallest change; Disabled forbids this direction.
    Default: Max."""


class ScaleUpRules(ScalingRules):
    """Towards more pods."""

    stabilization_window_seconds: Annotated[Int32, Field(ge=0, le=3600)] | None = None
    """The smallest number of the last so many seconds counts. Default: 0."""
    policies: Annotated[tuple[ScalingPolicy, ...], Field(min_length=1, max_length=8)] = ()
    """How much may change in how long. Default: 4 pods or 100 percent in 15 s."""


class ScaleDownRules(ScalingRules):
    """Towards fewer pods."""

    stabilization_window_seconds: Annotated[Int32, Field(ge=0, le=3600)] | None = None
    """The largest number of the last so many seconds counts. Default: 300."""
    policies: Annotated[tuple[ScalingPolicy, ...], Field(min_length=1, max_length=8)] = ()
    """How much may change in how long. Default: 100 percent in 15 s."""


class Behavior(ApiType):
    """How fast, as in autoscaling/v2."""

    scale_up: ScaleUpRules | None = None
    scale_down: ScaleDownRules | None = None


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
    """Capacity follows demand: the operator keeps a HorizontalPodAutoscaler (autoscaling/v2) called NAME-autoscaler
    that writes spec.replicas, which is then not yours to write. Another autoscaler on the same ModelDeployment
    makes it step back."""

    min_replicas: Annotated[Int32, Field(ge=0, le=10000)] = 1
    """Never fewer pods. 0, with idleSeconds: none while nobody asks, and else at least 1."""
    max_replicas: Annotated[Int32, Field(ge=1, le=10000)]
    """Never more pods; a rollout may add its surge for a while."""
    idle_seconds: Annotated[Int32, Field(ge=5, le=604800)] | None = None
    """Without a request or stream at any gateway for so long it goes without pods; the next request waits at its
    gateway and wakes it. Counted anew after each rollout."""
    hold_seconds: Annotated[Int32, Field(ge=0, le=3600)] | None = None
    """How long a gateway lets a request wait for it to wake; then, and beyond the gateway's number of places, it
    answers 503 with Retry-After. 0: at once. Default: 300."""
    metrics: Annotated[tuple[AutoscalingMetric, ...], Field(min_length=1, max_length=10)]
    """What capacity follows. The metric that asks for the most pods counts."""
    behavior: Behavior | None = None
