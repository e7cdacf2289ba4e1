"""Rollout strategies: canary, blue-green and manual weight, all as one list of steps."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.route_table import HeaderMatch
from slipway_contracts.twin_shadow import ON_FAILURE, PROBE_PATHS, TwinProbes
from slipway_operator.api.v1alpha1 import strategy as api
from slipway_operator.api.v1alpha1.twin_shadow import StepProbes

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
PREVIEW = "preview"  # name of blue-green's header route
MIRROR = "mirror"  # name of a mirror that has none


@dataclass(frozen=True, slots=True)
class SetWeight:
    """Give the canary this share of new requests, in percent."""

    percent: int


@dataclass(frozen=True, slots=True)
class SetScale:
    """Scale the canary to `replicas` pods, or to `percent` of the replicas; both None: as its weight needs."""

    percent: int | None = None
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class SetHeaderRoute:
    """Send requests with all of these headers to the canary, whatever its weight; empty `match` ends the route."""

    name: str
    match: tuple[HeaderMatch, ...] = ()


@dataclass(frozen=True, slots=True)
class SetMirrorRoute:
    """Mirror this percentage of stable's requests to the canary; None ends the route.

    `match`: only of requests with all of these headers.
    """

    name: str
    percentage: int | None = None
    match: tuple[HeaderMatch, ...] = ()


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for `duration_s`; None: until the user promotes."""

    duration_s: int | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """Run an analysis until its verdict, at most `max_duration_s`; without `until_verdict` always that long."""

    template: str
    until_verdict: bool = True
    max_duration_s: int = 1800


@dataclass(frozen=True, slots=True)
class TwinAnalysis(Analysis):
    """An analysis of pairs: copies of this percentage of the sessions go to canary and to a baseline pod at once.

    `percentage` None: as many as make a baseline pod as busy as a pod of stable. This is a type of its own, so that
    the hash of other analysis steps stays the same.
    """

    percentage: int | None = None
    max_pairs_per_second: int = 10
    probes: TwinProbes | None = None
    on_failure: bool = False  # without a baseline pod, stable repeats the requests that canary fails


BAKE_WEIGHT = 90  # weight in percent while a revision that passed bakes, so that stable still gets requests to compare


@dataclass(frozen=True, slots=True)
class Ramp(Analysis):
    """An analysis that chooses the weight: up to `max_weight` percent, for at most `max_harm` extra bad responses.

    After it has passed, the weight is BAKE_WEIGHT for `bake_s`; 0: no bake.
    """

    max_harm: int = 20
    max_weight: int = 50
    bake_s: int = 600

    @property
    def end_weight(self) -> int:
        """Weight of the canary in percent at the end of the step."""
        return BAKE_WEIGHT if self.bake_s else self.max_weight


Step = SetWeight | SetScale | SetHeaderRoute | SetMirrorRoute | Pause | Analysis


@dataclass(frozen=True, slots=True)
class Background:
    """An AnalysisTemplate that may reject the revision at any moment from a step on, counted from 0."""

    template: str
    starting_step: int = 0


class CapacityPolicy(StrEnum):
    """What to do when no node takes the pods of a new revision."""

    PREFER_SURGE = "PreferSurge"  # after `surge_timeout_s` continue without surge: replace existing pods
    REQUIRE_SURGE = "RequireSurge"  # wait for a node
    ALLOW_RECREATE = "AllowRecreate"  # as PreferSurge, but even the only pod may be removed before the new one starts


@dataclass(frozen=True, slots=True)
class Capacity:
    """Pods that a rollout may add, and the policy when no node takes them."""

    policy: CapacityPolicy = CapacityPolicy.PREFER_SURGE
    max_surge: int = 100
    in_percent: bool = True  # whether `max_surge` is a percentage of the replicas
    surge_timeout_s: int = 300
    deadline_s: int = 1800
    hold_s: int = 30

    def surge(self, replicas: int) -> int:
        """Return how many pods above `replicas` all revisions together may have; a percentage is rounded up."""
        return -(-self.max_surge * replicas // 100) if self.in_percent else self.max_surge


@dataclass(frozen=True, slots=True)
class ProgressThreshold:
    """How many of the pods that a step needs must be ready to continue (Argo's replicaProgressThreshold)."""

    value: int = 100
    in_percent: bool = True

    def of(self, needed: int) -> int:
        """Return how many of `needed` pods must be ready; a percentage is rounded up."""
        return -(-self.value * needed // 100) if self.in_percent else min(self.value, needed)


@dataclass(frozen=True, slots=True)
class Strategy:
    """The steps of a rollout. `by_hand`: they come from trafficPercent, which the user may raise and lower."""

    steps: tuple[Step, ...] = ()
    by_hand: bool = False
    blue_green: bool = False
    scale_down_delay_s: int = 30
    abort_scale_down_delay_s: int = 30
    progress_threshold: ProgressThreshold = ProgressThreshold()
    capacity: Capacity = Capacity()
    background: Background | None = None
    baseline_pod: bool = False  # compare with new pods of stable: see planning/sizing/baseline.py
    hold_on_budget: bool = False  # take no step while the error budget is spent

    @property
    def templates(self) -> tuple[str, ...]:
        """Names of the AnalysisTemplates, one for each analysis of the strategy; a name may occur twice."""
        inline = tuple(step.template for step in self.steps if isinstance(step, Analysis))
        return (*inline, *((self.background.template,) if self.background else ()))


def parse_strategy(strategy: Mapping[str, Any]) -> Strategy:
    """Read `spec.strategy`.

    Raises:
        ValueError: when it is invalid.
    """
    return strategy_of(read(api.RolloutStrategy, encoded(strategy), "spec.strategy"))


def strategy_of(written: api.RolloutStrategy) -> Strategy:
    """Return `spec.strategy` in its decided form.

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
        hold_on_budget=bool(canary.hold_on_budget),
        **_common(written),
    )


def _common(written: api.RolloutStrategy) -> dict[str, Any]:
    """Return the fields that canary and blue-green share."""
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
    """Parse a duration like `1h30m`, `10m` or `30s` to seconds.

    Raises:
        ValueError: when the text has another form.
    """
    match = _DURATION.fullmatch(text)
    if not match or not text:
        raise ValueError(f"'{text}' is not a duration like 30s, 10m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def _blue_green_steps(chosen: api.BlueGreen) -> tuple[Step, ...]:
    """Return the steps: preview pods and route, analysis, gate, full size, weight 100, second analysis.

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
    """Return the step as Argo Rollouts reads it: headers alone mirror all such requests, a name alone ends that."""
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
