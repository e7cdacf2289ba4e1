"""Latency limits of an analysis: chosen from stable's own latencies, and renewed by the clock.

A comparison is fair by any limit that was chosen before the requests which it counts. A limit from a busy minute makes
the judge slow: so each clock epoch renews limits, from the latencies that stable had since.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from slipway_contracts.counters import GenerationCounts, RevisionCounts, no_requests
from slipway_operator.api.v1alpha1.analysis_run import FormerTimes, LatencyThreshold, Pace, RunStatus
from slipway_operator.judging.margins.slowness import GROSS_TIMES
from slipway_operator.judging.thresholds import LEAST_SAMPLES, Histogram, median, quantile_bound
from slipway_operator.model.analysis.template import slower
from slipway_operator.model.cluster.observed import Gateway
from slipway_operator.planning.analysis.columns import ColumnPart, CounterColumn

MOST_THRESHOLDS = 256
MOST_FORMER = 64
MEDIAN = 0.5

Splits = Sequence[tuple[Gateway, GenerationCounts, tuple[RevisionCounts, ...], int]]
Key = tuple[str, str]  # kind of latency, stratum


def renewed(
    run: RunStatus,
    listed: Iterable[CounterColumn],
    split: Splits,
    gateways: Iterable[Gateway],
    pair: tuple[str, str],
    clock: int | None,
) -> RunStatus:
    """The run with limits for all columns that have none and could, and renewed ones in a new clock epoch.

    Args:
        run: with its former limits.
        listed: the columns.
        split: what gateways counted of both sides, see `counting.splits`.
        gateways: all that responded.
        pair: canary and stable.
        clock: number of the present clock epoch; None when nothing new was counted, so that nothing is renewed.
    """
    latencies = [column for column in listed if column.limited]
    if not latencies:
        return run
    beside, ever = _of_stable(split, gateways, pair)
    recent = _since(beside, run.former_times)
    due = clock is not None and run.warm and (run.renewed_epoch is None or clock > run.renewed_epoch)
    known = {(item.metric, item.stratum): item for item in run.thresholds}
    for column in latencies:
        if column.part is not ColumnPart.GROSS and not run.warm:
            continue
        for (kind, stratum), histogram in ever.items():
            chosen = _limit(column, kind, stratum, beside.get((kind, stratum)), histogram)
            if chosen and (column.name, stratum) not in known:
                known[column.name, stratum] = chosen
        for (kind, stratum), histogram in recent.items() if due and column.part is not ColumnPart.GROSS else ():
            if fresh := _limit(column, kind, stratum, histogram, histogram):
                known[column.name, stratum] = fresh
    run = replace(run, thresholds=tuple(known.values())[:MOST_THRESHOLDS])
    # Without enough new latencies the renewal stays due, and the run records nothing about it.
    return _noted(run, beside, recent, clock or 0) if due and (recent or run.renewed_epoch is None) else run


def paces(listed: Iterable[CounterColumn], split: Splits) -> tuple[Pace, ...]:
    """Medians in seconds of canary and of its comparison, for each deciding latency for which both have one."""
    found = []
    for column in listed:
        latency = slower(column.metric.event)
        if latency is None or column.part is not ColumnPart.WHOLE or column.metric.dry_run:
            continue
        sides = [
            _whole(_summed(((gateway, sides[place]) for gateway, _, sides, weight in split if weight), latency.kind))
            for place in (0, 1)
        ]
        medians = [median(histogram) if histogram else None for histogram in sides]
        if medians[0] is not None and medians[1] is not None:
            found.append(Pace(column.name, float(f"{medians[0]:.3g}"), float(f"{medians[1]:.3g}")))
    return tuple(found)


def _limit(
    column: CounterColumn, kind: str, stratum: str, beside: Histogram | None, ever: Histogram
) -> LatencyThreshold | None:
    """The limit of a column in one stratum; None where stable has too few latencies, or the kind is not the column's.

    It comes from the latencies `beside` canary where there are enough, because earlier ones had another load and hour;
    else from `ever`, all that gateways still have of stable.
    """
    latency = slower(column.metric.event)
    if latency is None or latency.kind != kind:
        return None
    source = beside if beside and beside.samples >= LEAST_SAMPLES else ever
    if column.part is ColumnPart.SLOWDOWN:
        typical = quantile_bound(source, MEDIAN)
        most = typical and _bound_below(source.bounds, typical * (1 + (column.metric.max_slowdown or 0)))
        return LatencyThreshold(column.name, stratum, typical, most) if typical and most else None
    usual = quantile_bound(source, latency.quantile)
    if usual is None:
        return None
    return LatencyThreshold(column.name, stratum, usual * GROSS_TIMES if column.part is ColumnPart.GROSS else usual)


def _bound_below(bounds: Sequence[float], seconds: float) -> float:
    """The largest bound up to `seconds`: canary's limit is never above the margin."""
    # A product that should equal a bound may be slightly below it in floating point.
    return bounds[max(0, bisect_right(bounds, seconds * (1 + 1e-9)) - 1)]


