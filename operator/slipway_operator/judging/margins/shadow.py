"""The verdict on a twin shadow: the row of each metric, what prevents a pass, and the sentences."""

import dataclasses
import math
from collections.abc import Sequence

from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, Reason
from slipway_operator.api.v1alpha1.twin_shadow import PairQuality, PairSources, ShadowRun
from slipway_operator.judging.margins import disagreement, paired, scores
from slipway_operator.judging.margins.paired import FormerBad, PairCounts
from slipway_operator.model.analysis.spec import (
    TOKENS_FLIP,
    AnalysisSpec,
    MetricSpec,
    of_probes,
    of_tail,
    of_texts,
    of_tokens,
    of_withheld,
)
from slipway_operator.model.analysis.verdict import Finding, MetricVerdict, Reading

MOST_WITHHELD = (
    0.01  # of the pairs: if more of them are withheld because pods or gateways are busy, the rest is no fair sample
)
FIRST_PAIR_S = 60  # after so long without a pair, none is expected soon
OFFER_S = 30  # after so long the rate of pairs shows how long a verdict takes
SLOW_S = 1800  # an expected wait that is longer than people accept

Doubt = tuple[Reason, str, str]


def row(spec: AnalysisSpec, metric: MetricSpec, reading: Reading, *, covered: bool) -> MetricVerdict:
    """The row of one metric in the verdict. `covered`: the proof of another metric includes this one."""
    epochs = _epochs(reading, metric.name)
    canary_units, stable_units, canary_bad, stable_bad = (
        sum(getattr(epoch, name) for epoch in epochs)
        for name in ("canary_units", "stable_units", "canary_bad", "stable_bad")
    )
    threshold = math.log(1 / spec.false_rollback_rate)
    if not canary_units:
        return MetricVerdict(metric.name, Finding.NO_DATA, log_threshold=threshold)
    level, former, open_pairs = spec.false_promote_rate, _former(reading, metric), _shadow(reading).open
    counted, known = PairCounts.of(epochs), _known(metric, reading)
    whole = _known(metric, reading, open_pairs + (_shadow(reading).scoring if metric.scorer else 0))
    tail = PairCounts.of(_epochs(reading, of_tail(metric.name)), open_pairs)
    evidence = float(paired.log_against(metric, counted)) + math.log(metric.share or 1.0)
    finding = Finding.UNDECIDED
    if evidence >= threshold:
        finding = Finding.WORSE
    elif covered:
        finding = Finding.COVERED
    elif float(paired.log_within(metric, whole, tail, former)) >= math.log(1 / level):
        finding = Finding.NOT_WORSE
    if metric.event == TOKENS_FLIP and reading.weights_differ:
        finding = Finding.REPORTED
    decided = finding is not Finding.UNDECIDED
    needed = canary_units if decided else paired.pairs_needed(metric, known, tail, former, level)
    return MetricVerdict(
        metric.name, finding, canary_units, stable_units, canary_bad, stable_bad,
        log_evidence=evidence, log_threshold=threshold, samples_needed=needed,
        extra=paired.bound(metric, whole, former, level),
    )  # fmt: skip


def expected(spec: AnalysisSpec, metric: MetricSpec, reading: Reading) -> tuple[int | None, bool]:
    """After how many pairs this metric is expected to be decided, and whether it then rejects canary."""
    epochs, former = _epochs(reading, metric.name), _former(reading, metric)
    known = _known(metric, reading)
    tail = PairCounts.of(_epochs(reading, of_tail(metric.name)))
    fails = paired.pairs_until_rejected(metric, PairCounts.of(epochs), spec.false_rollback_rate)
    passes = paired.pairs_needed(metric, known, tail, former, spec.false_promote_rate)
    if fails is not None and (passes is None or fails < passes):
        return fails, True
    return passes, False


