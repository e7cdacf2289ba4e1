"""spec.strategy.blueGreen: all traffic at once, after a preview."""

from typing import Annotated, Literal

from pydantic import Field

from slipway_operator.api.markers import rule
from slipway_operator.api.types import ApiType, Duration, Int32, duration_rule
from slipway_operator.api.v1alpha1.steps import HeaderMatch, WaitingAnalysis


@rule(
    "self.type == 'Pod' || self.value <= 100",
    "replicaProgressThreshold.value is at most 100 for type Percent: write a smaller one, or type Pod",
)
class ReplicaProgressThreshold(ApiType):
    """Ready pods of the new revision that are enough to go on. Without it all are waited for, and a node that never
    gets ready stops the rollout."""

    type: Literal["Percent", "Pod"]
    """What value counts."""
    value: Annotated[Int32, Field(ge=1, le=10000)]
    """Percent of the pods that a step needs, or pods."""


class PrePromotionAnalysis(WaitingAnalysis):
    """Judge the new revision before the switch, when its preview pods are ready: one that fails is rejected and
    never serves. No request is split between the two then, so the metrics need a provider."""

    max_duration: Annotated[Duration, duration_rule("prePromotionAnalysis.maxDuration", "30m or 1h30m")] = "30m"


class PostPromotionAnalysis(WaitingAnalysis):
    """Judge the new revision after the switch, while the old one keeps all its pods: one that fails is rejected, and
    all requests go back at once. No request is split between the two then either."""

    max_duration: Annotated[Duration, duration_rule("postPromotionAnalysis.maxDuration", "30m or 1h30m")] = "30m"


class PreviewRoute(ApiType):
    """Requests that reach the new revision before the switch, by header or by a host name of their own."""

    match: Annotated[tuple[HeaderMatch, ...], Field(min_length=1, max_length=8)]
    """Headers that a request has, all of them."""


@rule(
    "!(has(self.autoPromotionSeconds) && has(self.autoPromotionEnabled) && !self.autoPromotionEnabled)",
    (
        "spec.strategy.blueGreen waits for a promotion or for autoPromotionSeconds, not for both: remove "
        "autoPromotionSeconds, or set autoPromotionEnabled to true"
    ),
)
class BlueGreen(ApiType):
    """Bring the new revision to full size without traffic, then switch all traffic at once."""

    auto_promotion_enabled: bool = True
    """Switch as soon as the pods are ready. When false, wait for a promotion."""
    auto_promotion_seconds: Annotated[Int32, Field(ge=0, le=604800)] | None = None
    """Wait so long before the switch, for a look at the preview."""
    pre_promotion_analysis: PrePromotionAnalysis | None = None
    post_promotion_analysis: PostPromotionAnalysis | None = None
    preview_replica_count: Annotated[Int32, Field(ge=1, le=10000)] | None = None
    """Pods of the new revision until the promotion; then all come up before the switch. Without it all come up at
    once."""
    preview_route: PreviewRoute | None = None
    replica_progress_threshold: ReplicaProgressThreshold | None = None
    """Ready pods of the new revision that are enough to go on. Without it all are waited for, and a node that never
    gets ready stops the rollout."""
    scale_down_delay_seconds: Annotated[Int32, Field(ge=0, le=86400)] = 30
    """How long the old revision keeps its pods after the switch, at least."""
    abort_scale_down_delay_seconds: Annotated[Int32, Field(ge=0, le=86400)] = 30
    """How long a rejected revision keeps its pods, for a look at them."""
