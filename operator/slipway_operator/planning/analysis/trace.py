"""The history of an analysis's counts: bounded, in the status, thinned as it grows.

It decides nothing. With it the judge itself can compute a verdict again later.
"""

from collections.abc import Sequence
from dataclasses import replace

from slipway_operator.api.v1alpha1.analysis_run import AnalysisRun, Counts, Epoch, Moment

MOST_READINGS = 32
# A reading changes only the epochs of the four generations that gateways still count: no run comes near the limit.
MOST_MOMENTS = 256


def noted(run: AnalysisRun, before: Sequence[Counts], seconds: int) -> tuple[Moment, ...]:
    """The trace of the run with the changes since `before`, `seconds` after its start."""
    former = _by_epoch(before)
    fresh = (
        Moment(seconds, epoch, totals)
        for epoch, totals in enumerate(_by_epoch(run.counts))
        if epoch >= len(former) or former[epoch] != totals
    )
    return _thinned((*run.trace, *fresh))[-MOST_MOMENTS:]


def readings(run: AnalysisRun) -> tuple[int, ...]:
    """Seconds after the start of the run at which its counts are known, in ascending order."""
    return tuple(sorted({moment.seconds for moment in run.trace}))


def counts_at(run: AnalysisRun, seconds: int) -> tuple[Counts, ...]:
    """The run's counts at one of `readings`, `seconds` after its start."""
    known = {moment.epoch: moment.totals for moment in run.trace if moment.seconds <= seconds}
    return tuple(_counts(item, place, known) for place, item in enumerate(run.counts))


def _counts(last: Counts, place: int, known: dict[int, tuple[int, ...]]) -> Counts:
    """The counts of one metric, which has this place in the totals, in the known epochs."""
    epochs = (
        Epoch(epoch.w, *known[number][4 * place : 4 * place + 4])
        for number, epoch in enumerate(last.epochs)
        if number in known
    )
    return replace(last, epochs=tuple(epochs))


def _by_epoch(counts: Sequence[Counts]) -> list[tuple[int, ...]]:
    """For each epoch, four integers of each metric, one metric after the other."""
    columns = zip(*(item.epochs for item in counts), strict=True)
    return [tuple(number for e in column for number in (e.nc, e.ns, e.kc, e.ks)) for column in columns]


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
