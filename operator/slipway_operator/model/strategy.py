"""How a new revision goes out: canary, blue-green and steering by hand, all as one list of steps."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Json = Mapping[str, Any]

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
MAX_DURATION_S = 1800  # of an analysis that does not say
PREVIEW = "preview"  # name of blue-green's header route
MIRROR = "mirror"  # name of a mirror that has none


@dataclass(frozen=True, slots=True)
class SetWeight:
    """Give the canary this share of new requests, in percent."""

    percent: int


@dataclass(frozen=True, slots=True)
class SetScale:
    """Bring the canary to so many pods, or to this share of the replicas, in percent; neither: as its weight needs."""

    percent: int | None = None
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class HeaderMatch:
    """A request header and the value it has (`exact`) or begins with (`prefix`)."""

    name: str
    exact: str | None = None
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class SetHeaderRoute:
    """Send requests with all of these headers to the canary, whatever its weight; without any: no more."""

    name: str
    match: tuple[HeaderMatch, ...] = ()


@dataclass(frozen=True, slots=True)
class SetMirrorRoute:
    """Send copies of this share of stable's requests, in percent, to the canary; None: no more.

    `match`: only of requests with all of these headers.
    """

    name: str
    percentage: int | None = None
    match: tuple[HeaderMatch, ...] = ()


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait; None waits for a promotion."""

    duration_s: int | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """Wait for the verdict of an AnalysisTemplate: until it is there, or for the whole time; no longer than that."""

    template: str
    until_verdict: bool = True
    max_duration_s: int = MAX_DURATION_S


Step = SetWeight | SetScale | SetHeaderRoute | SetMirrorRoute | Pause | Analysis


@dataclass(frozen=True, slots=True)
class Background:
    """An AnalysisTemplate that may reject the revision at any moment from a step on, counted from 0."""

    template: str
    starting_step: int = 0


class Policy(StrEnum):
    """What to do when no node takes the pods of a new revision."""

    PREFER_SURGE = "PreferSurge"  # after a while go on within the pods there are
    REQUIRE_SURGE = "RequireSurge"  # wait
    ALLOW_RECREATE = "AllowRecreate"  # as PreferSurge; and the only pod may leave before the new one comes


