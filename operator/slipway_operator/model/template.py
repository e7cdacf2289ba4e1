"""AnalysisTemplates: from what a user wrote to an AnalysisSpec, and the one that needs no object."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slipway_operator.model import wire
from slipway_operator.model.analysis import AnalysisSpec, Kind, MetricSpec, MinSamples, OnInconclusive, Veto
from slipway_operator.model.measure_words import check_arguments, parse_arguments, parse_measure

Json = Mapping[str, Any]

# Events that a gateway counts on first attempts, by the name that it counts them under.
BAD_EVENTS = {
    "FirstAttemptError": "errors",
    "EmptyAnswer": "empty",
    "TruncatedAnswer": "truncated",
    "RepetitiveAnswer": "repetition",
    "NonFiniteLogits": "non_finite",
    "InvalidJSON": "invalid_json",
    "HungAnswer": "hung",
}
# What is compared of mirrored requests, by the name that gateways count it under: kind PairedDrift.
DRIFT_EVENTS = {"AnswerDiffers": "text", "TokensFlip": "tokens"}
# What a run remembers is of this kind: another number begins every run anew, as another template does.
COUNTED = 3
_SLOWER = re.compile(r"Slower\((ttft|itl|e2e), *stable\.p([1-9][0-9]?)\)")
POD_CRASH_LOOP, CANARY_CUT_OFF, CANARY_UNAVAILABLE = "PodCrashLoop", "CanaryCutOff", "CanaryUnavailable"
# What each veto counts, for people.
UNITS = {
    POD_CRASH_LOOP: "restarts",
    CANARY_CUT_OFF: "gateways that send it nothing more",
    CANARY_UNAVAILABLE: "minutes without a ready pod",
}
VETOES = tuple(UNITS)


@dataclass(frozen=True, slots=True)
class Slower:
    """That a latency of this kind is above a quantile of stable's."""

    kind: str  # ttft | itl | e2e
    quantile: float


@dataclass(frozen=True)
class Template:
    """A template as it was found: what it asks for, or why it cannot be used."""

    spec: AnalysisSpec | None = None
    problem: str = ""

    @cached_property
    def hash(self) -> str:
        """Identity of what it says, and of what the counts mean; an analysis asks for it in every reconcile."""
        return hashlib.sha256(json.dumps([COUNTED, wire.to_json(self.spec)], sort_keys=True).encode()).hexdigest()[:10]


def slower(event: str) -> Slower | None:
    """The latency that an event is about; None for an event that is counted as such."""
    match = _SLOWER.fullmatch(event)
    return Slower(match[1], int(match[2]) / 100) if match else None


def parse(name: str, spec: Json) -> Template:
    """Read the spec of an AnalysisTemplate; one that makes no sense becomes its problem, never an exception."""
    try:
        return Template(_analysis(spec))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = str(error) if isinstance(error, ValueError) else f"it cannot be read: {type(error).__name__}: {error}"
        return Template(problem=f"AnalysisTemplate {name!r}: {why}")


def _analysis(spec: Json) -> AnalysisSpec:
    least, defaults = spec.get("minSamples") or {}, MinSamples()
    measured = tuple(parse_measure(item) for item in spec["metrics"] if _is_measured(item))
    arguments = parse_arguments(spec.get("args") or ())
    check_arguments(measured, arguments)
    return AnalysisSpec(
        metrics=tuple(_metric(item) for item in spec["metrics"] if not _is_measured(item)),
        false_rollback_rate=float(spec.get("falseRollbackRate", 0.01)),
        false_promote_rate=float(spec.get("falsePromoteRate", 0.05)),
        on_inconclusive=OnInconclusive(spec.get("onInconclusive", OnInconclusive.PAUSE)),
        min_samples=MinSamples(
            int(least.get("canaryRequests", defaults.canary_requests)),
            int(least.get("warmupSeconds", defaults.warmup_seconds)),
        ),
        vetoes=tuple(_veto(item) for item in spec.get("vetoes") or ()),
        stale_seconds=int(spec.get("staleSeconds", 60)),
        max_load_difference=float(spec.get("maxLoadDifference", 0.25)),
        measured=measured,
        arguments=arguments,
    )


def _is_measured(item: Json) -> bool:
    """Whether a metric asks a provider.

    Raises:
        ValueError: when its kind says otherwise, or it counts an event too.
    """
    measured, kind = "provider" in item, item.get("kind")
    if measured and "event" in item:
        raise ValueError(f"metric {item['name']!r}: it has an event and a provider; remove one of them")
    if kind is not None and (kind == "Threshold") != measured:
        raise ValueError(f"metric {item['name']!r}: kind Threshold goes with a provider, any other with an event")
    return measured


