"""spec.strategy: rollout of a new revision, by the steps of a canary or in one switch."""

from typing import Annotated, Literal

from pydantic import Field

from slipway_contracts.api.markers import CelRule, implied_defaults, rule
from slipway_contracts.api.types import ApiType, Duration, Int32, IntOrString, duration_rule
from slipway_operator.api.v1alpha1.hooks import Webhook
from slipway_operator.api.v1alpha1.twin_shadow import StepTwinShadow


@rule(
    "[has(self.replicas), has(self.weight), has(self.matchTrafficWeight)].filter(given, given).size() == 1",
    "setCanaryScale takes exactly one of replicas, weight and matchTrafficWeight: remove the others",
)
class SetCanaryScale(ApiType):
    """Number of pods of the new revision from this step on, regardless of its weight. It is never below what the weight
    needs."""

    replicas: Annotated[Int32, Field(ge=1, le=10000)] | None = None
    """Number of pods."""
    weight: Annotated[Int32, Field(ge=1, le=100)] | None = None
    """Percent of spec.replicas."""
    match_traffic_weight: (
        Annotated[
            bool,
            CelRule(
                "self",
                "setCanaryScale.matchTrafficWeight is true or left out: "
                "write replicas or weight for another number of pods",
            ),
        ]
        | None
    ) = None
    """When true, the weight determines the number of pods, as without setCanaryScale."""


@rule("has(self.exact) != has(self.prefix)", "headerValue takes either exact or prefix: remove one of them")
class StringMatch(ApiType):
    """Match of the value."""

    exact: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Whole value of the header."""
    prefix: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Beginning of the value."""


class HeaderRoutingMatch(ApiType):
    """Match of one header."""

    header_name: Annotated[
        str,
        Field(min_length=1, max_length=128),
        CelRule(
            "self.matches('^[A-Za-z0-9!#$%&*+.^_|~-]+$')",
            "headerName is the name of an HTTP header: write for example X-Canary",
        ),
    ]
    """Name of the header, case-insensitive. Host is compared without its port."""
    header_value: StringMatch


class HeaderRouteStep(ApiType):
    """Route requests with these headers to the new revision from this step on, regardless of its weight. Without match,
    the route of this name is removed. All routes are removed at the end of the rollout."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the route, by which a later step changes or removes it."""
    match: Annotated[tuple[HeaderRoutingMatch, ...], Field(max_length=8)] = ()
    """Headers of a request. All must match."""


