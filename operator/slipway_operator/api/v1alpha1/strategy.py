"""spec.strategy: how a new revision goes out, by steps of a canary or in one switch."""

from typing import Annotated, Literal

from pydantic import Field

from slipway_operator.api.markers import CelRule, rule
from slipway_operator.api.types import ApiType, Duration, Int32, IntOrString, duration_rule
from slipway_operator.api.v1alpha1.steps import CanaryStep, HeaderRoutingMatch, RolloutAnalysis, WaitingAnalysis


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

    match: Annotated[tuple[HeaderRoutingMatch, ...], Field(min_length=1, max_length=8)]
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


class BackgroundAnalysis(RolloutAnalysis):
    """Judge the new revision in the background of the steps: it is rejected at any step when it is worse than
    stable. It holds no step up; an analysis step does."""

    starting_step: Annotated[Int32, Field(ge=0, le=49)] = 0
    """The step from which on it runs, counted from 0 as in Argo Rollouts."""


@rule(
    "!(has(self.steps) && has(self.trafficPercent))",
    (
        "spec.strategy.canary takes steps or trafficPercent, not both: remove trafficPercent to follow the "
        "steps, or steps to steer by hand"
    ),
)
@rule(
    (
        "!has(self.baselinePod) || !self.baselinePod || has(self.analysis) || (has(self.steps) && "
        "self.steps.exists(step, has(step.analysis)))"
    ),
    (
        "spec.strategy.canary.baselinePod is for an analysis to compare with: add spec.strategy.canary.analysis "
        "or an analysis step, or remove baselinePod"
    ),
)
class Canary(ApiType):
    """Raise the traffic of the new revision step by step."""

    steps: Annotated[
        tuple[CanaryStep, ...],
        Field(min_length=1, max_length=50),
        CelRule(
            "self.filter(s, has(s.setWeight)).map(s, s.setWeight).isSorted()",
            "the weights of spec.strategy.canary.steps must rise: write them like 10, 50, 100",
        ),
    ] = ()
    """What to do, in order; after the last step the revision is promoted."""
    analysis: BackgroundAnalysis | None = None
    baseline_pod: bool | None = None
    """Compare the new revision with fresh pods of stable, as many as it has and with as much weight, in place of
    stable's own: as young, as cold and as busy. While it has less than half of the requests and an analysis is
    ahead. They count towards capacity.maxSurge; without room or a node for them the rollout goes on without, and
    says so."""
    traffic_percent: Annotated[Int32, Field(ge=0, le=100)] | None = None
    """Steer by hand: the new revision gets this share of new requests until you change it. 100 promotes it."""
    replica_progress_threshold: ReplicaProgressThreshold | None = None
    """Ready pods of the new revision that are enough to go on. Without it all are waited for, and a node that never
    gets ready stops the rollout."""
    scale_down_delay_seconds: Annotated[Int32, Field(ge=0, le=86400)] = 30
    """How long the old revision keeps its pods after a promotion, at least; it also waits until its requests have
    ended."""
    abort_scale_down_delay_seconds: Annotated[Int32, Field(ge=0, le=86400)] = 30
    """How long a rejected revision keeps its pods, for a look at them."""


class Webhook(ApiType):
    """One webhook."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Its name in status, Events and idempotency keys."""
    type: Literal[
        "confirm-rollout",
        "pre-rollout",
        "rollout",
        "confirm-traffic-increase",
        "confirm-promotion",
        "post-rollout",
        "rollback",
        "event",
    ]
    """When it is called. The confirm types are gates: they hold until 2xx. pre-rollout (pods are ready) and rollout
    (a weight is reached) are checks: without 2xx the revision is rejected. rollback is asked all the time: 2xx
    rejects the revision. post-rollout and event are told."""
    url: Annotated[
        str,
        Field(max_length=2048),
        CelRule(
            "self.matches('^https?://[A-Za-z0-9.:_\\\\[\\\\]-]+([/?][^ ]*)?$')",
            (
                "spec.strategy.hooks.url must be http:// or https:// with a host and without credentials: write for "
                "example http://gate.tools.svc/approve"
            ),
        ),
    ]
    """Where to POST, http or https. Redirects are not followed."""
    timeout_seconds: Annotated[Int32, Field(ge=1, le=300)] = 10
    """How long one try may take."""
    retries: Annotated[Int32, Field(ge=0, le=5)] = 2
    """Further tries of a check or of what is told, after 5xx, 408, 425, 429 or no answer. Gates and rollback are
    asked anew anyway."""
    metadata: (
        Annotated[dict[str, Annotated[str, Field(max_length=1024, description="One value.")]], Field(max_length=16)]
        | None
    ) = None
    """Sent along. Not for secrets."""


class RolloutCapacity(ApiType):
    """Pods that a rollout may add, and what happens when no node takes them."""

    policy: Literal["PreferSurge", "RequireSurge", "AllowRecreate"] = "PreferSurge"
    """PreferSurge: when further pods find no node for surgeTimeoutSeconds, pods of the stable revision make way one
    by one. RequireSurge: wait for nodes. AllowRecreate: as PreferSurge, and the only pod of a model with one
    replica may leave before the new one comes; gateways hold requests meanwhile."""
    max_surge: Annotated[
        IntOrString,
        CelRule(
            "type(self) == int ? self >= 0 && self <= 10000 : self.matches('^(100|[1-9]?[0-9])%$')",
            "maxSurge is a number of pods or a percentage up to 100%: write for example 1 or 25%",
        ),
    ] = "100%"
    """Pods above spec.replicas that a rollout may add, as a number or in percent of spec.replicas. 0 replaces pods
    one by one."""
    surge_timeout_seconds: Annotated[Int32, Field(ge=1, le=86400)] = 300
    """How long to wait for nodes before going on without further pods."""
    deadline_seconds: Annotated[Int32, Field(ge=1, le=604800)] = 1800
    """A rollout that waits for capacity so long is rejected; the stable revision gets its pods back."""
    hold_seconds: Annotated[Int32, Field(ge=1, le=600)] = 30
    """With AllowRecreate and one replica, how long a gateway holds a request while no pod is ready."""


@rule(
    "!(has(self.canary) && has(self.blueGreen))",
    "spec.strategy takes canary or blueGreen, not both: remove one of them",
)
class RolloutStrategy(ApiType):
    """How a new revision goes out. Without it the new revision takes all traffic as soon as it is ready."""

    canary: Canary | None = None
    hooks: Annotated[
        tuple[Webhook, ...],
        Field(max_length=16),
        CelRule(
            "self.all(h, self.exists_one(o, o.name == h.name))",
            "the names of spec.strategy.hooks must differ: give each hook a name of its own",
        ),
    ] = ()
    """Webhooks that confirm, check or hear of a rollout; see docs/hooks.md. The first revision asks none, and
    neither do skipped steps (promoteFull, rollbackTo, rollbackWindow)."""
    blue_green: BlueGreen | None = None
    capacity: RolloutCapacity | None = None
