"""AnalysisTemplates: parsing a user's template to an AnalysisSpec, and the built-in templates."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.api.writing import to_json
from slipway_contracts.twin_shadow import PredictionTolerance, TwinScorer
from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.analysis_template import AnalysisTemplateSpec, TemplateMetric
from slipway_operator.api.v1alpha1.provider import TemplateTolerance, TemplateVeto
from slipway_operator.model.analysis.measure_parser import argument, check_arguments, measure
from slipway_operator.model.analysis.spec import (
    COST_INCREASE,
    PREDICTION_DISAGREEMENT,
    PREDICTION_DRIFT,
    QUALITY_EVENTS,
    TOKENS_FLIP,
    WRONG_ANSWER,
    AnalysisSpec,
    Kind,
    MetricSpec,
    MinSamples,
    OnInconclusive,
    Veto,
)

# Events that a gateway counts on first attempts, with the names of its counters.
BAD_EVENTS = {
    "FirstAttemptError": "errors",
    "EmptyAnswer": "empty",
    "TruncatedAnswer": "truncated",
    "RepetitiveAnswer": "repetition",
    "NonFiniteLogits": "non_finite",
    "InvalidJSON": "invalid_json",
    "HungAnswer": "hung",
    "BlockedAnswer": "blocked",
    "RedactedAnswer": "redacted",
    "BadResponse": "bad",
    "FellBack": "fell_back",
}
FELL_BACK = "FellBack"  # clients' requests that went to a fallback, whatever the reason: pairs have none
# The event that includes others, and the included events.
COMPOSITE = "BadResponse"
INCLUDED = frozenset(BAD_EVENTS) - {COMPOSITE, "TruncatedAnswer", "RedactedAnswer", FELL_BACK}
# Events of comparisons of mirrored requests (kind PairedDrift), with the names of gateways' counters.
LOWER_SCORE = "LowerScore"  # an event of pairs only: the scorer rates canary's response lower
_ABSOLUTE_TOLERANCE = 0.000001  # no default of the schema: YAML 1.1 reads the 1e-06 that Go writes of it as a text
DRIFT_EVENTS = {"AnswerDiffers": "text", TOKENS_FLIP: "tokens"}
# Version of what the counters of an analysis run mean: a new number restarts every run, as a changed template does.
COUNTED = 5
KEPT = 256  # parsed templates
_SLOWER = re.compile(r"Slower\((ttft|itl|e2e), *stable\.p([1-9][0-9]?)\)")
POD_CRASH_LOOP, CANARY_CUT_OFF, CANARY_UNAVAILABLE = "PodCrashLoop", "CanaryCutOff", "CanaryUnavailable"
# The unit of each veto, for messages.
UNITS = {
    POD_CRASH_LOOP: "restarts",
    CANARY_CUT_OFF: "gateways that send it nothing more",
    CANARY_UNAVAILABLE: "minutes without a ready pod",
}
VETOES = tuple(UNITS)


@dataclass(frozen=True, slots=True)
class Slower:
    """The event that a latency is above a quantile of stable's latencies."""

    kind: str  # ttft | itl | e2e
    quantile: float


@dataclass(frozen=True)
class Template:
    """An AnalysisTemplate as it was read: its spec, or else the problem why it cannot be used."""

    spec: AnalysisSpec | None = None
    problem: str = ""
    whole: str = ""  # hash of the whole template, if this is a part of it

    @cached_property
    def hash(self) -> str:
        """Digest of the spec and of COUNTED; when it changes, a running analysis starts again."""
        return (
            self.whole
            or hashlib.sha256(json.dumps([COUNTED, to_json(self.spec)], sort_keys=True).encode()).hexdigest()[:10]
        )


def slower(event: str) -> Slower | None:
    """The latency that an event `Slower(...)` compares; None for any other event."""
    match = _SLOWER.fullmatch(event)
    return Slower(match[1], int(match[2]) / 100) if match else None


def parse(name: str, spec: Json) -> Template:
    """Parse the spec of an AnalysisTemplate; an invalid one gives a problem, never an exception."""
    try:
        return Template(_parsed(encoded(spec)))
    except ValueError as error:
        return Template(problem=f"AnalysisTemplate {name!r}: {error}")


@lru_cache(KEPT)
def _parsed(written: bytes) -> AnalysisSpec:
    """The parsed spec, cached by content: in each reconcile many analyses use the same few templates."""
    return _analysis(read(AnalysisTemplateSpec, written, "spec"))


