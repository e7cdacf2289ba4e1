"""Pairs without a twin: what is proved by what canary fails and stable does not, and what rejects."""

import math
import re

import numpy as np
import numpy.typing as npt
import pytest

from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, Outcome
from slipway_operator.api.v1alpha1.twin_shadow import FormerRate, ShadowRun
from slipway_operator.judging.epochs import clock_epoch
from slipway_operator.judging.margins import paired
from slipway_operator.judging.margins.paired import FormerBad, PairCounts
from slipway_operator.judging.verdict import judge
from slipway_operator.model.analysis.spec import AnalysisSpec, Kind, MetricSpec, MinSamples
from slipway_operator.model.analysis.verdict import Reading

BAD = MetricSpec("bad", "BadResponse", Kind.PAIRED_EVENT, share=1.0, max_extra=10.0)
SPEC = AnalysisSpec((BAD,), min_samples=MinSamples(warmup_seconds=0, pairs=300))
RUNS, LOOK_S = 300, 10
Floats = npt.NDArray[np.float64]


def reading(pairs: int, canary: int, stable: int, unanswered: int = 0, *, on_failure: bool = True) -> Reading:
    counts = Counts("bad", (Epoch(50, pairs, pairs - unanswered, canary, stable),))
    shadow = ShadowRun((FormerRate("bad", 500, 100_000),), on_failure=on_failure)
    return Reading((counts,), 600.0, shadow=shadow, running_seconds=600.0)


def test_failures_of_stable_alone_prove_nothing_for_canary() -> None:
    """They do with a twin, which has the same copy at the same moment."""
    alone, beside = judge(SPEC, reading(2000, 6, 8)), judge(SPEC, reading(2000, 6, 8, on_failure=False))
    assert alone.extra and beside.extra and alone.extra.at_most > beside.extra.at_most
    assert alone.extra.at_most == judge(SPEC, reading(2000, 6, 0)).extra.at_most  # type: ignore[union-attr]
    assert alone.message.startswith("2,000 prompts answered, those that failed by stable too; bad: 6 on canary alone, ")


def test_no_message_names_a_twin() -> None:
    passed, rejected = judge(SPEC, reading(2000, 6, 8)), judge(SPEC, reading(65, 16, 0))
    empty = judge(SPEC, reading(0, 0, 0))
    assert "bad: 6 on canary alone, 8 on stable alone, at most " in passed.message
    counted = "bad: 16 on canary alone, 0 on stable alone, of 65 prompts answered, those that failed by stable too; "
    assert (rejected.outcome, rejected.message.startswith(counted)) == (Outcome.FAIL, True)
    assert not [verdict for verdict in (passed, rejected, empty) if re.search(r"\btwin\b|twice", verdict.message)]


def test_what_no_pod_of_stable_had_room_to_repeat_is_canarys_in_the_proof_and_no_evidence_against_it() -> None:
    busy, known = judge(SPEC, reading(2000, 6, 6, 20)), judge(SPEC, reading(2000, 6, 6))
    assert busy.extra and known.extra
    assert busy.extra.at_most == judge(SPEC, reading(2000, 26, 6)).extra.at_most > known.extra.at_most  # type: ignore[union-attr]
    assert busy.log_evidence == known.log_evidence
    hidden = judge(SPEC, reading(2000, 0, 0, 2000))
    assert hidden.outcome is Outcome.INCONCLUSIVE, "a canary that fails all, beside a stable without room, never passes"


@pytest.mark.parametrize(("rate", "copies"), [(0.001, 444), (0.005, 1937)])
def test_copies_until_it_is_proved_are_those_of_the_closed_form(rate: float, copies: int) -> None:
    many, margin = 10_000_000.0, 0.01
    alone = round(many * rate * (1 - rate))
    sizes = np.linspace(0.001, 0.99, 2000)
    growth = max(
        alone / many * math.log1p(size * (margin - 1)) + (1 - alone / many) * math.log1p(size * margin)
        for size in sizes
    )
    assert math.log(20) / growth == pytest.approx(copies, rel=0.02), "of who knows the rate, and bets all on it"
    epochs = (Epoch(50, int(many), int(many), alone, alone),)
    counts = PairCounts.of(epochs, on_failure=True)
    forecast = paired.pairs_needed(BAD, counts, counts, FormerBad(round(rate * 1e6), 1_000_000), 0.05)
    assert forecast is not None and copies <= forecast <= 1.2 * copies, "other bets cost a part"


def simulated(rate: float, extra: float, minutes: int, seed: int, outage: float = 0.0) -> tuple[Floats, Floats]:
    """Seconds until canaries pass, and until they are rejected, at five copies a second; infinite where they are not.

    Each side fails at `rate`, canary at `extra` more; in an outage, from the third to the fifth minute, both at that.
    """
    chance = np.random.default_rng(seed)
    shape = (RUNS, clock_epoch(60 * minutes) + 1)
    pairs, canary, stable = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    passed, rejected = np.full(RUNS, np.inf), np.full(RUNS, np.inf)
    for seconds in range(LOOK_S, 60 * minutes + 1, LOOK_S):
        epoch, count = clock_epoch(seconds), chance.poisson(5 * LOOK_S, RUNS)
        at = max(rate, outage if 180 < seconds <= 300 else 0.0)
        fails = min(1.0, at + extra)
        alone = chance.binomial(count, fails * (1 - at))
        pairs[:, epoch] += count
        canary[:, epoch] += alone
        stable[:, epoch] += chance.binomial(count - alone, at * (1 - fails) / (1 - fails * (1 - at)))
        parts = [item[:, : epoch + 1] for item in (pairs, canary, stable)]
        proof, coin = PairCounts(parts[0], parts[1], np.zeros_like(parts[1])), PairCounts(*parts)
        still = np.isinf(passed) & np.isinf(rejected)
        rejected[still & (paired.log_against(BAD, coin) >= math.log(100))] = seconds
        good = paired.log_within_extra(proof, 0.01, FormerBad(100, 20_000)) >= math.log(20)
        enough = pairs.sum(axis=-1) >= SPEC.min_samples.pairs
        passed[still & np.isinf(rejected) & good & enough] = seconds
    return passed, rejected


def test_a_healthy_canary_passes_and_is_hardly_ever_rejected() -> None:
    passed, rejected = simulated(0.001, 0.0, 20, 7)
    assert float(np.isfinite(rejected).mean()) <= 0.01
    assert np.quantile(passed, 0.5) <= 240 and np.quantile(passed, 0.9) <= 420


def test_an_outage_that_both_have_rejects_nothing() -> None:
    _, rejected = simulated(0.005, 0.0, 15, 8, outage=0.3)
    assert float(np.isfinite(rejected).mean()) <= 0.01


@pytest.mark.parametrize(("extra", "passes"), [(0.01, 0.05), (0.02, 0.005)])
def test_a_canary_beyond_the_margin_hardly_ever_passes(extra: float, passes: float) -> None:
    passed, _ = simulated(0.001, extra, 30, 9)
    assert float(np.isfinite(passed).mean()) <= passes


def test_a_canary_that_fails_always_is_rejected_within_the_first_looks() -> None:
    passed, rejected = simulated(0.005, 1.0, 5, 10)
    assert not np.isfinite(passed).any() and float(rejected.max()) <= 20
