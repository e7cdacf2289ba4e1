"""The steps of a canary, with types that blue-green shares: analyses and header matches."""

from typing import Annotated

from pydantic import Field

from slipway_operator.api.markers import CelRule, rule
from slipway_operator.api.types import ApiType, Duration, Int32, duration_rule


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
    """Name of an AnalysisTemplate in the same namespace. llm-default is built in."""


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


class WaitingAnalysis(RolloutAnalysis):
    """Analysis of the new revision. The rollout waits for its verdict."""

    until_verdict: bool = True
    """When true, the rollout continues as soon as the revision has passed. When false, the analysis lasts for the whole
    maxDuration."""
    max_duration: Duration = "30m"
    """Maximum wait for a verdict, for example 30m. After that onInconclusive of the template decides."""


class StepAnalysis(WaitingAnalysis):
    """Analysis of the requests that are split by the current weight. A revision that is worse than stable is rejected.
    When the revision passes, the rollout continues."""

    max_duration: Annotated[Duration, duration_rule("analysis.maxDuration", "30m or 1h30m")] = "30m"


class RolloutPause(ApiType):
    """Pause of the rollout. Without duration it lasts until a promotion."""

    duration: Annotated[Duration, duration_rule("pause.duration", "30s, 10m or 1h30m")] | None = None
    """Duration of the pause, for example 30s, 10m or 1h30m."""


@rule(
    (
        "[has(self.setWeight), has(self.setCanaryScale), has(self.setHeaderRoute), has(self.setMirrorRoute), "
        "has(self.analysis), has(self.pause)].filter(given, given).size() == 1"
    ),
    (
        "each step of spec.strategy.canary.steps is exactly one of setWeight, setCanaryScale, setHeaderRoute, "
        "setMirrorRoute, analysis and pause: write a list item for each"
    ),
)
class CanaryStep(ApiType):
    """Step of a canary: setWeight, setCanaryScale, setHeaderRoute, setMirrorRoute, analysis or pause."""

    set_weight: Annotated[Int32, Field(ge=0, le=100)] | None = None
    """Percent of new requests for the new revision. The step is complete when every ready gateway routes by it."""
    set_canary_scale: SetCanaryScale | None = None
    set_header_route: HeaderRouteStep | None = None
    set_mirror_route: MirrorRouteStep | None = None
    analysis: StepAnalysis | None = None
    pause: RolloutPause | None = None