def _analysis(spec: AnalysisTemplateSpec) -> AnalysisSpec:
    measured = tuple(measure(metric, metric.provider) for metric in spec.metrics if metric.provider)
    arguments = tuple(map(argument, spec.args))
    for metric in spec.metrics:
        _check_kind(metric)
    check_arguments(measured, arguments)
    _check_pairs([metric for metric in spec.metrics if metric.kind == Kind.PAIRED_EVENT])
    for event, paired in ((PREDICTION_DRIFT, False), (PREDICTION_DISAGREEMENT, False), (PREDICTION_DISAGREEMENT, True)):
        if sum(one.event == event and (one.kind == Kind.PAIRED_EVENT) == paired for one in spec.metrics) > 1:
            raise ValueError(f"two metrics have the event {event}; one compares all predictions: remove one")
    _check_costs(spec.metrics)
    return AnalysisSpec(
        metrics=tuple(_metric(metric) for metric in spec.metrics if not metric.provider),
        false_rollback_rate=spec.false_rollback_rate,
        false_promote_rate=spec.false_promote_rate,
        on_inconclusive=OnInconclusive(spec.on_inconclusive),
        promote_if_extra=spec.promote_if.max_extra if spec.promote_if else None,
        min_samples=MinSamples(
            spec.min_samples.canary_requests,
            spec.min_samples.warmup_seconds,
            spec.min_samples.pairs,
            spec.min_samples.min_seconds,
        ),
        vetoes=tuple(map(_veto, spec.vetoes)),
        stale_seconds=spec.stale_seconds,
        max_load_difference=spec.max_load_difference,
        measured=measured,
        arguments=arguments,
    )


def _check_kind(metric: TemplateMetric) -> None:
    if metric.provider and metric.event is not None:
        raise ValueError(f"metric {metric.name!r}: it has an event and a provider; remove one of them")
    if metric.kind is not None and (metric.kind == "Threshold") != bool(metric.provider):
        raise ValueError(f"metric {metric.name!r}: kind Threshold goes with a provider, any other with an event")


def _check_pairs(metrics: Sequence[TemplateMetric]) -> None:
    """Check metrics of pairs: gateways compare each latency of a pair once, by a slowdown in whole percents."""
    deciding = [metric for metric in metrics if not metric.dry_run]
    covers = any(metric.event == COMPOSITE and metric.max_extra is not None for metric in deciding)
    measures: set[str] = set()
    for metric in metrics:
        who, latency = f"metric {metric.name!r}:", slower(metric.event or "")
        if metric.event == LOWER_SCORE:
            _check_scorer(metric, metrics)
        if latency is None:
            passes = (covers and metric.event in INCLUDED) or metric.event == PREDICTION_DISAGREEMENT
            passes = passes or metric.max_disagreement is not None
            if metric.max_extra is None and not metric.dry_run and not passes:
                raise ValueError(f"{who} of kind {Kind.PAIRED_EVENT} it could never pass; give it maxExtra")
            continue
        if metric.max_slowdown is None:
            raise ValueError(f"{who} of kind {Kind.PAIRED_EVENT} it needs maxSlowdown, for example 0.15")
        if abs(100 * metric.max_slowdown - round(100 * metric.max_slowdown)) > 1e-9:
            raise ValueError(f"{who} maxSlowdown of pairs is in whole percents; write for example 0.15")
        if latency.kind in measures:
            raise ValueError(f"{who} another metric of kind {Kind.PAIRED_EVENT} compares {latency.kind}; remove one")
        measures.add(latency.kind)


def _check_scorer(metric: TemplateMetric, metrics: Sequence[TemplateMetric]) -> None:
    """Check a metric with a scorer: gateways send a pair to one scorer, and its margin is in thousandths."""
    who = f"metric {metric.name!r}:"
    if metric.scorer is None:
        raise ValueError(f"{who} event {LOWER_SCORE} needs scorer, with the URL that rates pairs")
    if abs(1000 * metric.scorer.margin - round(1000 * metric.scorer.margin)) > 1e-9:
        raise ValueError(f"{who} scorer.margin is in thousandths; write for example 0.05")
    if sum(one.event == LOWER_SCORE for one in metrics) > 1:
        raise ValueError(f"{who} another metric has a scorer too; a pair is given to one: remove one of them")


def _scorer(metric: TemplateMetric) -> TwinScorer | None:
    found = metric.scorer
    if found is None:
        return None
    return TwinScorer(found.url, found.percentage, round(1000 * found.margin), found.timeout_seconds)


def _tolerance(metric: TemplateMetric) -> PredictionTolerance | None:
    """Return the tolerance in the whole millionths and billionths of gateways; None for any other event."""
    if metric.event != PREDICTION_DISAGREEMENT:
        return None
    found = metric.tolerance or TemplateTolerance()
    absolute = _ABSOLUTE_TOLERANCE if found.absolute is None else found.absolute
    millionths, billionths = 1e6 * found.relative, 1e9 * absolute
    if abs(millionths - round(millionths)) > 1e-6 or abs(billionths - round(billionths)) > 1e-3:
        raise ValueError(
            f"metric {metric.name!r}: tolerance.relative is in steps of 0.000001 and tolerance.absolute in steps of "
            "0.000000001; write for example relative: 0.001"
        )
    return PredictionTolerance(round(millionths), round(billionths))


