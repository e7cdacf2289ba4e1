"""The history of an analysis: bounded, with exact counts at each reading that it keeps."""

from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import pytest

from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, MetricCounts, Moment, RunStatus
from slipway_operator.planning.analysis.trace import MOST_MOMENTS, MOST_READINGS, counts_at, noted, readings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("errors", "ttft")


def empty() -> RunStatus:
    return RunStatus("r/1/1", "mine", "", NOW, NOW)


def grown(counts: tuple[Counts, ...], epoch: int, more: int) -> tuple[Counts, ...]:
    """Counts with more requests in an epoch, the first one after the last if it is new."""
    made = []
    for item in counts or tuple(Counts(name) for name in NAMES):
        epochs = [*item.epochs, Epoch(10 + 5 * epoch)] if epoch >= len(item.epochs) else [*item.epochs]
        last = epochs[epoch]
        epochs[epoch] = Epoch(
            last.weight,
            last.canary_units + more,
            last.stable_units + 2 * more,
            last.canary_bad + more // 2,
            last.stable_bad + 1,
        )
        made.append(Counts(item.metric, tuple(epochs)))
    return tuple(made)


def read(run: RunStatus, counts: tuple[Counts, ...], seconds: int) -> RunStatus:
    counted = replace(run, counts=counts)
    return replace(counted, trace=noted(counted, run.counts, seconds))


@pytest.mark.parametrize("seed", range(8))
def test_at_each_reading_that_is_kept_the_counts_are_those_of_then(seed: int) -> None:
    chance, run, known = Random(seed), empty(), {}
    for reading in range(1, 200):
        epochs = len(run.counts[0].epochs) if run.counts else 0
        last = epochs if epochs == 0 or chance.random() < 0.05 else epochs - 1
        # What was assigned at the weight before may end now.
        epoch = chance.choice((last, max(0, last - 1)))
        run = read(run, grown(run.counts, epoch, chance.randint(1, 9)), 5 * reading)
        known[5 * reading] = run.counts
        assert len(readings(run)) <= MOST_READINGS and len(run.trace) <= MOST_MOMENTS
        assert {seconds: counts_at(run, seconds) for seconds in readings(run)} == {
            seconds: known[seconds] for seconds in readings(run)
        }
        assert readings(run)[-1] == 5 * reading, "the newest reading is always there"


def test_unchanged_counts_are_not_written_again() -> None:
    run = read(empty(), grown((), 0, 4), 5)
    run = read(run, grown(run.counts, 1, 4), 10)
    assert [(moment.seconds, moment.epoch) for moment in run.trace] == [(5, 0), (10, 1)]
    assert noted(run, run.counts, 15) == run.trace


def test_a_full_history_keeps_the_start_in_outline_and_the_end_in_detail() -> None:
    run = empty()
    for reading in range(MOST_READINGS + 1):
        run = read(run, grown(run.counts, 0, 2), reading)
    assert readings(run) == tuple(range(0, MOST_READINGS + 1, 2))
    assert run.trace[-1] == Moment(MOST_READINGS, 0, dict.fromkeys(NAMES, MetricCounts(34, 68, 17, 17)))


def test_a_run_without_history_has_none() -> None:
    assert readings(replace(empty(), counts=grown((), 0, 3))) == ()
