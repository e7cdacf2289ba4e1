"""The verdict on pairs of a twin shadow, at golden counts."""

import math
from dataclasses import replace

import numpy as np
import pytest

from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, Outcome, Reason
from slipway_operator.api.v1alpha1.twin_shadow import FormerRate, PairSources, ShadowRun
from slipway_operator.judging.margins import paired
from slipway_operator.judging.margins.paired import FormerBad, PairCounts
from slipway_operator.judging.verdict import judge
from slipway_operator.model.analysis.spec import AnalysisSpec, Kind, MetricSpec, MinSamples
from slipway_operator.model.analysis.template import BUILT_IN
from slipway_operator.model.analysis.verdict import Finding, Reading, Verdict

BAD = MetricSpec("bad", "BadResponse", Kind.PAIRED_EVENT, share=0.4, max_extra=10.0)
EMPTY = MetricSpec("empty", "EmptyAnswer", Kind.PAIRED_EVENT, share=0.1)
TTFT = MetricSpec("ttft", "Slower(ttft, stable.p95)", Kind.PAIRED_EVENT, share=0.3, max_slowdown=0.15, latency=True)
SPEC = AnalysisSpec((BAD, EMPTY, TTFT), min_samples=MinSamples(warmup_seconds=120, pairs=300, min_seconds=300))
# Stable had 5 bad in 1,000 sessions before.
FORMER = (FormerRate("bad", 500, 100_000), FormerRate("empty", 0, 100_000))
FAST, NO_TAIL = (Epoch(50, 400, 400, 120, 0),), (Epoch(50, 400, 400, 2, 2),)


def reading(
    *bad: tuple[int, int, int],
    over: tuple[Epoch, ...] = FAST,
    tail: tuple[Epoch, ...] = NO_TAIL,
    open_pairs: int = 0,
    withheld: tuple[int, int] = (0, 0),
    seconds: float = 600.0,
    no_twin: str = "",
    probes: tuple[int, int, int] = (0, 0, 0),
    failed: int = 0,
) -> Reading:
    """What was counted: (on canary alone, on its twin alone, pairs) of each epoch, and the latencies."""
    pairs = sum(n for _, _, n in bad)
    counts = (
        Counts("bad", tuple(Epoch(50, n, n, a, b) for a, b, n in bad)),
        Counts("empty", tuple(Epoch(50, n, n, 0, 0) for _, _, n in bad)),
        Counts("ttft", over),
        Counts("ttft/tail", tail),
        Counts("bad/withheld", (Epoch(50, pairs + withheld[0], pairs + withheld[0], withheld[1], failed),)),
        Counts("bad/probes", (Epoch(50, probes[2], probes[2], *probes[:2]),)),
    )
    shadow = ShadowRun(FORMER, open_pairs, no_twin)
    return Reading(counts if bad else (), seconds, shadow=shadow, running_seconds=seconds)


def row(verdict: Verdict, name: str) -> Finding:
    return next(row.finding for row in verdict.metrics if row.name == name)


@pytest.mark.parametrize(("a", "b", "n", "log_evidence"), [(0, 0, 300, 1.598035), (3, 2, 640, 1.865448)])
def test_evidence_within_the_margin_is_that_of_the_golden_numbers(a: int, b: int, n: int, log_evidence: float) -> None:
    """One epoch: 0.85 of the stake is on it, and 0.15 is kept for later ones."""
    counts = PairCounts.of((Epoch(50, n, n, a, b),))
    found = float(paired.log_within_extra(counts, 0.01, FormerBad(500 - 1, 99_800)))
    assert found == pytest.approx(math.log(0.85 * math.exp(log_evidence) + 0.15), abs=2e-4)


def test_two_epochs_are_the_golden_number_with_starts() -> None:
    counts = PairCounts.of((Epoch(50, 300, 300, 0, 0),) * 2)
    assert float(paired.log_within_extra(counts, 0.01, FormerBad(499, 99_800))) == pytest.approx(3.212961, abs=5e-4)