def _check_predictions(metric: TemplateMetric, kind: Kind) -> None:
    """Check the fields that only metrics of predictions may have, and that these must have."""
    who = f"metric {metric.name!r}:"
    of_pairs = kind is Kind.PAIRED_EVENT and metric.event == TOKENS_FLIP
    if metric.event in (WRONG_ANSWER, PREDICTION_DRIFT) and kind is not Kind.BAD_EVENT:
        raise ValueError(f"{who} {metric.event} counts split requests; leave kind out")
    for event, name, limit in (
        (PREDICTION_DRIFT, "maxPsi", metric.max_psi),
        (PREDICTION_DISAGREEMENT, "maxDisagreement", None if of_pairs else metric.max_disagreement),
    ):
        its_own = metric.event == event
        if (limit is not None and not its_own) or (its_own and limit is None and not metric.dry_run):
            raise ValueError(f"{who} {name} goes with {event}, which has dryRun: true without")
    if metric.tolerance is not None and metric.event != PREDICTION_DISAGREEMENT:
        raise ValueError(f"{who} tolerance goes with {PREDICTION_DISAGREEMENT}; remove it")


def _check_costs(metrics: Sequence[TemplateMetric]) -> None:
    """Check that one metric at most compares costs, beside another one that counts requests of both sides."""
    costs = [metric for metric in metrics if metric.event == COST_INCREASE]
    if len(costs) > 1:
        raise ValueError(f"two metrics have the event {COST_INCREASE}; one compares the cost: remove one")
    split = (one for one in metrics if one.event and one not in costs and one.kind != Kind.PAIRED_EVENT)
    if costs and not any(split):
        raise ValueError(f"metric {costs[0].name!r}: {COST_INCREASE} needs another metric beside it: add BadResponse")


def _check_cost(metric: TemplateMetric, kind: Kind) -> None:
    who, its_own = f"metric {metric.name!r}:", metric.event == COST_INCREASE
    if its_own and kind is not Kind.BAD_EVENT:
        raise ValueError(f"{who} {COST_INCREASE} compares the pods of both revisions; leave kind out")
    limited = metric.max_cost_increase is not None
    if (limited and not its_own) or (its_own and not limited and not metric.dry_run):
        raise ValueError(f"{who} maxCostIncrease goes with {COST_INCREASE}, which has dryRun: true without")


def _metric(metric: TemplateMetric) -> MetricSpec:
    event = metric.event or ""
    kind = _kind(metric, event)
    if metric.max_extra is not None and metric.max_disagreement is not None and event == TOKENS_FLIP:
        raise ValueError(
            f"metric {metric.name!r}: maxExtra bounds responses and maxDisagreement tokens; remove one of them"
        )
    no_extra = kind is Kind.PAIRED_DRIFT or event in (PREDICTION_DISAGREEMENT, COST_INCREASE) or slower(event)
    if metric.max_extra is not None and no_extra:
        raise ValueError(f"metric {metric.name!r}: maxExtra goes with an event of split requests that is no latency")
    if metric.max_slowdown is not None and not slower(event):
        raise ValueError(f"metric {metric.name!r}: maxSlowdown goes with a latency, such as Slower(ttft, stable.p95)")
    if metric.scorer is not None and event != LOWER_SCORE:
        raise ValueError(f"metric {metric.name!r}: scorer goes with event {LOWER_SCORE} of kind {Kind.PAIRED_EVENT}")
    of_quality = event in (WRONG_ANSWER, PREDICTION_DRIFT, COST_INCREASE) or (
        kind is Kind.PAIRED_EVENT and event in QUALITY_EVENTS
    )
    if kind is not Kind.PAIRED_DRIFT and event not in BAD_EVENTS and slower(event) is None and not of_quality:
        known = ", ".join((*BAD_EVENTS, WRONG_ANSWER, PREDICTION_DRIFT, PREDICTION_DISAGREEMENT, COST_INCREASE))
        raise ValueError(
            f"metric {metric.name!r}: event {event!r} is none of {known} and Slower(ttft|itl|e2e, stable.pNN)"
        )
    if event == FELL_BACK and kind is not Kind.BAD_EVENT:
        raise ValueError(f"metric {metric.name!r}: {FELL_BACK} counts split requests; leave kind out")
    _check_predictions(metric, kind)
    _check_cost(metric, kind)
    return MetricSpec(
        name=metric.name,
        event=event,
        kind=kind,
        share=metric.share or 0.0,
        tolerate_ratio=metric.tolerate_ratio,
        max_ratio=metric.max_ratio,
        ok_below=metric.ok_below,
        max_extra=metric.max_extra,
        max_slowdown=metric.max_slowdown,
        max_psi=metric.max_psi,
        max_disagreement=metric.max_disagreement,
        max_cost_increase=metric.max_cost_increase,
        tolerance=_tolerance(metric),
        latency=slower(event) is not None,
        dry_run=bool(metric.dry_run),
        scorer=_scorer(metric),
    )


