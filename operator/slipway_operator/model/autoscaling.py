"""`spec.autoscaling` as typed values; what cannot be meant is a ValueError with a sentence."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slipway_operator.model import quantity

Json = Mapping[str, Any]


class MetricType(StrEnum):
    """What capacity follows."""

    QUEUE_DEPTH = "QueueDepth"  # requests that wait, in the pods or at gateways for one
    IN_FLIGHT = "InFlight"  # requests that gateways have at the pods, streams included
    TOKENS_PER_SECOND = "TokensPerSecond"  # generated, over the last minute
    TTFT = "TTFT"  # 95th percentile of the seconds to the first token, over the last minute
    KV_CACHE_USAGE = "KVCacheUsage"  # held share of the KV cache, 0 to 1
    GPU_UTILIZATION = "GPUUtilization"  # percent, as NVIDIA's DCGM exporter counts it
    CPU = "CPU"
    MEMORY = "Memory"
    EXTERNAL = "External"
    PODS = "Pods"


# The names under which the metrics API serves our own; docs/autoscaling.md describes each.
OWN_NAMES: Mapping[MetricType, str] = {
    MetricType.QUEUE_DEPTH: "slipway_queue_depth",
    MetricType.IN_FLIGHT: "slipway_in_flight",
    MetricType.TOKENS_PER_SECOND: "slipway_tokens_per_second",
    MetricType.TTFT: "slipway_ttft_p95_replica_seconds",
    MetricType.KV_CACHE_USAGE: "slipway_kv_cache_usage",
}
HOLD_S = 300  # as long as Knative's activator waits
AVERAGE = "AverageValue"
NAMED = (MetricType.EXTERNAL, MetricType.PODS)
OF_REQUESTS = (MetricType.CPU, MetricType.MEMORY)  # whose target may be a share of what the pods request


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric and what a pod is to have of it."""

    type: MetricType
    target: str  # a quantity; with a percent sign a share of the pods' requests
    name: str = ""  # of External and Pods
    match_labels: tuple[tuple[str, str], ...] = ()
    target_type: str = AVERAGE  # External may also have Value: the whole, not per pod


@dataclass(frozen=True, slots=True)
class Policy:
    """So many pods, or percent of them, in so many seconds at most."""

    type: str  # Pods | Percent
    value: int
    period_s: int


@dataclass(frozen=True, slots=True)
class Rules:
    """How fast one direction goes: a `HPAScalingRules` of autoscaling/v2 with its defaults filled in."""

    window_s: int
    select: str  # Max | Min | Disabled
    policies: tuple[Policy, ...]


# Those of Kubernetes. Written down, so that what the API server holds can be compared with what is wanted.
SCALE_UP = Rules(0, "Max", (Policy("Pods", 4, 15), Policy("Percent", 100, 15)))
SCALE_DOWN = Rules(300, "Max", (Policy("Percent", 100, 15),))


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Between how many pods, by which metrics, how fast."""

    max_replicas: int
    metrics: tuple[Metric, ...]
    min_replicas: int = 1
    scale_up: Rules = SCALE_UP
    scale_down: Rules = SCALE_DOWN
    idle_s: int | None = None  # without a request, after which it goes without pods; only with min_replicas 0
    hold_s: int = HOLD_S  # how long a gateway lets a request wait for it to wake; 0: not at all


def parse_autoscaling(spec: Json | None) -> Autoscaling | None:
    """Read the field; None when it is not there.

    Raises:
        ValueError: for bounds that exclude each other and targets that are no positive quantity.
        KeyError: when a required field is missing, which the schema rules out.
    """
    if spec is None:
        return None
    behavior = spec.get("behavior") or {}
    read = Autoscaling(
        max_replicas=int(spec["maxReplicas"]),
        metrics=tuple(_metric(item) for item in spec["metrics"]),
        min_replicas=int(spec.get("minReplicas", 1)),
        scale_up=_rules(behavior.get("scaleUp") or {}, SCALE_UP),
        scale_down=_rules(behavior.get("scaleDown") or {}, SCALE_DOWN),
        idle_s=int(spec["idleSeconds"]) if "idleSeconds" in spec else None,
        hold_s=int(spec.get("holdSeconds", HOLD_S)),
    )
    if not 0 <= read.min_replicas <= read.max_replicas:
        raise ValueError(
            f"spec.autoscaling: minReplicas {read.min_replicas} must be from 0 to maxReplicas {read.max_replicas}"
        )
    if (read.min_replicas == 0) != (read.idle_s is not None):
        raise ValueError("spec.autoscaling: minReplicas 0 and idleSeconds go together: write both or neither")
    return read


def _metric(item: Json) -> Metric:
    kind, target = MetricType(item["type"]), str(item["target"])
    share = target.endswith("%") and kind in OF_REQUESTS
    if quantity.parse(target.removesuffix("%") if share else target) <= 0:
        raise ValueError(f"spec.autoscaling.metrics: the target {target} of {kind} must be above 0")
    if kind in NAMED and not item.get("name"):
        raise ValueError(f"spec.autoscaling.metrics: {kind} needs the name of a metric")
    labels = (item.get("selector") or {}).get("matchLabels") or {}
    return Metric(
        kind, target, item.get("name") or "", tuple(sorted(labels.items())), item.get("targetType") or AVERAGE
    )


def _rules(given: Json, default: Rules) -> Rules:
    policies = tuple(
        Policy(item["type"], int(item["value"]), int(item["periodSeconds"])) for item in given.get("policies") or ()
    )
    return Rules(
        int(given.get("stabilizationWindowSeconds", default.window_s)),
        str(given.get("selectPolicy", default.select)),
        policies or default.policies,
    )