class MirrorRouteStep(ApiType):
    """Mirror a share of the requests that stable answers to the new revision from this step on, regardless of its
    weight. Clients do not see the responses. With neither percentage nor match, the mirror route of this name is
    removed. All mirror routes are removed at the end of the steps."""

    name: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Name of the mirror route, by which a later step changes or removes it. Default is mirror."""
    percentage: Annotated[Int32, Field(ge=1, le=100)] | None = None
    """Percent of the requests that are mirrored. Default is 100 when match is given."""
    match: Annotated[tuple[HeaderRoutingMatch, ...], Field(max_length=8)] = ()
    """Headers of a request. All must match."""


class TemplateRef(ApiType):
    """Reference to an AnalysisTemplate."""

    template_name: Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """Name of an AnalysisTemplate in the same namespace. llm-default, llm-release and llm-shadow-drift are built in."""


class RolloutAnalysis(ApiType):
    """Analysis of the new revision."""

    templates: Annotated[
        tuple[TemplateRef, ...],
        Field(min_length=1, max_length=8),
        CelRule(
            "self.size() == 1",
            "an analysis takes exactly one template in this release: name the metrics of all in one AnalysisTemplate",
        ),
    ]
    """AnalysisTemplate of the analysis; exactly one in this release."""


@implied_defaults()
class WaitingAnalysis(RolloutAnalysis):
    """Analysis of the new revision. The rollout waits for its verdict."""

    until_verdict: bool = True
    """When true, the rollout continues as soon as the revision has passed. When false, the analysis lasts for the whole
    maxDuration."""
    max_duration: Duration = "30m"
    """Maximum wait for a verdict, for example 30m. After that onInconclusive of the template decides."""


class StepAnalysis(WaitingAnalysis):
    """Analysis of the requests that are split by the current weight, or of the pairs of a twin shadow. A revision that
    is worse than stable is rejected. When the revision passes, the rollout continues."""

    max_duration: Annotated[Duration, duration_rule("analysis.maxDuration", "30m or 1h30m")] = "30m"
    twin_shadow: StepTwinShadow | None = None


@implied_defaults()
class RampAuto(ApiType):
    """Weights of the new revision, chosen at each reading from 1, 2, 5, 10, 25 and 50 percent: the highest one whose
    possible harm fits."""

    max_harm: Annotated[Int32, Field(ge=1, le=100000)] = 20
    """Extra bad responses, compared with stable, that the ramp may cost before the new revision has passed. The bounds
    that the twin shadow and the responses to clients prove limit what each reading may cost."""
    max_weight: Annotated[Int32, Field(ge=1, le=50)] = 50
    """Highest weight in percent before the new revision has passed."""
    bake: Annotated[Duration, duration_rule("ramp.auto.bake", "10m, or 0s for none")] = "10m"
    """Time at 90 percent after the new revision has passed, while the analysis may still reject it. maxHarm does not
    limit this time."""


@implied_defaults()
class StepRamp(RolloutAnalysis):
    """Increase the weight while the possible harm to clients stays bounded, analyze the requests meanwhile, and reject
    a revision that is worse than stable. It comes after an analysis with twinShadow, whose bound it needs."""

    auto: RampAuto = RampAuto()
    max_duration: Annotated[Duration, duration_rule("ramp.maxDuration", "30m or 1h30m")] = "30m"
    """Maximum wait for a verdict, for example 30m, without the bake. After that onInconclusive of the template
    decides."""


class RolloutPause(ApiType):
    """Pause of the rollout. Without duration it lasts until a promotion."""

    duration: Annotated[Duration, duration_rule("pause.duration", "30s, 10m or 1h30m")] | None = None
    """Duration of the pause, for example 30s, 10m or 1h30m."""


@rule(
    (
        "[has(self.setWeight), has(self.setCanaryScale), has(self.setHeaderRoute), has(self.setMirrorRoute), "
        "has(self.analysis), has(self.ramp), has(self.pause)].filter(given, given).size() == 1"
    ),
    (
        "each step of spec.strategy.canary.steps is exactly one of setWeight, setCanaryScale, setHeaderRoute, "
        "setMirrorRoute, analysis, ramp and pause: write a list item for each"
    ),
)
class CanaryStep(ApiType):
    """Step of a canary: setWeight, setCanaryScale, setHeaderRoute, setMirrorRoute, analysis, ramp or pause."""

    set_weight: Annotated[Int32, Field(ge=0, le=100)] | None = None
    """Percent of new requests for the new revision. The step is complete when every ready gateway routes by it."""
    set_canary_scale: SetCanaryScale | None = None
    set_header_route: HeaderRouteStep | None = None
    set_mirror_route: MirrorRouteStep | None = None
    analysis: StepAnalysis | None = None
    ramp: StepRamp | None = None
    pause: RolloutPause | None = None


@rule(
    "self.type == 'Pod' || self.value <= 100",
    "replicaProgressThreshold.value is at most 100 for type Percent: write a smaller one, or type Pod",
)
class ReplicaProgressThreshold(ApiType):
    """Number of ready pods of the new revision that a step needs to continue. If omitted, a step needs all of them, and
    a node that never becomes ready blocks the rollout."""

    type: Literal["Percent", "Pod"]
    """Unit of value."""
    value: Annotated[Int32, Field(ge=1, le=10000)]
    """Percent of the pods of a step, or number of pods."""


class PrePromotionAnalysis(WaitingAnalysis):
    """Analysis of the new revision before the switch, when its preview pods are ready. A revision that fails is
    rejected and never serves. Requests are not split between the revisions at that time, so the metrics need a
    provider, or twinShadow."""

    max_duration: Annotated[Duration, duration_rule("prePromotionAnalysis.maxDuration", "30m or 1h30m")] = "30m"
    twin_shadow: StepTwinShadow | None = None


class PostPromotionAnalysis(WaitingAnalysis):
    """Analysis of the new revision after the switch, while the old revision keeps all its pods. When it fails, the
    revision is rejected and all requests return at once. Requests are not split between the revisions at that time, so
    the metrics need a provider."""

    max_duration: Annotated[Duration, duration_rule("postPromotionAnalysis.maxDuration", "30m or 1h30m")] = "30m"


class PreviewRoute(ApiType):
    """Route to the new revision before the switch, by header or by a separate host name."""

    match: Annotated[tuple[HeaderRoutingMatch, ...], Field(min_length=1, max_length=8)]
    """Headers of a request. All must match."""


@rule(
    "!(has(self.autoPromotionSeconds) && has(self.autoPromotionEnabled) && !self.autoPromotionEnabled)",
    (
        "spec.strategy.blueGreen waits for a promotion or for autoPromotionSeconds, not for both: remove "
        "autoPromotionSeconds, or set autoPromotionEnabled to true"
    ),
)
@implied_defaults()
class BlueGreen(ApiType):
    """Start all pods of the new revision without traffic, then switch all traffic at once."""

    auto_promotion_enabled: bool = True
    """When true, the switch follows as soon as the pods are ready. When false, it waits for a promotion."""
    auto_promotion_seconds: Annotated[Int32, Field(ge=0, le=604800)] | None = None
    """Time in seconds before the switch, for tests of the preview."""
    pre_promotion_analysis: PrePromotionAnalysis | None = None
    post_promotion_analysis: PostPromotionAnalysis | None = None
    preview_replica_count: Annotated[Int32, Field(ge=1, le=10000)] | None = None
    """Number of pods of the new revision until the promotion. The others start before the switch. If omitted, all start
    at once."""
    preview_route: PreviewRoute | None = None
    replica_progress_threshold: ReplicaProgressThreshold | None = None
    """Number of ready pods of the new revision that a step needs to continue. If omitted, a step needs all of them, and
    a node that never becomes ready blocks the rollout."""
    scale_down_delay_seconds: Annotated[Int32, Field(ge=0, le=86400)] = 30
    """Minimum time in seconds that the old revision keeps its pods after the switch."""
    abort_scale_down_delay_seconds: Annotated[Int32, Field(ge=0, le=86400)] = 30
    """Time in seconds that a rejected revision keeps its pods, for debugging."""


@implied_defaults()
class BackgroundAnalysis(RolloutAnalysis):
    """Analysis of the new revision in the background of the steps. It rejects the revision at any step when it is worse
    than stable. Only analysis steps wait for a verdict."""

    starting_step: Annotated[Int32, Field(ge=0, le=49)] = 0
    """Step at which the analysis starts, counted from 0 as in Argo Rollouts."""


@rule(
    "!(has(self.steps) && has(self.trafficPercent))",
    (
        "spec.strategy.canary takes steps or trafficPercent, not both: remove trafficPercent to follow the "
        "steps, or steps to control the traffic by hand"
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
@implied_defaults()
class Canary(ApiType):
    """Increase the traffic of the new revision step by step."""

    steps: Annotated[
        tuple[CanaryStep, ...],
        Field(min_length=1, max_length=50),
        CelRule(
            "self.filter(s, has(s.setWeight)).map(s, s.setWeight).isSorted()",
            "the weights of spec.strategy.canary.steps must rise: write them like 10, 50, 100",
        ),
        CelRule(
            (
                "!self.exists(s, has(s.analysis) && has(s.analysis.twinShadow)) || self.filter(s, has(s.setWeight) || "
                "(has(s.analysis) && has(s.analysis.twinShadow))).map(s, has(s.setWeight) ? s.setWeight : 0).isSorted()"
            ),
            (
                "an analysis with twinShadow comes before the first setWeight above 0: copies are compared before "
                "clients come"
            ),
        ),
        CelRule(
            (
                "!self.exists(s, has(s.ramp)) || (self.exists(s, has(s.analysis) && has(s.analysis.twinShadow)) && "
                "self.filter(s, has(s.ramp) || (has(s.analysis) && has(s.analysis.twinShadow)))"
                ".map(s, has(s.ramp) ? 1 : 0).isSorted() && self.filter(s, has(s.ramp)).size() == 1)"
            ),
            (
                "a ramp comes once, after an analysis with twinShadow: the bound that copies prove limits what the "
                "ramp may cost"
            ),
        ),
        CelRule(
            "!self.exists(s, has(s.ramp)) || !self.exists(s, has(s.setWeight) && s.setWeight > 0 && s.setWeight < 100)",
            "a ramp chooses the weights: remove setWeight from 1 to 99",
        ),
    ] = ()
    """Steps, in order. After the last one the revision is promoted."""
    analysis: BackgroundAnalysis | None = None
    baseline_pod: bool | None = None
    """When true, the new revision is compared with new pods of stable instead of stable's own pods: equally many,
    equally old and with equal weight. They exist while an analysis is ahead and the new revision has less than half of
    the requests. They count towards capacity.maxSurge. If there is no room or no node for them, the rollout continues
    without them, and the status shows it."""
    hold_on_budget: bool | None = None
    """When true, the rollout takes no further step while the error budget of spec.slo is spent. It does not reject the
    revision: only an analysis does. spec.rollout.promote and promoteFull still work, and so does abort."""
    traffic_percent: Annotated[Int32, Field(ge=0, le=100)] | None = None
    """Percent of new requests for the new revision, for control by hand. It applies until you change it. 100 promotes
    the revision."""
    replica_progress_threshold: ReplicaProgressThreshold | None = None
    """Number of ready pods of the new revision that a step needs to continue. If omitted, a step needs all of them, and
    a node that never becomes ready blocks the rollout."""
    scale_down_delay_seconds: Annotated[Int32, Field(ge=0, le=86400)] = 30
    """Minimum time in seconds that the old revision keeps its pods after a promotion. They also stay until their
    requests have ended."""
    abort_scale_down_delay_seconds: Annotated[Int32, Field(ge=0, le=86400)] = 30
    """Time in seconds that a rejected revision keeps its pods, for debugging."""


@implied_defaults()
class RolloutCapacity(ApiType):
    """Number of pods that a rollout may add, and the action when no node has room for them."""

    policy: Literal["PreferSurge", "RequireSurge", "AllowRecreate"] = "PreferSurge"
    """PreferSurge: when additional pods find no node for surgeTimeoutSeconds, pods of the stable revision are replaced
    one by one. RequireSurge: the rollout waits for nodes. AllowRecreate: as PreferSurge, and the only pod of a model
    with one replica may be deleted before the new one starts; gateways hold requests meanwhile."""
    max_surge: Annotated[
        IntOrString,
        CelRule(
            "type(self) == int ? self >= 0 && self <= 10000 : self.matches('^(100|[1-9]?[0-9])%$')",
            "maxSurge is a number of pods or a percentage up to 100%: write for example 1 or 25%",
        ),
    ] = "100%"
    """Maximum number of pods above spec.replicas that a rollout may add, as a number or a percentage of spec.replicas,
    rounded up. With 0, pods are replaced one by one."""
    surge_timeout_seconds: Annotated[Int32, Field(ge=1, le=86400)] = 300
    """Maximum wait for nodes in seconds. After that the rollout continues without additional pods, if policy allows
    it."""
    deadline_seconds: Annotated[Int32, Field(ge=1, le=604800)] = 1800
    """Maximum wait of a rollout for capacity in seconds. After that the revision is rejected, and the stable revision
    gets its pods back."""
    hold_seconds: Annotated[Int32, Field(ge=1, le=600)] = 30
    """Maximum time in seconds that a gateway holds a request while no pod is ready, with AllowRecreate and one
    replica."""


@rule(
    "!(has(self.canary) && has(self.blueGreen))",
    "spec.strategy takes canary or blueGreen, not both: remove one of them",
)
class RolloutStrategy(ApiType):
    """Strategy of the rollout of a new revision. If omitted, a new revision gets all traffic as soon as it is ready."""

    canary: Canary | None = None
    hooks: Annotated[
        tuple[Webhook, ...],
        Field(max_length=16),
        CelRule(
            "self.all(h, self.exists_one(o, o.name == h.name))",
            "the names of spec.strategy.hooks must differ: give each hook a name of its own",
        ),
    ] = ()
    """Webhooks that confirm, check or observe a rollout; see docs/hooks.md. The first revision and skipped steps
    (promoteFull, rollbackTo, rollbackWindow) call no gates and no checks."""
    blue_green: BlueGreen | None = None
    capacity: RolloutCapacity | None = None