def test_a_canary_passes_with_the_numbers_that_prove_it() -> None:
    verdict = judge(SPEC, reading((0, 0, 300), (3, 2, 900)))
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, Reason.NOT_WORSE)
    assert verdict.extra and verdict.extra.at_most <= 10 and verdict.extra.estimate == 0.8
    bound = f"at most {verdict.extra.at_most:g} extra per 1,000 (limit 10, 95%)"
    assert verdict.message == (
        f"1,200 prompts answered twice; bad: 3 on canary alone, 2 on its twin alone, {bound}; "
        "ttft: less than 15% slower (95%)"
    )
    assert [row(verdict, name) for name in ("bad", "empty", "ttft")] == [
        Finding.NOT_WORSE, Finding.COVERED, Finding.NOT_WORSE,
    ]  # fmt: skip


@pytest.mark.parametrize(("bad", "outcome"), [(13, Outcome.INCONCLUSIVE), (14, Outcome.FAIL)])
def test_fourteen_bad_responses_of_canary_alone_reject_it(bad: int, outcome: Outcome) -> None:
    """Share 0.4, half of the stake from the start, a third of 1 % for one of three analyses."""
    spec = replace(SPEC, false_rollback_rate=0.01 / 3)
    verdict = judge(spec, reading((bad, 0, 300)))
    assert verdict.outcome is outcome
    if outcome is Outcome.FAIL:
        assert "bad: 14 on canary alone, 0 on its twin alone, of 300 prompts answered twice; evidence e=" in (
            verdict.message
        )


def test_a_canary_that_is_slower_than_the_margin_in_most_pairs_is_rejected() -> None:
    verdict = judge(SPEC, reading((0, 0, 300), over=(Epoch(50, 200, 200, 140, 0),)))
    assert (verdict.outcome, verdict.metric) == (Outcome.FAIL, "ttft")
    assert "ttft: more than 15% slower than its twin in 140 of 200 pairs; evidence e=" in verdict.message


@pytest.mark.parametrize(
    ("over", "tail"),
    [
        ((Epoch(50, 400, 400, 195, 0),), NO_TAIL),
        (FAST, (Epoch(50, 400, 400, 40, 10),)),
        (FAST, ()),
    ],
    ids=["median", "tail", "no tail yet"],
)
def test_a_latency_passes_only_in_the_median_and_in_the_tail(over: tuple[Epoch, ...], tail: tuple[Epoch, ...]) -> None:
    verdict = judge(SPEC, reading((0, 0, 1200), over=over, tail=tail))
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.INCONCLUSIVE, Reason.UNDECIDED, "ttft")
    assert "1,200 prompts answered twice; bad: 0 on canary alone" in verdict.message


def test_pairs_that_have_not_ended_count_as_bad_until_they_have() -> None:
    held = judge(SPEC, reading((0, 0, 1200), open_pairs=12))
    assert (held.outcome, held.reason) == (Outcome.INCONCLUSIVE, Reason.PAIRS_OPEN)
    assert held.message.startswith("12 pairs have not ended, and no further one is sent until they have; 1,200 prompts")
    assert held.extra and held.extra.at_most > 10
    assert judge(SPEC, reading((0, 0, 1200), open_pairs=1)).outcome is Outcome.PASS, "it passes whatever that one gives"
    early = judge(SPEC, reading((0, 0, 100), open_pairs=12))
    assert early.reason is Reason.UNDECIDED, "further pairs are needed, so they go on"


def test_pairs_that_were_withheld_hold_a_pass_and_no_rejection() -> None:
    starved = judge(SPEC, reading((0, 0, 1200), withheld=(40, 20)))
    assert (starved.outcome, starved.reason) == (Outcome.INCONCLUSIVE, Reason.SHADOW_STARVED)
    assert "20 of 1,240 pairs were withheld because pods or gateways were busy, and 1% may be: about 6 min" in (
        starved.message
    )
    assert judge(SPEC, reading((0, 0, 1200), withheld=(400, 12))).outcome is Outcome.PASS, (
        "most met the limit of the rate"
    )
    assert judge(SPEC, reading((40, 0, 1200), withheld=(400, 100))).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("found", "reason", "text"),
    [
        (reading(seconds=30), Reason.NO_DATA, "no prompt was answered twice yet"),
        (reading(seconds=90), Reason.SHADOW_STARVED, "no pair in 90 s: no request came that can be copied"),
        (reading(seconds=90, open_pairs=4), Reason.NO_DATA, "4 pairs are open"),
        (reading(no_twin="no node"), Reason.NO_TWIN, "no baseline pod of stable answers the copies: no node"),
        (reading((0, 0, 40), over=(), no_twin="no node"), Reason.NO_TWIN, "no node; 40 prompts answered twice"),
        (reading((0, 0, 1200), seconds=100), Reason.WARM_UP, "100 s of 120 s of warm-up; 1,200 prompts"),
        (reading((0, 0, 1200), seconds=200), Reason.UNDECIDED, "all is proved; 200 s of 300 s (minSeconds) are over"),
        (reading((0, 0, 100)), Reason.UNDECIDED, "bad needs about "),
    ],
)
def test_what_holds_a_pass_is_said(found: Reading, reason: Reason, text: str) -> None:
    verdict = judge(SPEC, found)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, reason)
    assert text in verdict.message