def _metric(item: Json) -> MetricSpec:
    event = item.get("event", "")
    kind = _kind(item, event)
    if kind is Kind.BAD_EVENT and event not in BAD_EVENTS and slower(event) is None:
        known = ", ".join(BAD_EVENTS)
        raise ValueError(
            f"metric {item['name']!r}: event {event!r} is none of {known} and Slower(ttft|itl|e2e, stable.pNN)"
        )
    return MetricSpec(
        name=item["name"],
        event=event,
        kind=kind,
        share=float(item.get("share", 0.0)),
        tolerate_ratio=float(item.get("tolerateRatio", 1.0)),
        max_ratio=float(item.get("maxRatio", 2.0)),
        ok_below=float(item["okBelow"]) if "okBelow" in item else None,
        latency=slower(event) is not None,
        dry_run=bool(item.get("dryRun", False)),
    )


def _kind(item: Json, event: str) -> Kind:
    """How a metric without a provider decides: known from its event, and as written where kind is written."""
    kind, drifts, known = item.get("kind"), event in DRIFT_EVENTS, ", ".join(DRIFT_EVENTS)
    if kind not in (None, *Kind):
        raise ValueError(f"metric {item['name']!r}: kind {kind} is not available; write {', '.join(Kind)} or Threshold")
    if kind is not None and (kind == Kind.PAIRED_DRIFT) != drifts:
        raise ValueError(f"metric {item['name']!r}: {known} go with kind {Kind.PAIRED_DRIFT}, and no other event does")
    return Kind.PAIRED_DRIFT if drifts else Kind.BAD_EVENT


def _veto(item: Json) -> Veto:
    if item["name"] not in VETOES:
        raise ValueError(f"veto {item['name']!r} is not available; write one of {', '.join(VETOES)}")
    return Veto(item["name"], float(item.get("limit", 1)))


# What LLM servers are judged by when nobody says otherwise. How long an answer takes depends on how long it is, so e2e
# is shown and decides nothing.
LLM_DEFAULT: Json = {
    "metrics": [
        {"name": "errors", "event": "FirstAttemptError", "share": 0.3, "okBelow": 0.005},
        {"name": "ttft", "event": "Slower(ttft, stable.p95)", "share": 0.15, "tolerateRatio": 1.25, "maxRatio": 2.0},
        {"name": "itl", "event": "Slower(itl, stable.p95)", "share": 0.15, "tolerateRatio": 1.25, "maxRatio": 2.0},
        {"name": "e2e", "event": "Slower(e2e, stable.p95)", "tolerateRatio": 1.25, "maxRatio": 2.0, "dryRun": True},
        {"name": "empty", "event": "EmptyAnswer", "share": 0.1, "okBelow": 0.005},
        {"name": "truncated", "event": "TruncatedAnswer", "share": 0.1, "tolerateRatio": 1.25, "okBelow": 0.01},
        {"name": "repetition", "event": "RepetitiveAnswer", "share": 0.05, "tolerateRatio": 1.25, "okBelow": 0.01},
        {"name": "non-finite", "event": "NonFiniteLogits", "share": 0.05, "okBelow": 0.005},
        {"name": "invalid-json", "event": "InvalidJSON", "share": 0.1, "tolerateRatio": 1.25, "okBelow": 0.01},
    ],
    "vetoes": [
        {"name": POD_CRASH_LOOP, "limit": 3},
        {"name": CANARY_CUT_OFF, "limit": 1},
        {"name": CANARY_UNAVAILABLE, "limit": 5},
    ],
}
# For mirrored requests at any weight, 0 too. Not each one can be scored: TokensFlip is shown and decides nothing.
SHADOW_DRIFT: Json = {
    "minSamples": {"canaryRequests": 100, "warmupSeconds": 0},
    "metrics": [
        {"name": "drift", "kind": "PairedDrift", "event": "AnswerDiffers", "share": 1.0, "okBelow": 0.05},
        {"name": "flips", "kind": "PairedDrift", "event": "TokensFlip", "dryRun": True},
    ],
    "vetoes": [{"name": POD_CRASH_LOOP, "limit": 3}, {"name": CANARY_CUT_OFF, "limit": 1}],
}
_BUILT_IN = {"llm-default": LLM_DEFAULT, "llm-shadow-drift": SHADOW_DRIFT}
BUILT_IN: Mapping[str, Template] = {name: parse(name, spec) for name, spec in _BUILT_IN.items()}


def found(name: str, spec: Json | None) -> Template:
    """The template of this name: `spec` of the object, else the built-in one, else the problem."""
    if spec is not None:
        return parse(name, spec)
    missing = f"AnalysisTemplate {name!r} does not exist in this namespace: create it, or write llm-default"
    return BUILT_IN.get(name) or Template(problem=missing)
