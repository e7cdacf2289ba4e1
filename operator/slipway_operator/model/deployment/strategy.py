"""Rollout strategies: canary, blue-green and manual weight, all as one list of steps."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slipway_operator.api.reading import encoded, read
from slipway_operator.api.v1alpha1 import strategy as api
from slipway_operator.api.v1alpha1.routes import HeaderMatch
from slipway_operator.api.v1alpha1.twin_shadow import ON_FAILURE, PROBE_PATHS, StepProbes, TwinProbes

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
PREVIEW = "preview"  # name of blue-green's header route
MIRROR = "mirror"  # name of a mirror that has none


@dataclass(frozen=True, slots=True)
class SetWeight:
    """Give the canary this share of new requests, in percent."""

    percent: int


@dataclass(frozen=True, slots=True)
class SetScale:
    """Scale the canary to so many pods, or to this percentage of the replicas; neither: as its weight needs."""

    percent: int | None = None
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class SetHeaderRoute:
    """Send requests with all of these headers to the canary, whatever its weight; without headers: end that."""

    name: str
    match: tuple[HeaderMatch, ...] = ()


@dataclass(frozen=True, slots=True)
class SetMirrorRoute:
    """Send copies of this percentage of stable's requests to the canary; None: end that.

    `match`: only of requests with all of these headers.
    """

    name: str
    percentage: int | None = None
    match: tuple[HeaderMatch, ...] = ()


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for this time; None: wait for a promotion."""

    duration_s: int | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """Wait for the verdict of an AnalysisTemplate: until it exists, at most `max_duration_s`; or always that long."""

    template: str
    until_verdict: bool = True
    max_duration_s: int = 1800


@dataclass(frozen=True, slots=True)
class TwinAnalysis(Analysis):
    """An analysis of pairs: copies of this percentage of the sessions go to canary and to a baseline pod at once.

    `percentage`: None for as many as make a baseline pod as busy as a pod of stable. A type of its own, so that the
    hash of other steps stays the same.
    """

    percentage: int | None = None
    max_pairs_per_second: int = 10
    probes: TwinProbes | None = None
    on_failure: bool = False  # where there is no baseline pod, stable repeats what canary fails


BAKE_WEIGHT = 90  # percent while a revision that has passed bakes: stable is still there to compare with


@dataclass(frozen=True, slots=True)
class Ramp(Analysis):
    """An analysis that chooses the weight: up to `max_weight` percent, for at most `max_harm` extra bad responses.

    Then `bake_s` at BAKE_WEIGHT.
    """

    max_harm: int = 20
    max_weight: int = 50
    bake_s: int = 600

    @property
    def end_weight(self) -> int:
        """Percent at the end of the step."""
        return BAKE_WEIGHT if self.bake_s else self.max_weight


Step = SetWeight | SetScale | SetHeaderRoute | SetMirrorRoute | Pause | Analysis


@dataclass(frozen=True, slots=True)
class Background:
    """An AnalysisTemplate that may reject the revision at any moment from a step on, counted from 0."""

    template: str
    starting_step: int = 0


class CapacityPolicy(StrEnum):
    """What to do when no node takes the pods of a new revision."""

    PREFER_SURGE = "PreferSurge"  # after a while continue within the existing pods
    REQUIRE_SURGE = "RequireSurge"  # wait
    ALLOW_RECREATE = "AllowRecreate"  # as PreferSurge; and the only pod may leave before the new one starts