def test_at_a_low_rate_the_first_minutes_say_how_long_it_will_take() -> None:
    """Six pairs in a minute: at the former rate of stable it takes some hours."""
    verdict = judge(SPEC, reading((0, 0, 12), over=(Epoch(50, 12, 12, 3, 0),), tail=(), seconds=121))
    assert verdict.seconds_left is None, "the tail of stable is not known yet"
    for found in (
        judge(replace(SPEC, metrics=(BAD, EMPTY)), reading((0, 0, 12), seconds=121)),
        judge(SPEC, reading((0, 0, 6), over=(), tail=(), seconds=60)),
    ):
        assert found.seconds_left and 3000 < found.seconds_left < 30_000


def test_a_healthy_canary_of_the_built_in_template_passes_and_one_at_the_margin_rarely_does() -> None:
    """2,000 runs of 2,000 pairs with looks at every hundred: 5 % may pass at the margin."""
    chance = np.random.default_rng(5)
    runs, pairs = 2000, 2000
    for extra, least, most in ((0.0, 0.9, 1.0), (0.01, 0.0, 0.05)):
        draws = chance.random((runs, pairs))
        canary = (draws < 0.005 + extra).reshape(runs, -1, 100).sum(axis=-1).cumsum(axis=-1)
        twin = (draws > 0.995).reshape(runs, -1, 100).sum(axis=-1).cumsum(axis=-1)
        n = np.broadcast_to(np.arange(100, pairs + 1, 100), canary.shape)
        counts = PairCounts(n[..., None], canary[..., None], twin[..., None])
        proved = np.asarray(paired.log_within(BAD, counts, counts, FormerBad(499, 99_800)) >= math.log(20))
        assert least <= float(proved.any(axis=-1).mean()) <= most


def test_the_built_in_template_has_a_part_for_pairs_and_one_for_requests() -> None:
    spec = BUILT_IN["llm-release"].spec
    assert spec
    pairs, requests = spec.part(paired=True), spec.part(paired=False)
    assert [metric.name for metric in pairs.metrics] == ["bad", "truncated", "ttft", "itl"]
    assert all(metric.name.startswith("live-") for metric in requests.metrics)
    with pytest.raises(ValueError, match="no metric of kind PairedEvent decides"):
        requests.part(paired=True)


def test_probes_are_shown_apart_in_the_message_and_the_numbers() -> None:
    verdict = judge(SPEC, reading((3, 2, 1200), probes=(1, 2, 900)))
    assert verdict.message.startswith("1,200 prompts answered twice, 900 of them probes; bad: 3 on canary alone, ")
    assert verdict.pairs == PairSources(300, 900, 1, 2)
    assert judge(SPEC, reading((3, 2, 1200))).pairs == PairSources(1200)


def test_probes_that_no_side_answers_are_named_where_there_is_no_pair() -> None:
    found = reading((0, 0, 0), over=(), tail=(), withheld=(12, 0), failed=12, seconds=70.0)
    verdict = judge(SPEC, replace(found, shadow=replace(found.shadow or ShadowRun(), probed=True)))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.SHADOW_STARVED)
    assert "12 were withheld, 12 of them probes that neither side answered" in verdict.message


@pytest.mark.parametrize(
    ("pairs", "seconds", "offers"), [(10, 60.0, True), (10, 29.0, False), (100, 60.0, False), (1, 35.0, True)]
)
def test_few_pairs_are_a_reason_to_offer_probes(pairs: int, seconds: float, offers: bool) -> None:
    found = reading((0, 0, pairs), over=(), tail=(), seconds=seconds)
    text = judge(SPEC, found).message
    assert ("twinShadow.probes sends prompts of yours" in text) == offers, text
    probed = replace(found, shadow=replace(found.shadow or ShadowRun(), probed=True))
    assert "twinShadow.probes" not in judge(SPEC, probed).message
