"""The console shows AnalysisRuns as the operator writes them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from slipway_console.views.evidence import UNITS, read_evidence
from slipway_operator.api.v1alpha1.analysis_run import (
    HarmPoint,
    MetricRow,
    MetricSeries,
    Outcome,
    RampRun,
    Reason,
    RunStatus,
    RunVerdict,
    SeriesPoint,
    VerdictChange,
)
from slipway_operator.api.v1alpha1.twin_shadow import PairQuality, PairSources
from slipway_operator.judging.margins import intervals
from slipway_operator.manifests.analysis_run import analysis_run
from slipway_operator.manifests.owner import Owner

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
VERDICT = RunVerdict(
    Outcome.INCONCLUSIVE,
    Reason.UNDECIDED,
    "live-bad: at most 8.7",
    START,
    "1.2",
    "100",
    pairs=PairSources(412, 20, 0, 1),
    quality=PairQuality(400, 37, 9000, 41, 38),
    metrics=(MetricRow("live-bad", "Undecided", 3150, 28350, 13, 140, "1.2", "100", "0.41 %", "0.49 %", 4000),),
)
RUN = RunStatus(
    "r/1/1",
    "llm-release",
    "h",
    START,
    START + timedelta(minutes=5),
    verdict=VERDICT,
    decisions=(VerdictChange(START + timedelta(minutes=1), Outcome.INCONCLUSIVE, Reason.WARM_UP, "the warm-up"),),
    series=(
        MetricSeries("live-bad", intervals.EXTRA, 10.0, (SeriesPoint(0, -900, 900), SeriesPoint(300, -2, 8.7, 44))),
    ),
    ramp=RampRun(5, 20, 3.5),
    harm=(HarmPoint(0, 0.0, 1), HarmPoint(300, 3.5, 5)),
)


def written(run: RunStatus) -> dict[str, Any]:
    return analysis_run(Owner("chat", "demo", "u-1"), "chat-run", run)


def test_the_console_reads_the_run_that_the_operator_writes() -> None:
    found = read_evidence(written(RUN))
    assert (found.subject, found.title, found.template) == ("chat", "revision r, attempt 1, step 2", "llm-release")
    assert (found.outcome, found.reason, found.message) == ("Inconclusive", "Undecided", "live-bad: at most 8.7")
    [bound] = found.bounds
    assert bound.sentence.startswith("at most 8.7 extra bad responses") and bound.holds
    latest, *_ = bound.rows
    assert (latest.at, latest.low, latest.high, latest.samples) == ("0:05:00", "-2", "8.7", "44")
    assert found.harm and (found.harm.spent, found.harm.most, found.harm.weight) == (3.5, 20.0, 5)
    assert [(item.at, item.reason) for item in found.decisions] == [(START + timedelta(minutes=1), "WarmUp")]
    assert found.metrics[0][2] == "13 of 3150 (0.41 %)" and len(found.pairs) == 3
    assert (found.started_at, found.read_at) == (START, START + timedelta(minutes=5))


def test_every_unit_of_the_operator_has_words() -> None:
    assert set(UNITS) == {intervals.EXTRA, intervals.RATIO, intervals.COST}


def test_a_run_that_has_just_begun_is_read() -> None:
    bare = replace(RUN, verdict=None, decisions=(), series=(), ramp=None, harm=())
    assert read_evidence(written(bare)).bounds == ()