@dataclass(frozen=True, slots=True)
class Capacity:
    """Pods that a rollout may add, and the policy where no node takes them."""

    policy: CapacityPolicy = CapacityPolicy.PREFER_SURGE
    max_surge: int = 100
    in_percent: bool = True  # of `max_surge`
    surge_timeout_s: int = 300
    deadline_s: int = 1800
    hold_s: int = 30

    def surge(self, replicas: int) -> int:
        """Pods above `replicas` that all revisions together may have."""
        return -(-self.max_surge * replicas // 100) if self.in_percent else self.max_surge


@dataclass(frozen=True, slots=True)
class ProgressThreshold:
    """Ready pods that are enough to continue, of those that a step needs (Argo's replicaProgressThreshold)."""

    value: int = 100
    in_percent: bool = True

    def of(self, needed: int) -> int:
        """The threshold of `needed` pods."""
        return -(-self.value * needed // 100) if self.in_percent else min(self.value, needed)


@dataclass(frozen=True, slots=True)
class Strategy:
    """The steps of a rollout. `by_hand`: they come from trafficPercent, which may rise and fall."""

    steps: tuple[Step, ...] = ()
    by_hand: bool = False
    blue_green: bool = False
    scale_down_delay_s: int = 30
    abort_scale_down_delay_s: int = 30
    progress_threshold: ProgressThreshold = ProgressThreshold()
    capacity: Capacity = Capacity()
    background: Background | None = None
    baseline_pod: bool = False  # compare with fresh pods of stable, see planning/sizing/baseline.py

    @property
    def templates(self) -> tuple[str, ...]:
        """Names of the AnalysisTemplates that its analyses use, one for each analysis."""
        inline = tuple(step.template for step in self.steps if isinstance(step, Analysis))
        return (*inline, *((self.background.template,) if self.background else ()))


def parse_strategy(strategy: Mapping[str, Any]) -> Strategy:
    """Read `spec.strategy`.

    Raises:
        ValueError: when it is invalid.
    """
    return strategy_of(read(api.RolloutStrategy, encoded(strategy), "spec.strategy"))


def strategy_of(written: api.RolloutStrategy) -> Strategy:
    """`spec.strategy` in its decided form.

    Raises:
        ValueError: when it is invalid.
    """
    if written.canary and written.blue_green:
        raise ValueError("spec.strategy takes canary or blueGreen, not both")
    if written.blue_green:
        steps = _blue_green_steps(written.blue_green)
        twins = any(isinstance(step, TwinAnalysis) for step in steps)
        return Strategy(steps=steps, blue_green=True, baseline_pod=twins, **_common(written))
    canary = written.canary or api.Canary()
    percent = canary.traffic_percent
    return Strategy(
        steps=tuple(map(_step, canary.steps)) if percent is None else _by_hand_steps(percent),
        by_hand=percent is not None,
        background=_background(canary.analysis),
        baseline_pod=bool(canary.baseline_pod),
        **_common(written),
    )


def _common(written: api.RolloutStrategy) -> dict[str, Any]:
    """The fields that both strategies share."""
    chosen = written.blue_green or written.canary or api.Canary()
    threshold = chosen.replica_progress_threshold
    return {
        "scale_down_delay_s": chosen.scale_down_delay_seconds,
        "abort_scale_down_delay_s": chosen.abort_scale_down_delay_seconds,
        "progress_threshold": ProgressThreshold(threshold.value, threshold.type == "Percent")
        if threshold
        else ProgressThreshold(),
        "capacity": _capacity(written.capacity or api.RolloutCapacity()),
    }


def parse_duration_s(text: str) -> int:
    """Seconds of `1h30m`, `10m` or `30s`.

    Raises:
        ValueError: when it is written in another way.
    """
    match = _DURATION.fullmatch(text)
    if not match or not text:
        raise ValueError(f"'{text}' is not a duration like 30s, 10m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def _blue_green_steps(chosen: api.BlueGreen) -> tuple[Step, ...]:
    """Preview pods and their route, their analysis, the gate, full size, all requests, a second analysis.

    Stable keeps its pods until the last analysis has passed, so that a rollback only switches the weight.
    """
    full, preview = SetScale(percent=100), chosen.preview_replica_count
    first = full if preview is None else SetScale(replicas=preview)
    route = (SetHeaderRoute(PREVIEW, _matches(chosen.preview_route.match)),) if chosen.preview_route else ()
    resized = () if preview is None else (full,)
    before = (_step_analysis(chosen.pre_promotion_analysis),) if chosen.pre_promotion_analysis else ()
    after = (_analysis(chosen.post_promotion_analysis),) if chosen.post_promotion_analysis else ()
    return (first, *route, *before, *_blue_green_gate(chosen), *resized, SetWeight(100), *after)


def _blue_green_gate(chosen: api.BlueGreen) -> tuple[Step, ...]:
    if not chosen.auto_promotion_enabled:
        return (Pause(),)
    return (Pause(chosen.auto_promotion_seconds),) if chosen.auto_promotion_seconds else ()


def _by_hand_steps(percent: int) -> tuple[Step, ...]:
    return (SetWeight(100),) if percent == 100 else (SetWeight(percent), Pause())


def _step(step: api.CanaryStep) -> Step:
    if step.set_weight is not None:
        return SetWeight(step.set_weight)
    if scale := step.set_canary_scale:
        return SetScale(percent=scale.weight) if scale.replicas is None else SetScale(replicas=scale.replicas)
    if step.set_header_route:
        return SetHeaderRoute(step.set_header_route.name, _matches(step.set_header_route.match))
    if step.set_mirror_route:
        return _mirror(step.set_mirror_route)
    if step.analysis:
        return _step_analysis(step.analysis)
    if step.ramp:
        return _ramp(step.ramp)
    if step.pause:
        return Pause(None if step.pause.duration is None else parse_duration_s(step.pause.duration))
    raise ValueError("spec.strategy.canary.steps: a step is empty; write setWeight, pause or another one")


def _analysis(analysis: api.WaitingAnalysis) -> Analysis:
    return Analysis(_only_template(analysis), analysis.until_verdict, parse_duration_s(analysis.max_duration))


def _step_analysis(written: api.StepAnalysis | api.PrePromotionAnalysis) -> Analysis:
    found, shadow = _analysis(written), written.twin_shadow
    if shadow is None:
        return found
    duration_s, rate = found.max_duration_s, shadow.max_pairs_per_second
    probes = _probes(shadow.probes) if shadow.probes else None
    return TwinAnalysis(
        found.template, found.until_verdict, duration_s, shadow.percentage, rate, probes, shadow.reference == ON_FAILURE
    )


def _probes(written: StepProbes) -> TwinProbes:
    path = PROBE_PATHS[written.api]
    return TwinProbes(path, written.prompts, written.pairs_per_minute, written.max_pairs, written.max_tokens)


def _ramp(written: api.StepRamp) -> Ramp:
    auto, duration_s = written.auto, parse_duration_s(written.max_duration)
    bake_s = parse_duration_s(auto.bake)
    return Ramp(_only_template(written), True, duration_s, auto.max_harm, auto.max_weight, bake_s)


def _background(analysis: api.BackgroundAnalysis | None) -> Background | None:
    return Background(_only_template(analysis), analysis.starting_step) if analysis else None


def _only_template(analysis: api.RolloutAnalysis) -> str:
    count = len(analysis.templates)
    if count != 1:
        raise ValueError(f"an analysis takes one template, not {count}: name the metrics of all in one")
    return analysis.templates[0].template_name


def _mirror(route: api.MirrorRouteStep) -> SetMirrorRoute:
    """Argo Rollouts' step: headers without a percentage mirror all requests; a name alone ends the mirror."""
    percentage = 100 if route.percentage is None and route.match else route.percentage
    return SetMirrorRoute(route.name or MIRROR, percentage, _matches(route.match))


def _matches(match: Iterable[api.HeaderRoutingMatch]) -> tuple[HeaderMatch, ...]:
    return tuple(HeaderMatch(one.header_name.lower(), one.header_value.exact, one.header_value.prefix) for one in match)


def _capacity(capacity: api.RolloutCapacity) -> Capacity:
    surge = capacity.max_surge
    return Capacity(
        policy=CapacityPolicy(capacity.policy),
        max_surge=int(str(surge).removesuffix("%")),
        in_percent=isinstance(surge, str),
        surge_timeout_s=capacity.surge_timeout_seconds,
        deadline_s=capacity.deadline_seconds,
        hold_s=capacity.hold_seconds,
    )