def doubt_of_all(spec: AnalysisSpec, reading: Reading, rows: Sequence[MetricVerdict]) -> Doubt | None:
    """Why the verdict can be neither pass nor fail; None where it can be one of them."""
    if any(row.canary_units for row in rows):
        if reading.age_seconds > spec.stale_seconds:
            text = f"the counters are {reading.age_seconds:.0f} s old; {spec.stale_seconds} s are allowed"
            return Reason.STALE, text, ""
        return None
    shadow, waited_s = _shadow(reading), reading.running_seconds
    if shadow.no_twin:
        return Reason.NO_TWIN, _without_twin(shadow), ""
    if waited_s < FIRST_PAIR_S or shadow.open:
        twice = "" if shadow.on_failure else " twice"
        return Reason.NO_DATA, f"no prompt was answered{twice} yet, {shadow.open} pairs are open", ""
    offered, _, failed = _withheld(reading)
    why = f"{offered:,} were withheld" if offered else "no request came that can be copied"
    if failed:
        why = f"{why}, {failed:,} of them probes that neither side answered: the model may lack their api"
    return Reason.SHADOW_STARVED, f"no pair in {waited_s:.0f} s: {why}", ""


def doubt_of_passing(spec: AnalysisSpec, reading: Reading, rows: Sequence[MetricVerdict]) -> Doubt | None:
    """Why a canary that is not rejected does not pass; None if it passes."""
    least, shadow = spec.min_samples, _shadow(reading)
    so_far = sentence(spec, reading, rows)
    undecided = [row for row in rows if row.finding in (Finding.WORSE, Finding.UNDECIDED, Finding.NO_DATA)]
    if undecided and shadow.no_twin:
        return Reason.NO_TWIN, f"{_without_twin(shadow)}; {so_far}", ""
    offered, starved, _ = _withheld(reading)
    if starved > max(1, MOST_WITHHELD * offered):
        more = math.ceil(starved / MOST_WITHHELD) - offered
        text = (
            f"{starved:,} of {offered:,} pairs were withheld because pods or gateways were busy, and "
            f"{MOST_WITHHELD:.0%} may be: {_duration(more, offered, reading.running_seconds)} without further ones"
        )
        return Reason.SHADOW_STARVED, f"{text}; {so_far}", ""
    if reading.seconds < least.warmup_seconds:
        return Reason.WARM_UP, f"{reading.seconds:.0f} s of {least.warmup_seconds} s of warm-up; {so_far}", ""
    if undecided:
        slowest = max(undecided, key=lambda row: row.samples_needed or math.inf)
        return Reason.UNDECIDED, f"{so_far}; {_wait(spec, reading, slowest)}", slowest.name
    pairs = _most(rows)
    if pairs < least.pairs:
        return Reason.UNDECIDED, f"{so_far}; {least.pairs} pairs at least", ""
    return None


def settling(verdict_message: str, reading: Reading) -> str:
    """The message while nothing but pairs that have not ended prevents a pass."""
    return f"{open_pairs(reading)} pairs have not ended, and no further one is sent until they have; {verdict_message}"


def without_open(reading: Reading) -> Reading:
    """The reading as if each pair had ended well."""
    return dataclasses.replace(reading, shadow=dataclasses.replace(_shadow(reading), open=0, scoring=0))


def open_pairs(reading: Reading) -> int:
    """Pairs that have not ended, and those that a scorer has."""
    return _shadow(reading).open + _shadow(reading).scoring


def sentence(spec: AnalysisSpec, reading: Reading, rows: Sequence[MetricVerdict]) -> str:
    """What the pairs show: the numbers behind a pass, or those so far."""
    metrics, sure = {metric.name: metric for metric in spec.metrics}, f"{1 - spec.false_promote_rate:.0%}"
    probes = sources(reading).probes
    parts = [f"{_most(rows):,} prompts {_how(reading)}" + (f", {probes:,} of them probes" if probes else "")]
    parts += [_bounded(row, reading, sure) for row in rows if row.extra and row.finding is not Finding.REPORTED]
    differ = ((row.name, row.disagreement) for row in rows if row.disagreement)
    parts += [f"{name}: {disagreement.sentence(metrics[name], found)}" for name, found in differ]
    parts += [_of_quality(found)] if (found := quality(reading)) and found.tokens else []
    parts += [text] if (rated := scores.found(reading)) and (text := scores.sentence(rated)) else []
    parts += [_paced(metrics[row.name], row, sure) for row in rows if metrics[row.name].latency and row.canary_units]
    return "; ".join(parts)