def _noted(run: RunStatus, beside: Mapping[Key, Histogram], recent: Mapping[Key, Histogram], clock: int) -> RunStatus:
    """The run after a renewal: it notes stable's present latencies, where they gave a limit or were never noted."""
    known = {(item.kind, item.stratum): item for item in run.former_times}
    for key, histogram in beside.items():
        if key not in known or key in recent:
            known[key] = FormerTimes(*key, histogram.counts)
    return replace(run, former_times=tuple(known.values())[:MOST_FORMER], renewed_epoch=clock)


def _since(beside: Mapping[Key, Histogram], former: Iterable[FormerTimes]) -> dict[Key, Histogram]:
    """Stable's latencies since `_noted` recorded them, where there are LEAST_SAMPLES or more.

    Counters that are now lower were lost with a gateway, and count from zero.
    """
    noted = {(item.kind, item.stratum): item.counts for item in former}
    found = {}
    for key, histogram in beside.items():
        before = noted.get(key, ())
        counts = histogram.counts
        if len(before) == len(counts) and all(now >= then for now, then in zip(counts, before, strict=True)):
            counts = tuple(now - then for now, then in zip(counts, before, strict=True))
        if before and sum(counts) >= LEAST_SAMPLES:
            found[key] = Histogram(histogram.bounds, counts)
    return found


def _of_stable(
    split: Splits, gateways: Iterable[Gateway], pair: tuple[str, str]
) -> tuple[dict[Key, Histogram], dict[Key, Histogram]]:
    """Latencies of the side that canary is compared with, and all that gateways have of stable, by kind and stratum."""
    beside = [(gateway, sides[1]) for gateway, _, sides, weight in split if weight]
    known = [
        (gateway, sample.revisions.get(pair[1], no_requests())) for gateway in gateways for sample in gateway.samples
    ]
    kinds = sorted({kind for gateway, _ in (*beside, *known) for kind in gateway.bounds})
    first, ever = (
        {(kind, stratum): found for kind in kinds for stratum, found in _summed(sides, kind).items()}
        for sides in (beside, known)
    )
    return first, first | ever


def _summed(sides: Iterable[tuple[Gateway, RevisionCounts]], kind: str) -> dict[str, Histogram]:
    """Sums over gateways and generations, by stratum; only of gateways with the same buckets as the first."""
    bounds: tuple[float, ...] = ()
    sums: dict[str, list[int]] = {}
    for gateway, side in sides:
        bounds = bounds or gateway.bounds.get(kind, ())
        if not bounds or gateway.bounds.get(kind) != bounds:
            continue
        for stratum, counts in side.slow.get(kind, {}).items():
            sums[stratum] = [a + b for a, b in zip(sums.get(stratum, [0] * len(counts)), counts, strict=True)]
    return {stratum: Histogram(bounds, tuple(counts)) for stratum, counts in sorted(sums.items())}


def _whole(strata: Mapping[str, Histogram]) -> Histogram | None:
    """One histogram of all strata; None without any."""
    found = list(strata.values())
    if not found:
        return None
    return Histogram(found[0].bounds, tuple(map(sum, zip(*(item.counts for item in found), strict=True))))
