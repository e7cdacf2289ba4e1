"""Adds gateways' counters to the counts of an analysis: what each gateway process counted since the last addition.

The run keeps counters for each process and generation, so a restarted gateway counts from zero without a loss, and a
restarted operator adds nothing twice. The weight of a generation gives the epoch of a count: what is added happened to
requests that were assigned by that weight, whenever they ended.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from slipway_contracts.counters import (
    AgreementCounts,
    GenerationCounts,
    RevisionCounts,
    ShadowCounts,
    no_requests,
    zero,
)
from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, LatencyThreshold, MetricCounts, RunStatus, Seen
from slipway_operator.judging.epochs import clock_epoch
from slipway_operator.model.analysis.spec import AnalysisSpec, Kind, MetricSpec
from slipway_operator.model.analysis.template import BAD_EVENTS, COMPOSITE, DRIFT_EVENTS, slower
from slipway_operator.model.cluster.observed import Gateway
from slipway_operator.model.labels import baseline_of
from slipway_operator.planning.analysis import limits, twins
from slipway_operator.planning.analysis.columns import ColumnPart, CounterColumn, columns

# Beyond these, the last epoch of the same weight grows. The more columns there are, the fewer epochs have room.
MOST_EPOCHS, MOST_CELLS = 64, 1024
MOST_SEEN, MOST_SEEN_CELLS = 256, 1024  # counters kept in total, and columns of all of them
MOST_GONE = 32  # counters of processes that no longer respond, kept in case one returns
MOST_LEFT_OUT = 256

Thresholds = tuple[LatencyThreshold, ...]
Totals = tuple[int, ...]
Sides = tuple[RevisionCounts, ...]  # canary's, and that of the revision that it is compared with
SPLIT = 2  # counters before those of the metrics: units assigned to canary and to stable
PER_METRIC = 4
HALF = 50  # canary's percent beside a baseline of the same weight
PAIRED = 50  # canary's percent of prompts that it and a second stable pod both answer


def begin(run: RunStatus, spec: AnalysisSpec, gateways: Iterable[Gateway], pair: tuple[str, str]) -> RunStatus:
    """The run at its start: counters of `pair` (canary, stable) count from now on."""
    known = tuple(gateways)
    run = limits.renewed(run, columns(spec), list(splits(known, pair)), known, pair, clock_epoch(0))
    listed = columns(spec)
    seen = tuple(_seen(key, totals, listed) for key, _, totals in _totals(spec, known, pair, run.thresholds))
    return _fitting(replace(run, seen=seen, timed=timed(run, known, pair)), len(listed))


def add(
    run: RunStatus,
    spec: AnalysisSpec,
    gateways: Iterable[Gateway],
    pair: tuple[str, str],
    *,
    comparable: bool,
    seconds: float,
) -> RunStatus:
    """The run with what gateways counted since it was last written; now is `seconds` after its start.

    Latencies that are not `comparable`, because the canary is cold or has more load, are left out.
    """
    known = _counted(run, gateways)
    listed = columns(spec)
    former = {(item.incarnation, item.generation): _totals_of(item, listed) for item in run.seen}
    added: dict[int, list[int]] = {}
    for key, weight, totals in _totals(spec, known, pair, run.thresholds):
        before = former.get(key) or (0,) * len(totals)
        for place, (now, then) in enumerate(zip(totals, before, strict=True)):
            column = None if place < SPLIT else listed[(place - SPLIT) // PER_METRIC]
            epoch = PAIRED if column and column.copies else weight
            left_out = not comparable and column is not None and column.waits
            sums = added.setdefault(epoch, [0] * len(totals))
            sums[place] += 0 if left_out else max(0, now - then)
    run = replace(run, timed=timed(run, known, pair))
    for weight, sums in sorted(added.items()):
        if any(sums):
            run = _summed(run, spec, weight, clock_epoch(seconds), sums)
    # Limits are chosen only now, so latencies count against them from the next reading on.
    counted = {key: totals for key, _, totals in _totals(spec, known, pair, run.thresholds)}
    clock = clock_epoch(seconds) if any(map(any, added.values())) else None
    run = limits.renewed(run, listed, list(splits(known, pair)), known, pair, clock)
    present = tuple(
        _seen(key, _counted_once(counted[key], totals), listed)
        for key, _, totals in _totals(spec, known, pair, run.thresholds)
    )
    alive = {gateway.incarnation for gateway in known}
    gone = tuple(item for item in run.seen if item.incarnation not in alive)[-MOST_GONE:]
    medians = limits.paces(listed, list(splits(known, pair)))
    return _fitting(replace(run, seen=(*gone, *present), paces=medians), len(listed))


def _seen(key: tuple[str, int], totals: Totals, listed: Sequence[CounterColumn]) -> Seen:
    """Counters as the run keeps them: by metric, without zeros."""
    counts = {
        column.name: MetricCounts(*four)
        for place, column in enumerate(listed)
        if any(four := totals[SPLIT + PER_METRIC * place :][:PER_METRIC])
    }
    return Seen(*key, totals[0], totals[1], counts)


def _totals_of(item: Seen, listed: Sequence[CounterColumn]) -> Totals:
    """The counters as `_totals` has them."""
    fours = (item.counts.get(column.name, MetricCounts()) for column in listed)
    numbers = (n for it in fours for n in (it.canary_units, it.stable_units, it.canary_bad, it.stable_bad))
    return item.canary_assigned, item.stable_assigned, *numbers


def _counted(run: RunStatus, gateways: Iterable[Gateway]) -> tuple[Gateway, ...]:
    """The gateways without those for whose counters there was no room.

    Requests are split within each gateway, so any choice of gateways compares both sides fairly.
    """
    left_out, counted = set(run.left_out), {item.incarnation for item in run.seen}
    full = len(left_out) >= MOST_LEFT_OUT  # whether another one was left out is not known any more
    return tuple(
        gateway
        for gateway in gateways
        if gateway.incarnation in counted or not (full or gateway.incarnation in left_out)
    )


def _fitting(run: RunStatus, listed: int) -> RunStatus:
    """The run with the counters for which there is room; gateways whose counters are dropped are not counted again.

    `listed`: number of columns.
    """
    most = max(1, min(MOST_SEEN, MOST_SEEN_CELLS // max(1, listed)))
    if len(run.seen) <= most:
        return run
    kept: list[Seen] = []
    dropped: list[str] = []
    for incarnation in dict.fromkeys(item.incarnation for item in run.seen):
        own = [item for item in run.seen if item.incarnation == incarnation]
        if len(kept) + len(own) <= most:
            kept += own
        else:
            dropped.append(incarnation)
    left_out = tuple(dict.fromkeys((*run.left_out, *dropped)))
    return replace(run, seen=tuple(kept), left_out=left_out[:MOST_LEFT_OUT])


def _counted_once(before: Totals, now: Totals) -> Totals:
    """The counters by new thresholds. Open requests that were slow by the old ones, and no longer are, stay counted."""
    found = list(now)
    for place in range(SPLIT, len(now), PER_METRIC):
        for side in (0, 1):
            open_before = max(0, before[place + side] - now[place + side])
            found[place + side] += open_before
            found[place + 2 + side] += open_before
    return tuple(found)


def has_requests(gateways: Iterable[Gateway], pair: tuple[str, str]) -> bool:
    """Whether canary was assigned any request that was split by weight, or got or answered a copy of one."""
    return any(
        (weight and sides[0].assigned)
        or any(map(_compared, sample.shadow.get(pair[0], {}).values()))
        or sample.agreements.get(pair[0], zero(AgreementCounts)).compared
        or twins.are_sent(sample, pair[0])
        for _, sample, sides, weight in splits(gateways, pair)
    )


def _compared(pairs: ShadowCounts) -> int:
    return pairs.pairs + pairs.no_floor


def timed(run: RunStatus, gateways: Iterable[Gateway], pair: tuple[str, str]) -> tuple[str, ...]:
    """Kinds of latency that any response of either revision had so far: traffic without streams has no itl."""
    sides = (
        sample.revisions[name]
        for gateway in gateways
        for sample in gateway.samples
        for name in pair
        if name in sample.revisions
    )
    found = {kind for side in sides for kind, strata in side.slow.items() if any(map(any, strata.values()))}
    return tuple(sorted(found | set(run.timed)))


def applicable(run: RunStatus, spec: AnalysisSpec) -> AnalysisSpec:
    """The template without latencies of kinds that no response has, after enough requests, if one metric still decides.

    A latency that stable has and canary lacks stays: that is no data, and no data is no pass.
    """
    plain = {metric.name for metric in spec.metrics if not (metric.latency or metric.kind is Kind.PAIRED_DRIFT)}
    least = spec.min_samples.pairs if spec.compares_pairs else spec.min_samples.canary_requests
    requests = max(
        (sum(min(e.canary_units, e.stable_units) for e in item.epochs) for item in run.counts if item.metric in plain),
        default=0,
    )
    kept = tuple(metric for metric in spec.metrics if _has_time(run, metric))
    decides = any(not metric.dry_run for metric in kept)
    return replace(spec, metrics=kept) if requests >= least and decides else spec


def _has_time(run: RunStatus, metric: MetricSpec) -> bool:
    latency = slower(metric.event)
    return latency is None or latency.kind in run.timed


def _summed(run: RunStatus, spec: AnalysisSpec, weight: int, clock: int, sums: list[int]) -> RunStatus:
    """The run with `sums`, by metric, added to the epoch of this weight and clock; a new epoch comes last.

    The judge bets on each epoch as the start of a regression, so their order is fixed, and only the weight and the
    clock start one, never the number of bad events.
    """
    names = [column.name for column in columns(spec)]
    epochs = {item.metric: item.epochs for item in run.counts} or dict.fromkeys(names, ())
    split = run.assigned
    weights = [epoch.weight for epoch in split]
    places = [place for place, known in enumerate(weights) if known == weight]
    at = next((place for place in places if run.clocks[place] == clock), None)
    if at is None and places and len(weights) >= min(MOST_EPOCHS, MOST_CELLS // len(names)):
        at = places[-1]
    if at is None:
        run, at = replace(run, clocks=(*run.clocks, clock)), len(weights)
        epochs = {name: (*epochs[name], Epoch(weight)) for name in names}
        split = (*split, Epoch(weight))
    counts = []
    for index, name in enumerate(names):
        begin = SPLIT + index * PER_METRIC
        counts.append(Counts(name, _with(epochs[name], at, sums[begin : begin + PER_METRIC])))
    return replace(run, counts=tuple(counts), assigned=_with(split, at, [*sums[:SPLIT], 0, 0]))


def _with(epochs: tuple[Epoch, ...], at: int, more: list[int]) -> tuple[Epoch, ...]:
    return (*epochs[:at], _epoch(epochs[at], more), *epochs[at + 1 :])


def _epoch(epoch: Epoch, more: list[int]) -> Epoch:
    canary_units, stable_units, canary_bad, stable_bad = (
        old + new
        for old, new in zip(
            (epoch.canary_units, epoch.stable_units, epoch.canary_bad, epoch.stable_bad), more, strict=True
        )
    )
    # A process may count a failure a moment before the end of its request.
    return Epoch(epoch.weight, canary_units, stable_units, min(canary_bad, canary_units), min(stable_bad, stable_units))


def splits(
    gateways: Iterable[Gateway], pair: tuple[str, str]
) -> Iterator[tuple[Gateway, GenerationCounts, Sides, int]]:
    """Samples of generations that compare canary with stable or a baseline, each with both sides and canary's percent.

    The percent is 0 where no request is split and canary gets copies only.
    """
    canary, stable = pair
    for gateway in gateways:
        for sample in gateway.samples if gateway.incarnation else ():
            control, weight = _control(sample.weights, pair)
            copied = canary in sample.shadow or canary in sample.twins or canary in sample.agreements
            if weight or (copied and stable in sample.weights):
                sides = tuple(sample.revisions.get(name, no_requests()) for name in (canary, control))
                yield gateway, sample, sides, weight


def _control(weights: Mapping[str, int], pair: tuple[str, str]) -> tuple[str, int]:
    """The revision that canary is compared with under these weights, and canary's percent of the requests of both.

    The percent is 0 where these weights allow no comparison.
    """
    canary, stable = pair
    baseline, weight = baseline_of(stable), weights.get(canary, 0)
    if baseline in weights:
        return baseline, HALF if 0 < weight == weights[baseline] else 0
    return stable, weight if 0 < weight < 100 and weights.get(stable) == 100 - weight else 0


def _totals(
    spec: AnalysisSpec, gateways: Iterable[Gateway], pair: tuple[str, str], thresholds: Thresholds
) -> Iterator[tuple[tuple[str, int], int, Totals]]:
    """For each sample: (incarnation, generation), weight, and the counters in the order of `Seen`."""
    listed = columns(spec)
    for gateway, sample, sides, weight in splits(gateways, pair):
        totals = [side.assigned if weight else 0 for side in sides]
        for column in listed:
            if column.metric.is_paired:
                totals += twins.counted(column, sample, pair[0])
            elif column.metric.of_agreement:
                totals += twins.agreements(column, sample.agreements.get(pair[0]) or zero(AgreementCounts))
            elif column.drift:
                totals += _drift(column, sample.shadow.get(pair[0], {}))
            elif not weight:
                totals += [0] * PER_METRIC
            else:
                found = [_bad(column, side, gateway, thresholds, canary=place == 0) for place, side in enumerate(sides)]
                totals += [requests for requests, _ in found] + [bad for _, bad in found]
        yield (gateway.incarnation, sample.generation), weight, tuple(totals)


def _drift(column: CounterColumn, shadow: Mapping[str, ShadowCounts]) -> tuple[int, int, int, int]:
    """Mirrored prompts, for canary and again for a second stable pod, and those where only the one or other differs."""
    pairs = shadow.get(DRIFT_EVENTS[column.metric.event], zero(ShadowCounts))
    if column.part is not ColumnPart.NO_FLOOR:
        return pairs.pairs, pairs.pairs, pairs.canary_only, pairs.second_only
    return pairs.no_floor, pairs.no_floor, pairs.no_floor_differs, 0


def _predicted(column: CounterColumn, side: RevisionCounts) -> tuple[int, int]:
    """Sessions with a prediction, and those that could not be read; for a bin, readable ones, and those in the bin."""
    read = sum(side.predictions.bins)
    if column.part is ColumnPart.BIN:
        return read, side.predictions.bins[column.place] if side.predictions.bins else 0
    return read + side.predictions.unread, side.predictions.unread


def _bad(
    column: CounterColumn, side: RevisionCounts, gateway: Gateway, thresholds: Thresholds, *, canary: bool
) -> tuple[int, int]:
    """Units that the metric compares, and bad ones among them: sessions, each counted once.

    An unfinished request is bad as soon as it takes longer than its limit, and does not count before: each request
    counts once its side of the limit is known.
    """
    latency, event = slower(column.metric.event), column.metric.event
    if column.metric.of_feedback:
        return side.rated, side.wrong
    if column.metric.of_predictions:
        return _predicted(column, side)
    if latency is None:
        if event == COMPOSITE and BAD_EVENTS[event] not in side.events:
            return 0, 0  # a gateway of a former release
        return side.units, side.events.get(BAD_EVENTS[event], 0)
    bounds, kind = gateway.bounds.get(latency.kind, ()), latency.kind
    known = bad = 0
    for limit in (item for item in thresholds if item.metric == column.name):
        seconds = limit.canary_seconds if canary and limit.canary_seconds is not None else limit.seconds
        above = bisect_right(bounds, seconds)
        ended = side.slow.get(kind, {}).get(limit.stratum, ())
        late = sum(side.late.get(kind, {}).get(limit.stratum, ())[above:])
        known, bad = known + sum(ended) + late, bad + sum(ended[above:]) + late
    return known, bad