def sources(reading: Reading) -> PairSources:
    """Numbers of pairs from clients' requests and from probes, and of probes that are bad on one side alone."""
    probes = _further(reading, of_probes(""))
    metrics = (name.removesuffix(of_probes("")) for name in reading.by_metric if name.endswith(of_probes("")))
    pairs, sent = (
        sum(epoch.canary_units for epoch in found) for found in (_epochs(reading, next(metrics, "")), probes)
    )
    bad = (sum(getattr(epoch, side) for epoch in probes) for side in ("canary_bad", "stable_bad"))
    return PairSources(max(0, pairs - sent), sent, *bad)


def quality(reading: Reading) -> PairQuality | None:
    """What texts and tokens of pairs show; None where the template compares none."""
    texts, tokens = (_further(reading, name("")) for name in (of_texts, of_tokens))
    if not texts:
        return None
    compared, differ = (sum(getattr(epoch, name) for epoch in texts) for name in ("canary_units", "canary_bad"))
    scored, *flips = (
        sum(getattr(epoch, name) for epoch in tokens) for name in ("canary_units", "canary_bad", "stable_bad")
    )
    return PairQuality(compared, differ, scored, *flips)


def offer(spec: AnalysisSpec, reading: Reading, rows: Sequence[MetricVerdict]) -> str:
    """How long a verdict takes where pairs are few, and probes as the remedy.

    Empty where the wait is short or its length not known yet, and where there are probes or no twin.
    """
    shadow, waited_s, pairs = _shadow(reading), reading.running_seconds, _most(rows)
    if shadow.probed or shadow.no_twin or waited_s < OFFER_S:
        return ""
    missing = [row.samples_needed - row.canary_units for row in rows if row.samples_needed]
    needed = max([spec.min_samples.pairs, *(pairs + more for more in missing)])
    left_s = (needed - pairs) * waited_s / max(1, pairs)
    if left_s <= SLOW_S:
        return ""
    rate = f"{60 * pairs / waited_s:.2g} pairs a minute" if pairs else f"no pair in {waited_s:.0f} s"
    takes = f"{needed:,} take {'about' if pairs else 'more than'} {_long(left_s)}"
    return f"{rate}, and {takes}: twinShadow.probes sends prompts of yours as further pairs"


def rejection(metric: MetricSpec, row: MetricVerdict, reading: Reading) -> str:
    """The numbers that reject canary, of the metric with the most evidence."""
    if metric.latency:
        slower = f"more than {metric.max_slowdown:.0%} slower than its twin"
        return f"{slower} in {row.canary_bad:,} of {row.canary_units:,} pairs"
    if metric.scorer:
        return f"{_alone(row, reading)} rated lower, of {row.stable_units:,} pairs with a result of its scorer"
    return f"{_alone(row, reading)}, of {row.canary_units:,} prompts {_how(reading)}"


def _how(reading: Reading) -> str:
    """How prompts were answered."""
    return "answered, those that failed by stable too" if _shadow(reading).on_failure else "answered twice"


def _alone(row: MetricVerdict, reading: Reading) -> str:
    other = "stable" if _shadow(reading).on_failure else "its twin"
    return f"{row.canary_bad:,} on canary alone, {row.stable_bad:,} on {other} alone"


def _of_quality(found: PairQuality) -> str:
    canary, twin = (f"{flips / found.tokens:.2%}" for flips in (found.flips_on_canary, found.flips_on_twin))
    flips = f"of {found.tokens:,} tokens of stable {canary} are not canary's first choice, {twin} not stable's"
    return f"{flips}; {found.texts_differ:,} of {found.texts:,} texts differ"