@dataclass(frozen=True, slots=True)
class Capacity:
    """Pods that a rollout may add, and what happens when there are none to add."""

    policy: Policy = Policy.PREFER_SURGE
    max_surge: int = 100
    in_percent: bool = True  # of `max_surge`
    surge_timeout_s: int = 300
    deadline_s: int = 1800
    hold_s: int = 30

    def surge(self, replicas: int) -> int:
        """Pods above `replicas` that all revisions together may have."""
        return -(-self.max_surge * replicas // 100) if self.in_percent else self.max_surge


@dataclass(frozen=True, slots=True)
class Threshold:
    """Ready pods that are enough to go on, of those that a step needs (Argo's replicaProgressThreshold)."""

    value: int = 100
    in_percent: bool = True

    def of(self, needed: int) -> int:
        """So many of `needed` pods."""
        return -(-self.value * needed // 100) if self.in_percent else min(self.value, needed)


@dataclass(frozen=True, slots=True)
class Strategy:
    """The steps of a rollout. `by_hand`: they come from trafficPercent, which moves both ways."""

    steps: tuple[Step, ...] = ()
    by_hand: bool = False
    blue_green: bool = False
    scale_down_delay_s: int = 30
    abort_scale_down_delay_s: int = 30
    progress_threshold: Threshold = Threshold()
    capacity: Capacity = Capacity()
    background: Background | None = None
    baseline_pod: bool = False  # compare with fresh pods of stable, see planning/baseline.py

    @property
    def templates(self) -> tuple[str, ...]:
        """Names of the AnalysisTemplates that its analyses use, one for each analysis."""
        inline = tuple(step.template for step in self.steps if isinstance(step, Analysis))
        return (*inline, *((self.background.template,) if self.background else ()))


def parse_strategy(strategy: Json) -> Strategy:
    """Read `spec.strategy`.

    Raises:
        ValueError, KeyError, TypeError: when it makes no sense.
    """
    if "canary" in strategy and "blueGreen" in strategy:
        raise ValueError("strategy takes canary or blueGreen, not both")
    chosen = strategy.get("blueGreen") or strategy.get("canary") or {}
    common: dict[str, Any] = {
        "scale_down_delay_s": int(chosen.get("scaleDownDelaySeconds", 30)),
        "abort_scale_down_delay_s": int(chosen.get("abortScaleDownDelaySeconds", 30)),
        "progress_threshold": _threshold(chosen.get("replicaProgressThreshold") or {}),
        "capacity": _capacity(strategy.get("capacity") or {}),
    }
    if "blueGreen" in strategy:
        return Strategy(steps=_blue_green_steps(chosen), blue_green=True, **common)
    common["background"] = _background(chosen.get("analysis"))
    common["baseline_pod"] = bool(chosen.get("baselinePod", False))
    if "trafficPercent" in chosen:
        return Strategy(steps=_by_hand_steps(int(chosen["trafficPercent"])), by_hand=True, **common)
    return Strategy(steps=tuple(_step(step) for step in chosen.get("steps") or ()), **common)


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


def _blue_green_steps(chosen: Json) -> tuple[Step, ...]:
    """Preview pods and their route, an analysis of them, the gate, full size, all requests, an analysis of those.

    Stable keeps its pods until the last one has passed, so that the way back is a switch.
    """
    full, preview = SetScale(percent=100), chosen.get("previewReplicaCount")
    first = SetScale(replicas=int(preview)) if preview is not None else full
    route = (SetHeaderRoute(PREVIEW, _matches(chosen["previewRoute"])),) if "previewRoute" in chosen else ()
    resized = (full,) if preview is not None else ()
    before, after = (
        (_analysis(chosen[field]),) if field in chosen else ()
        for field in ("prePromotionAnalysis", "postPromotionAnalysis")
    )
    return (first, *route, *before, *_blue_green_gate(chosen), *resized, SetWeight(100), *after)


def _blue_green_gate(chosen: Json) -> tuple[Step, ...]:
    if not chosen.get("autoPromotionEnabled", True):
        return (Pause(),)
    delay_s = int(chosen.get("autoPromotionSeconds", 0))
    return (Pause(delay_s),) if delay_s else ()


def _by_hand_steps(percent: int) -> tuple[Step, ...]:
    return (SetWeight(100),) if percent == 100 else (SetWeight(percent), Pause())


def _step(step: Json) -> Step:
    if "setWeight" in step:
        return SetWeight(int(step["setWeight"]))
    if "setCanaryScale" in step:
        return _scale(step["setCanaryScale"])
    if "setHeaderRoute" in step:
        return SetHeaderRoute(step["setHeaderRoute"]["name"], _matches(step["setHeaderRoute"]))
    if "setMirrorRoute" in step:
        return _mirror(step["setMirrorRoute"])
    if "analysis" in step:
        return _analysis(step["analysis"])
    duration = (step["pause"] or {}).get("duration")
    return Pause(None if duration is None else parse_duration_s(duration))


def _analysis(analysis: Json) -> Analysis:
    longest = analysis.get("maxDuration")
    return Analysis(
        _only_template(analysis),
        until_verdict=bool(analysis.get("untilVerdict", True)),
        max_duration_s=MAX_DURATION_S if longest is None else parse_duration_s(longest),
    )


def _background(analysis: Json | None) -> Background | None:
    return Background(_only_template(analysis), int(analysis.get("startingStep", 0))) if analysis else None


def _only_template(analysis: Json) -> str:
    templates = analysis["templates"]
    if len(templates) != 1:
        raise ValueError(f"an analysis takes one template, not {len(templates)}: name the metrics of all in one")
    return str(templates[0]["templateName"])


def _scale(scale: Json) -> SetScale:
    if "replicas" in scale:
        return SetScale(replicas=int(scale["replicas"]))
    return SetScale(percent=int(scale["weight"])) if "weight" in scale else SetScale()


def _mirror(route: Json) -> SetMirrorRoute:
    """Argo Rollouts' step: all requests where only headers are named, and an end where only the name is."""
    match = _matches(route)
    percentage = route.get("percentage", 100 if match else None)
    return SetMirrorRoute(route.get("name", MIRROR), None if percentage is None else int(percentage), match)


def _matches(route: Json) -> tuple[HeaderMatch, ...]:
    return tuple(
        HeaderMatch(item["headerName"].lower(), item["headerValue"].get("exact"), item["headerValue"].get("prefix"))
        for item in route.get("match") or ()
    )


def _threshold(threshold: Json) -> Threshold:
    return Threshold(int(threshold.get("value", 100)), threshold.get("type", "Percent") == "Percent")


def _capacity(capacity: Json) -> Capacity:
    surge = capacity.get("maxSurge", "100%")
    defaults = Capacity()
    return Capacity(
        policy=Policy(capacity.get("policy", defaults.policy)),
        max_surge=int(str(surge).removesuffix("%")),
        in_percent=isinstance(surge, str),
        surge_timeout_s=int(capacity.get("surgeTimeoutSeconds", defaults.surge_timeout_s)),
        deadline_s=int(capacity.get("deadlineSeconds", defaults.deadline_s)),
        hold_s=int(capacity.get("holdSeconds", defaults.hold_s)),
    )
