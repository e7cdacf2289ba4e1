"""The steps of a canary, and what they share with blue-green: analyses and matches of headers."""

from typing import Annotated

from pydantic import Field

from slipway_operator.api.markers import CelRule, rule
from slipway_operator.api.types import ApiType, Duration, Int32, duration_rule


@rule(
    "[has(self.replicas), has(self.weight), has(self.matchTrafficWeight)].filter(given, given).size() == 1",
    "setCanaryScale takes exactly one of replicas, weight and matchTrafficWeight: remove the others",
)
class SetCanaryScale(ApiType):
    """Pods of the new revision from here on, whatever its weight; never fewer than its weight needs."""

    replicas: Annotated[Int32, Field(ge=1, le=10000)] | None = None
    """So many pods."""
    weight: Annotated[Int32, Field(ge=1, le=100)] | None = None
    """This share of spec.replicas in percent."""
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
    """As many as the weight needs, as without setCanaryScale."""


@rule("has(self.exact) != has(self.prefix)", "headerValue takes either exact or prefix: remove one of them")
class StringMatch(ApiType):
    """What its value is."""

    exact: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The whole value."""
    prefix: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """What the value begins with."""


class HeaderRoutingMatch(ApiType):
    """One header."""

    header_name: Annotated[
        str,
        Field(min_length=1, max_length=128),
        CelRule(
            "self.matches('^[A-Za-z0-9!#$%&*+.^_|~-]+$')",
            "headerName is the name of an HTTP header: write for example X-Canary",
        ),
    ]
    """Name of the header; case does not matter. Host compares the host name without its port."""
    header_value: StringMatch


class HeaderRouteStep(ApiType):
    """Send requests that have these headers to the new revision from here on, whatever its weight; without match the
    route of this name ends. All routes end with the rollout."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the route, by which a later step changes or ends it."""
    match: Annotated[tuple[HeaderRoutingMatch, ...], Field(max_length=8)] = ()
    """Headers that a request has, all of them."""


class MirrorRouteStep(ApiType):
    """Send copies of this share of the requests that stable answers to the new revision from here on, whatever its
    weight; no client sees their answers. With neither percentage nor match the mirror of this name ends. All
    mirrors end with the steps."""

    name: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Name of the mirror, by which a later step changes or ends it; mirror when it is left out."""
    percentage: Annotated[Int32, Field(ge=1, le=100)] | None = None
    """Percent of the requests that are copied; 100 when only match is given."""
    match: Annotated[tuple[HeaderRoutingMatch, ...], Field(max_length=8)] = ()
    """Headers that a request has, all of them."""


class TemplateRef(ApiType):
    """One template."""

    template_name: Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """Name of an AnalysisTemplate in the same namespace. llm-default is built in."""


class RolloutAnalysis(ApiType):
    """Judge the new revision."""

    templates: Annotated[
        tuple[TemplateRef, ...],
        Field(min_length=1, max_length=8),
        CelRule(
            "self.size() == 1",
            "an analysis takes exactly one template in this release: name the metrics of all in one AnalysisTemplate",
        ),
    ]
    """The AnalysisTemplate to judge by; exactly one in this release."""


class WaitingAnalysis(RolloutAnalysis):
    """Judge the new revision, and wait for the verdict."""

    until_verdict: bool = True
    """Go on as soon as the revision has passed. When false, watch for the whole maxDuration."""
    max_duration: Duration = "30m"
    """How long to wait for a verdict, for example 30m. Then the template's onInconclusive decides."""


class StepAnalysis(WaitingAnalysis):
    """Wait for the verdict of an AnalysisTemplate on the requests that are split by the present weight: a revision
    that is worse than stable is rejected, one that is not goes on."""

    max_duration: Annotated[Duration, duration_rule("analysis.maxDuration", "30m or 1h30m")] = "30m"


class RolloutPause(ApiType):
    """Wait. An empty pause waits for a promotion."""

    duration: Annotated[Duration, duration_rule("pause.duration", "30s, 10m or 1h30m")] | None = None
    """How long, for example 30s, 10m or 1h30m."""


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
    """One step: setWeight, setCanaryScale, setHeaderRoute, setMirrorRoute, analysis or pause."""

    set_weight: Annotated[Int32, Field(ge=0, le=100)] | None = None
    """Percent of new requests for the new revision. The step is done when every ready gateway routes by it."""
    set_canary_scale: SetCanaryScale | None = None
    set_header_route: HeaderRouteStep | None = None
    set_mirror_route: MirrorRouteStep | None = None
    analysis: StepAnalysis | None = None
    pause: RolloutPause | None = None