def _bounded(row: MetricVerdict, reading: Reading, sure: str) -> str:
    assert row.extra, "only a metric with maxExtra has a bound"
    bound = f"at most {row.extra.at_most:g} extra per 1,000 (limit {row.extra.limit:g}, {sure})"
    return f"{row.name}: {_alone(row, reading)}, {bound}"


def _paced(metric: MetricSpec, row: MetricVerdict, sure: str) -> str:
    if row.finding is Finding.NOT_WORSE:
        return f"{row.name}: less than {metric.max_slowdown:.0%} slower ({sure})"
    return f"{row.name}: more than {metric.max_slowdown:.0%} slower in {row.canary_bad:,} of {row.canary_units:,} pairs"


def _wait(spec: AnalysisSpec, reading: Reading, row: MetricVerdict) -> str:
    metric = next(metric for metric in spec.metrics if metric.name == row.name)
    if row.finding is Finding.NO_DATA and metric.scorer:
        return f"{row.name} has no pair that a scorer was given"
    if row.finding is Finding.NO_DATA and metric.of_agreement:
        return f"{row.name} has no pair with two predictions; {disagreement.READ_OF_PAIRS}"
    if row.finding is Finding.NO_DATA and metric.of_choices:
        return f"{row.name} has no pair of whose tokens both servers say which they choose; {disagreement.SCORED}"
    if row.finding is Finding.NO_DATA:
        return f"{row.name} has no pair with a response that both sides measure"
    needed = row.samples_needed
    if needed is None:
        lacks = metric.latency and not any(epoch.canary_units for epoch in _epochs(reading, of_tail(row.name)))
        tail = "no pair since stable had enough latencies of one size and kind to know its tail"
        return f"{row.name}: {tail if lacks else 'no end is in sight at this rate'}"
    return f"{row.name} needs about {max(needed, row.canary_units + 1):,} pairs at this rate"


def _without_twin(shadow: ShadowRun) -> str:
    return f"no baseline pod of stable answers the copies: {shadow.no_twin}"


def _duration(more: int, so_far: int, seconds: float) -> str:
    left_s = more * seconds / max(1, so_far)
    return f"about {left_s:.0f} s" if left_s < 120 else f"about {left_s / 60:.0f} min"


def _long(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _most(rows: Sequence[MetricVerdict]) -> int:
    """Number of pairs of the metric that has the most."""
    return max((row.canary_units for row in rows), default=0)


def _withheld(reading: Reading) -> tuple[int, int, int]:
    """Pairs that were sent or withheld, those withheld because a pod or a gateway had no room, and failed probes."""
    epochs = _further(reading, of_withheld(""))
    return (
        sum(epoch.canary_units for epoch in epochs),
        sum(epoch.canary_bad for epoch in epochs),
        sum(epoch.stable_bad for epoch in epochs),
    )


def _known(metric: MetricSpec, reading: Reading, open_pairs: int = 0) -> PairCounts:
    """The counts of a metric for a proof in canary's favour: an unknown outcome of a pair counts against canary."""
    epochs, on_failure = _epochs(reading, metric.name), _shadow(reading).on_failure
    return PairCounts.of(epochs, open_pairs, on_failure=on_failure, unknown=metric.scorer is not None)


def _further(reading: Reading, suffix: str) -> list[Epoch]:
    """Epochs of the columns whose names end in `suffix`: counts of something else than a metric."""
    names = (name for name in reading.by_metric if name.endswith(suffix))
    return [epoch for name in names for epoch in _epochs(reading, name)]


def _former(reading: Reading, metric: MetricSpec) -> FormerBad:
    found = next((item for item in _shadow(reading).former if item.metric == metric.name), None)
    return FormerBad(found.bad, found.units) if found else FormerBad()


def _shadow(reading: Reading) -> ShadowRun:
    return reading.shadow or ShadowRun()


def _epochs(reading: Reading, name: str) -> tuple[Epoch, ...]:
    return reading.by_metric.get(name, Counts(name)).epochs
