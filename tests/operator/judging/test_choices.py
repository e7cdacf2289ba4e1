"""A bound on the tokens that stable chooses and canary does not: wrong weights are rejected, rounded ones pass."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import yaml

from slipway_contracts.counters import MILLION
from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, Outcome, Reason
from slipway_operator.api.v1alpha1.twin_shadow import FormerRate, ShadowRun
from slipway_operator.judging.epochs import clock_epoch
from slipway_operator.judging.evidence import Floats
from slipway_operator.judging.predictions.agreement import log_above, log_below
from slipway_operator.judging.verdict import judge
from slipway_operator.model.analysis.spec import (
    AnalysisSpec,
    Kind,
    MetricSpec,
    MinSamples,
    of_changed,
    of_copies,
    of_texts,
    of_tokens,
)
from slipway_operator.model.analysis.template import parse
from slipway_operator.model.analysis.verdict import Finding, Reading, Verdict
from testkit import ROOT

LIMIT, SHARE = 0.2, 0.2
FLIPS = MetricSpec("flips", "TokensFlip", Kind.PAIRED_EVENT, share=SHARE, max_disagreement=LIMIT)
BROKEN = MetricSpec("bad", "BadResponse", Kind.PAIRED_EVENT, share=0.5, max_extra=30.0)
SPEC = AnalysisSpec((BROKEN, FLIPS), min_samples=MinSamples(warmup_seconds=0, pairs=300))


def reading(*epochs: tuple[int, float], unscored: int = 0, open_pairs: int = 0) -> Reading:
    """Epochs of pairs: responses with scored tokens, and the sum of the parts that canary does not choose."""
    pairs = max(400, 4 * sum(n for n, _ in epochs))
    counts = (
        Counts("bad", (Epoch(50, pairs, pairs, 0, 0),)),
        Counts("flips", (Epoch(50, pairs, pairs, 0, 0),)),
        Counts(of_texts("flips"), (Epoch(50, 100, 100, 9, 0),)),
        Counts(of_tokens("flips"), (Epoch(50, 5000, 5000, 60, 50),)),
        Counts(of_changed("flips"), tuple(Epoch(50, MILLION * n, MILLION * n, int(MILLION * k), 0) for n, k in epochs)),
        Counts(of_copies("flips"), (Epoch(50, pairs, pairs, unscored, 0),)),
    )
    shadow = ShadowRun((FormerRate("bad", 0, 100_000),), open_pairs)
    return Reading(counts, 600.0, shadow=shadow, running_seconds=600.0, weights_differ=True)


def finding(verdict: Verdict) -> Finding:
    return next(row.finding for row in verdict.metrics if row.name == "flips")


def test_a_wrong_scale_is_rejected_by_few_responses_and_the_message_has_share_and_limit() -> None:
    verdict = judge(SPEC, reading((12, 10.32)))
    assert (verdict.outcome, verdict.reason, verdict.metric) == (Outcome.FAIL, Reason.WORSE, "flips")
    assert verdict.message.startswith(
        "flips: 86.00% of the tokens that stable chooses are not canary's first choice, by 12 responses "
        "(maxDisagreement 0.2); evidence e="
    )


def test_rounded_weights_pass_although_the_weights_differ_and_the_message_has_the_bound() -> None:
    verdict = judge(SPEC, reading((100, 5.0)))
    assert (verdict.outcome, finding(verdict)) == (Outcome.PASS, Finding.NOT_WORSE)
    (row,) = (one for one in verdict.metrics if one.disagreement)
    assert row.disagreement and 0.05 < row.disagreement.at_most < 0.15
    assert f"by 100 responses, {row.disagreement.at_most:.2%} at most (maxDisagreement 0.2)" in verdict.message
    assert "of 5,000 tokens of stable 1.20% are not canary's first choice, 1.00% not stable's" in verdict.message


@pytest.mark.parametrize("share", [0.17, 0.2, 0.23])
def test_near_the_bound_a_hundred_responses_decide_nothing(share: float) -> None:
    verdict = judge(SPEC, reading((100, 100 * share)))
    assert (verdict.outcome, finding(verdict)) == (Outcome.INCONCLUSIVE, Finding.UNDECIDED)
    assert verdict.metric == "flips" and "flips needs about" in verdict.message


def test_what_canarys_server_does_not_score_counts_against_a_pass_and_rejects_nothing() -> None:
    verdict = judge(SPEC, reading((100, 5.0), unscored=40))
    assert (verdict.outcome, finding(verdict)) == (Outcome.INCONCLUSIVE, Finding.UNDECIDED)
    assert "; canary's server scored 40 others not" in verdict.message
    assert judge(SPEC, reading((100, 2.0), unscored=2)).outcome is Outcome.PASS


def test_pairs_that_have_not_ended_count_against_a_pass() -> None:
    verdict = judge(SPEC, reading((100, 5.0), open_pairs=40))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.PAIRS_OPEN)


def test_without_a_scored_response_nothing_passes_and_the_message_says_what_is_scored() -> None:
    verdict = judge(SPEC, reading(unscored=100))
    assert (verdict.outcome, verdict.metric, finding(verdict)) == (Outcome.INCONCLUSIVE, "flips", Finding.NO_DATA)
    assert "flips has no pair of whose tokens both servers say which they choose; servers need prompt_logprobs" in (
        verdict.message
    )


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        ({"kind": "PairedEvent", "maxDisagreement": 0.2, "maxExtra": 50}, "maxExtra bounds responses and maxDisagreem"),
        ({"maxDisagreement": 0.2}, "maxDisagreement goes with PredictionDisagreement"),
        ({"kind": "PairedEvent"}, "it could never pass; give it maxExtra"),
        ({"kind": "PairedEvent", "maxDisagreement": 0.2, "maxPsi": 0.1}, "maxPsi goes with PredictionDrift"),
    ],
)
def test_a_template_that_cannot_be_meant_so_is_refused(metric: dict[str, object], problem: str) -> None:
    assert problem in parse("t", {"metrics": [{"name": "flips", "event": "TokensFlip", "share": 0.2} | metric]}).problem


def test_the_example_of_four_bits_bounds_them() -> None:
    spec = parse("quantized", yaml.safe_load((ROOT / "examples/quantize.yaml").read_text())["spec"]).spec
    assert spec
    (metric,) = (one for one in spec.gating if one.of_choices)
    alone = AnalysisSpec((metric,), min_samples=MinSamples(warmup_seconds=0, pairs=100))
    # What scales that are six times too large lost, and what a good conversion did: docs/judge.md.
    assert judge(alone, reading((12, 9.3))).outcome is Outcome.FAIL
    assert judge(alone, reading((120, 3.2))).outcome is Outcome.PASS


# -- simulated: two scored responses a second, a look after each ten seconds of ten minutes

RUNS, SECONDS, LOOK_S, PER_S = 500, 600, 10, 2


def parts(chance: np.random.Generator, share: float, spread: str, size: tuple[int, int]) -> Floats:
    """Parts of responses with this mean. `all`: a response is lost whole or not at all, the widest spread."""
    if spread == "all":
        return (chance.random(size) < share).astype(np.float64)
    if spread == "beta":  # as measured: many responses are near 0, some lose half
        return chance.beta(2 * share, 2 * (1 - share), size)
    return chance.binomial(60, share, size) / 60


def simulated(share: float, spread: str) -> tuple[float, float, float]:
    """Parts of the runs that are ever rejected, and that ever pass; the median of the responses until a rejection."""
    chance, clocks = np.random.default_rng(11), list[int]()
    k = n = np.zeros((RUNS, 0))
    ended, at = np.zeros((2, RUNS), bool), np.full(RUNS, np.inf)
    for second in range(LOOK_S, SECONDS + 1, LOOK_S):
        if (clock := clock_epoch(second)) not in clocks:
            clocks.append(clock)
            k, n = (np.concatenate([one, np.zeros((RUNS, 1))], axis=1) for one in (k, n))
        k[:, -1] += parts(chance, share, spread, (RUNS, LOOK_S * PER_S)).sum(axis=1)
        n[:, -1] += LOOK_S * PER_S
        worse = log_above(k, n, LIMIT) + math.log(SHARE) >= math.log(100)
        at[worse & ~ended[0]] = n.sum(axis=1)[0]
        ended[0] |= worse
        ended[1] |= log_below(k.sum(axis=1), n.sum(axis=1), np.zeros(RUNS), LIMIT) >= math.log(20)
    rejected, passed = (float(one.mean()) for one in ended)
    print(f"{share:.0%} {spread}: {rejected:.1%} rejected, half at {np.median(at):.0f}; {passed:.1%} pass")
    return rejected, passed, float(np.median(at))


SPREADS: Sequence[str] = ("all", "beta", "tokens")


@pytest.mark.parametrize("share", [0.195, LIMIT])
@pytest.mark.parametrize("spread", SPREADS)
def test_up_to_the_bound_no_more_are_rejected_than_is_promised_and_at_it_hardly_any_passes(
    spread: str, share: float
) -> None:
    rejected, passed, _ = simulated(share, spread)
    assert rejected <= SHARE * 0.01 and (passed <= 0.05 or share < LIMIT)


@pytest.mark.parametrize("spread", SPREADS)
def test_a_good_conversion_passes_and_a_wrong_scale_is_rejected_within_seconds(spread: str) -> None:
    rejected, passed, _ = simulated(0.05, spread)
    assert rejected <= 0.002 and passed >= 0.99
    rejected, _, until = simulated(0.86, spread)
    assert rejected == 1.0 and until <= 20