def _kind(metric: TemplateMetric, event: str) -> Kind:
    """Return the kind of a metric without a provider, from its event; a kind in the template must match that."""
    mirrored = (*DRIFT_EVENTS, PREDICTION_DISAGREEMENT)
    kind, drifts, known = metric.kind, event in mirrored, ", ".join(mirrored)
    if kind not in (None, *Kind):
        raise ValueError(f"metric {metric.name!r}: kind {kind} is not available; write {', '.join(Kind)} or Threshold")
    of_pairs = kind == Kind.PAIRED_EVENT and event in (TOKENS_FLIP, PREDICTION_DISAGREEMENT)
    if kind is not None and (kind == Kind.PAIRED_DRIFT) != drifts and not of_pairs:
        raise ValueError(f"metric {metric.name!r}: {known} go with kind {Kind.PAIRED_DRIFT}, and no other event does")
    if kind == Kind.PAIRED_EVENT:
        return Kind.PAIRED_EVENT
    return Kind.PAIRED_DRIFT if drifts else Kind.BAD_EVENT


def _veto(veto: TemplateVeto) -> Veto:
    if veto.name not in VETOES:
        raise ValueError(f"veto {veto.name!r} is not available; write one of {', '.join(VETOES)}")
    return Veto(veto.name, float(veto.limit))


# The default for LLM servers. The duration of a response depends on its length, so e2e is shown and decides
# nothing.
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
# For mirrored requests, at any weight, also 0. Some cannot be scored, so TokensFlip is shown and decides nothing.
SHADOW_DRIFT: Json = {
    "minSamples": {"canaryRequests": 100, "warmupSeconds": 0},
    "metrics": [
        {"name": "drift", "kind": "PairedDrift", "event": "AnswerDiffers", "share": 1.0, "okBelow": 0.05},
        {"name": "flips", "kind": "PairedDrift", "event": "TokensFlip", "dryRun": True},
    ],
    "vetoes": [{"name": POD_CRASH_LOOP, "limit": 3}, {"name": CANARY_CUT_OFF, "limit": 1}],
}
# Pairs of a twin shadow prove that clients lose nothing; then live requests prove what copies cannot show, by a wide
# margin, because little is left to prove.
LLM_RELEASE: Json = {
    "minSamples": {"pairs": 300, "minSeconds": 300, "canaryRequests": 60, "warmupSeconds": 120},
    "metrics": [
        {"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 0.4, "maxExtra": 10},
        {"name": "truncated", "kind": "PairedEvent", "event": "TruncatedAnswer", "share": 0.1, "maxExtra": 20},
        {
            "name": "ttft", "kind": "PairedEvent", "event": "Slower(ttft, stable.p95)", "share": 0.15,
            "maxSlowdown": 0.15,
        },
        {
            "name": "itl", "kind": "PairedEvent", "event": "Slower(itl, stable.p95)", "share": 0.15,
            "maxSlowdown": 0.1,
        },
        {"name": "live-bad", "event": "BadResponse", "share": 0.4, "maxExtra": 50},
        {"name": "live-errors", "event": "FirstAttemptError", "share": 0.3},
        {"name": "live-empty", "event": "EmptyAnswer", "share": 0.15},
        {"name": "live-hung", "event": "HungAnswer", "share": 0.15},
    ],
    "vetoes": LLM_DEFAULT["vetoes"],
}  # fmt: skip
_BUILT_IN = {"llm-default": LLM_DEFAULT, "llm-release": LLM_RELEASE, "llm-shadow-drift": SHADOW_DRIFT}
BUILT_IN: Mapping[str, Template] = {name: parse(name, spec) for name, spec in _BUILT_IN.items()}


def found(name: str, spec: Json | None) -> Template:
    """Return the template of this name: parsed from `spec`, else the built-in one, else one with a problem."""
    if spec is not None:
        return parse(name, spec)
    missing = (
        f"AnalysisTemplate {name!r} does not exist in this namespace: create it, or write llm-default or llm-release"
    )
    return BUILT_IN.get(name) or Template(problem=missing)
