"""What spec.accuracy watches: adds what gateways counted, raises alarms, and decides on a rollback.

The status has all of it: what is counted of each gateway process, and the state of the evidence. Both are written at
once, so a restart of the operator or of a gateway changes no bit of what follows from the same counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta

from slipway_contracts.accuracy import OUTCOMES, AccuracyCounting, PublishedBins, is_sound
from slipway_contracts.counters import BINS
from slipway_operator.api.v1alpha1.accuracy_status import (
    FEEDBACK,
    MOST_ROLLED_BACK,
    MOST_WATCHED,
    PREDICTIONS,
    AccuracyMonitor,
    AccuracyStatus,
    RevisionAccuracy,
)
from slipway_operator.judging import watching
from slipway_operator.model.deployment.accuracy import AccuracyTerms, SignalTerms
from slipway_operator.planning.facts import process_counts
from slipway_operator.planning.facts.process_counts import Counts, Tally
from slipway_operator.planning.facts.revision import alarm_rollback
from slipway_operator.planning.facts.situation import Course, Situation

WRITE_S, IDLE_WRITE_S = 60.0, 86_400.0  # counts alone are written no more often, and nothing new once a day
READ_S = 20.0  # less than a gateway that is gone is remembered
_SIZES = {FEEDBACK: len(OUTCOMES), PREDICTIONS: BINS}


def look_again_s(course: Course, at: Situation) -> float | None:
    """Seconds until the counters are read again; None where nothing is watched."""
    return READ_S if at.spec.accuracy else None


def counting(course: Course, at: Situation) -> AccuracyCounting | None:
    """What gateways count, for the route table; None where nothing is watched."""
    terms = at.spec.accuracy
    if terms is None:
        return None
    feedback = terms.of(FEEDBACK) is not None or None
    if terms.of(PREDICTIONS) is None or course.stable is None:
        # Of nothing at all no field would be written, and the table would never be what it was before.
        return AccuracyCounting(feedback, terms.max_age_s) if feedback else None
    watched = at.status.accuracy.of(course.stable) if at.status.accuracy else None
    return AccuracyCounting(feedback, terms.max_age_s, course.stable, watched.bins if watched else None)


def alarms(watched: RevisionAccuracy | None) -> tuple[AccuracyMonitor, ...]:
    """The monitors that have an alarm now."""
    return tuple(one for one in watched.monitors if one.alarm_since is not None) if watched else ()


def rollback_of(at: Situation) -> tuple[str, str] | None:
    """The rollback in force, by the status as read: from which revision to which one."""
    target = alarm_rollback(at.spec, at.status, at.current)
    return (at.current, target) if target else None


def counted(course: Course, at: Situation) -> AccuracyStatus | None:
    """What the status has of it; the former value where nothing new is worth a write."""
    terms, former = at.spec.accuracy, at.status.accuracy
    if terms is None:
        return None
    renewed = _renewed(former, terms, course, at)
    if former is None or _differs(former, renewed) or _is_last_word(former, renewed, at):
        return renewed
    # What is invested as time passes is staked on what comes after its write: a day of it alone is worth one.
    since_s = at.elapsed_s(former.read_at)
    wait_s = IDLE_WRITE_S if _observations(former) == _observations(renewed) else WRITE_S
    return former if 0 <= since_s < wait_s else renewed


def _renewed(former: AccuracyStatus | None, terms: AccuracyTerms, course: Course, at: Situation) -> AccuracyStatus:
    before = process_counts.read(former.counted) if former else {}
    gateways = at.observed.gateways
    present = process_counts.fitting({one.incarnation: one.accuracy.by_key() for one in gateways}, before)
    revisions = _watched(former, course)
    names = [name for one in revisions for name in _names(one)]
    grown = _grown(present, before, names)
    elapsed = at.now - former.read_at if former else timedelta()
    moved = [_moved(one, terms, grown, elapsed, course, at) for one in revisions]
    kept, started = rollback_of(at), _started(course, at, moved)
    rollback, rolled_back = kept or started, former.rolled_back if former else ()
    return AccuracyStatus(
        at.now,
        tuple(moved),
        "/".join(rollback) if rollback else None,
        (*rolled_back, started[0])[-MOST_ROLLED_BACK:] if started else rolled_back,
        process_counts.noted(present, before, names),
    )


def _watched(former: AccuracyStatus | None, course: Course) -> list[RevisionAccuracy]:
    """The revisions that are watched, the serving one last; of too many the one that served first is forgotten."""
    known = list(former.revisions) if former else []
    if course.stable is None:
        return known
    others = [one for one in known if one.revision != course.stable]
    own = next((one for one in known if one.revision == course.stable), RevisionAccuracy(course.stable))
    return [*others[-(MOST_WATCHED - 1) :], own]


def _names(watched: RevisionAccuracy) -> list[str]:
    """The counters of a revision: of its labels, and of its predictions where its bins are known."""
    return [watched.revision, *([f"{watched.revision}/{watched.bins.id}"] if watched.bins else [])]


def _grown(present: Mapping[str, Counts], before: Mapping[str, Counts], names: list[str]) -> dict[str, Tally]:
    sums: dict[str, Tally] = {}
    for process, counts in present.items():
        for name, more in process_counts.growth(counts, before.get(process, {}), names):
            sums[name] = tuple(a + b for a, b in zip(sums.get(name, (0,) * len(more)), more, strict=True))
    return sums


def _moved(
    watched: RevisionAccuracy,
    terms: AccuracyTerms,
    grown: Mapping[str, Tally],
    elapsed: timedelta,
    course: Course,
    at: Situation,
) -> RevisionAccuracy:
    """The revision with what was counted since. Only while it serves is anything invested in its bets."""
    serves = watched.revision == course.stable
    known = {one.signal: one for one in watched.monitors}
    monitors, names = [], dict(zip((FEEDBACK, PREDICTIONS), _names(watched), strict=False))
    for signal in terms.signals:
        monitor = known.get(signal.signal) or AccuracyMonitor(signal.signal, at.now)
        size = _SIZES[signal.signal]
        more = grown.get(names.get(signal.signal, ""), ())
        tally = more if len(more) == size else (0,) * size
        monitors.append(watching.renewed(monitor, signal, tally, at.now, elapsed if serves else timedelta()))
    bins = watched.bins or (_first_bins(watched.revision, at) if serves and _reads_predictions(terms.signals) else None)
    return replace(watched, monitors=tuple(monitors), bins=bins)


def _reads_predictions(signals: Iterable[SignalTerms]) -> bool:
    return any(one.signal == PREDICTIONS for one in signals)


def _first_bins(revision: str, at: Situation) -> PublishedBins | None:
    """The bins that a gateway made of the first predictions of a revision: of several the first by its process."""
    made = {one.incarnation: one.accuracy.bins.get(revision) for one in at.observed.gateways}
    return next((bins for _, bins in sorted(made.items()) if bins is not None and is_sound(bins)), None)


def hindrance(course: Course, at: Situation, revisions: Iterable[RevisionAccuracy]) -> str:
    """Why an alarm of the serving revision starts no rollback; empty where it does.

    It does so once for each revision, only from what the spec describes, and never to one that has an alarm itself.
    """
    of, former = {one.revision: one for one in revisions}, course.previous
    gone_back = at.status.accuracy.rolled_back if at.status.accuracy else ()
    if course.rollout is not None or at.wanted != course.stable:
        return "a rollout goes on"
    if at.rolled_back:
        return "a former revision runs already"
    if course.stable in gone_back:
        return "there was one from this revision before"
    if at.holds or at.replicas == 0:
        return "nothing moves by itself now"
    if former is None or former == course.stable or former not in at.observed.snapshots:
        return "there is no record of a former revision"
    return f"the former revision {former} has an alarm too" if alarms(of.get(former)) else ""


def _started(course: Course, at: Situation, revisions: list[RevisionAccuracy]) -> tuple[str, str] | None:
    """The rollback that an alarm starts now: from which revision to which one."""
    serving = next((one for one in revisions if one.revision == course.stable), None)
    rolls_back = at.spec.accuracy is not None and at.spec.accuracy.rolls_back
    if not rolls_back or not alarms(serving) or hindrance(course, at, revisions):
        return None
    return at.current, course.previous or ""


def _observations(status: AccuracyStatus) -> tuple[object, ...]:
    return status.counted, [[one.counts for one in watched.monitors] for watched in status.revisions]


def _differs(former: AccuracyStatus, renewed: AccuracyStatus) -> bool:
    """Whether more than counts changed: what is watched, an alarm, a reference, or a rollback."""
    return _decided(former) != _decided(renewed)


def _decided(status: AccuracyStatus) -> tuple[object, ...]:
    monitors = [
        (
            watched.revision,
            watched.bins,
            one.signal,
            one.limits,
            one.reference_rule,
            one.reference_until,
            one.alarm_since,
        )
        for watched in status.revisions
        for one in watched.monitors
    ]
    return [watched.revision for watched in status.revisions], monitors, status.rollback


def _is_last_word(former: AccuracyStatus, renewed: AccuracyStatus, at: Situation) -> bool:
    """Whether a gateway that is gone has counts that are not written: its last report is kept for a moment alone."""
    before, after = (process_counts.read(status.counted) for status in (former, renewed))
    gone = (one.incarnation for one in at.observed.gateways if one.gone and one.incarnation in before)
    return any(before[process] != after.get(process) for process in gone)
