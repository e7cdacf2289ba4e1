"""The history of an analysis's counts: bounded, in the run, thinned as it grows.

It decides nothing. With it the judge itself can compute a verdict again later.
"""

from collections.abc import Sequence
from dataclasses import replace

from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, MetricCounts, Moment, RunStatus

MOST_READINGS = 16
# A reading changes only the epochs of the four generations that gateways still count: no run comes near the limit.
MOST_MOMENTS = 128

ByMetric = dict[str, MetricCounts]


def noted(run: RunStatus, before: Sequence[Counts], seconds: int) -> tuple[Moment, ...]:
    """The trace of the run with the changes since `before`, `seconds` after its start."""
    former = _by_epoch(before)
    fresh = (
        Moment(seconds, epoch, counts)
        for epoch, counts in enumerate(_by_epoch(run.counts))
        if epoch >= len(former) or former[epoch] != counts
    )
    return _thinned((*run.trace, *fresh))[-MOST_MOMENTS:]


def readings(run: RunStatus) -> tuple[int, ...]:
    """Seconds after the start of the run at which its counts are known, in ascending order."""
    return tuple(sorted({moment.seconds for moment in run.trace}))


def counts_at(run: RunStatus, seconds: int) -> tuple[Counts, ...]:
    """The run's counts at one of `readings`, `seconds` after its start."""
    known = {moment.epoch: moment.counts for moment in run.trace if moment.seconds <= seconds}
    return tuple(_counts(item, known) for item in run.counts)


def _counts(last: Counts, known: dict[int, ByMetric]) -> Counts:
    """The counts of one metric in the known epochs."""
    epochs = []
    for number, epoch in enumerate(last.epochs):
        if number in known:
            then = known[number].get(last.metric, MetricCounts())
            epochs.append(Epoch(epoch.weight, then.canary_units, then.stable_units, then.canary_bad, then.stable_bad))
    return replace(last, epochs=tuple(epochs))


def _by_epoch(counts: Sequence[Counts]) -> list[ByMetric]:
    """For each epoch, the counts by metric that are not all zero."""
    epochs: list[ByMetric] = [{} for _ in counts[0].epochs] if counts else []
    for item in counts:
        for found, e in zip(epochs, item.epochs, strict=True):
            if any(four := (e.canary_units, e.stable_units, e.canary_bad, e.stable_bad)):
                found[item.metric] = MetricCounts(*four)
    return epochs


def _thinned(moments: tuple[Moment, ...]) -> tuple[Moment, ...]:
    """Every second reading, including the last one, once there are more than MOST_READINGS.

    Totals of a dropped reading move to the next one, where that has no newer totals: sums stay unchanged.
    """
    times = sorted({moment.seconds for moment in moments})
    if len(times) <= MOST_READINGS:
        return moments
    kept = times[::-1][::2][::-1]
    stands = {seconds: next(time for time in kept if time >= seconds) for seconds in times}
    latest = {(stands[moment.seconds], moment.epoch): moment for moment in moments}
    return tuple(replace(moment, seconds=seconds) for (seconds, _), moment in sorted(latest.items(), key=_order))


def _order(item: tuple[tuple[int, int], Moment]) -> tuple[int, int]:
    return item[0]
