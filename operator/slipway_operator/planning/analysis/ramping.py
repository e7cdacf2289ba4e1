"""The ramp: at each reading the weight whose possible harm fits what is left of maxHarm.

Two bounds limit the harm of a request to the new revision: the one that the twin shadow proved, and that of the
responses to clients so far, each at half of falsePromoteRate. Before each reading the weight is fixed by bounds that
were proved before, and what it may have cost is added to what is spent. After the verdict the revision bakes.
"""

import math
from dataclasses import replace
from datetime import timedelta

from slipway_operator.api.v1alpha1.analysis_run import Outcome, RampRun, Reason, RunStatus
from slipway_operator.api.v1alpha1.status import Rollout, StepRamp
from slipway_operator.judging.margins import paired
from slipway_operator.judging.margins.extra import rate_upper
from slipway_operator.judging.margins.paired import FormerBad, PairCounts
from slipway_operator.judging.margins.ramp import LOOK_S, WEIGHTS, least_weight, next_weight
from slipway_operator.model.analysis.spec import AnalysisSpec, MetricSpec, of_probes
from slipway_operator.model.analysis.template import COMPOSITE
from slipway_operator.model.analysis.verdict import Verdict
from slipway_operator.model.deployment.strategy import Ramp
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of

THOUSAND = 1000
FADES = 0.8  # of the former rate is kept at least: counters decrease as gateways forget old generations, or restart


def proved(run: RunStatus, spec: AnalysisSpec) -> float | None:
    """The bound on extra bad responses per 1,000 that a twin shadow has proved, for a later ramp.

    None where the template has no bound on all bad responses. Probes count for the verdict and not here: the ramp may
    harm clients, and probes are no clients' requests.
    """
    metric = _of_bad(spec)
    if metric is None or run.shadow is None:
        return None
    epochs = next((item.epochs for item in run.counts if item.metric == metric.name), ())
    former = next(
        (FormerBad(one.bad, one.units) for one in run.shadow.former if one.metric == metric.name), FormerBad()
    )
    probes = next((item.epochs for item in run.counts if item.metric.endswith(of_probes(""))), ())
    if any(epoch.canary_units for epoch in probes):
        epochs = tuple(
            replace(
                all_,
                canary_units=all_.canary_units - own.canary_units,
                stable_units=all_.stable_units - own.stable_units,
                canary_bad=all_.canary_bad - own.canary_bad,
                stable_bad=all_.stable_bad - own.stable_bad,
            )
            for all_, own in zip(epochs, probes, strict=True)
        )
    found = paired.bound(
        metric,
        PairCounts.of(epochs, run.shadow.open, on_failure=run.shadow.on_failure),
        former,
        spec.false_promote_rate / 2,
    )
    return found.at_most if found else None


def lacks(spec: AnalysisSpec) -> str:
    """What a template lacks for a ramp; empty where it has all."""
    if _of_bad(spec):
        return ""
    return f"a ramp needs a metric of event {COMPOSITE} with maxExtra and without kind: add one, or write llm-release"


def begun(course: Course, at: Situation, step: Ramp) -> RampRun:
    """A ramp at its start, with the least weight until the rate of requests is known.

    A ramp that begins again keeps what it has spent. One whose run was lost also keeps its weight until it is read.
    """
    rollout = rollout_of(course)
    shadow, least = rollout.shadow_at_most, min(WEIGHTS[0], step.max_weight)
    bound = float(THOUSAND) if shadow is None else shadow
    former = rollout.analysis if rollout.analysis and rollout.analysis.id == rollout.step_token else None
    spent = former.ramp.spent if former and former.ramp else 0.0
    if former and former.ramp and not former.run:  # the run is lost
        least, bound = former.ramp.weight, former.ramp.at_most
    return RampRun(
        least, step.max_harm, spent, bound, shadow_at_most=shadow, assigned=_assigned(at), changed_at=at.now
    )  # fmt: skip


def read(
    course: Course,
    at: Situation,
    before: RunStatus,
    run: RunStatus,
    spec: AnalysisSpec,
    step: Ramp,
    *,
    complete: bool,
) -> RampRun | None:
    """The ramp after a reading. `before`: the run at the last one. `complete`: all ready gateways responded."""
    ramp = before.ramp
    if ramp is None:
        return None
    if ramp.passed_at:
        return _baking(course, at, ramp, step)
    cost = ramp.at_most / THOUSAND * max(0, _units(run) - _units(before))
    ramp = replace(ramp, max_harm=step.max_harm, spent=round(ramp.spent + cost, 3))
    if not complete:
        return replace(ramp, weight=min(ramp.weight, WEIGHTS[0])) if run.stale else ramp
    known = replace(_bounded(ramp, run, spec), rate=_rate(at, ramp, before, run), assigned=_assigned(at))
    return _weighted(at, known, step)


def judged(at: Situation, run: RunStatus, step: Ramp) -> RunStatus:
    """The run as judged; a revision that has just passed gets the weight of the bake."""
    ramp, verdict = run.ramp, run.verdict
    if ramp is None or ramp.passed_at or verdict is None or verdict.outcome is not Outcome.PASS:
        return run
    return replace(run, ramp=replace(ramp, passed_at=at.now, changed_at=at.now, weight=step.end_weight))


def has_passed(rollout: Rollout) -> bool:
    """Whether the revision has passed the ramp of the present step, and bakes."""
    reference = rollout.analysis
    ramp = reference.ramp if reference and reference.id == rollout.step_token else None
    return ramp is not None and ramp.passed_at is not None


def is_over(at: Situation, ramp: StepRamp, step: Ramp, *, late: bool) -> bool:
    """Whether the revision has passed the ramp and baked.

    `late`: the time of the step is over, so a bake that could not begin, because pods for its weight are missing, is
    not waited for.
    """
    if ramp.passed_at is None:
        return False
    return step.bake_s == 0 or (at.now >= ramp.bake_until if ramp.bake_until else late)


def spent_up(verdict: Verdict, run: RunStatus) -> Verdict:
    """The verdict; with the reason HarmSpent where it is inconclusive and no weight fits the rest of maxHarm."""
    ramp = run.ramp
    if ramp is None or ramp.weight or verdict.outcome is not Outcome.INCONCLUSIVE:
        return verdict
    return replace(verdict, reason=Reason.HARM_SPENT, message=f"{sentence(ramp)}; {verdict.message}", seconds_left=None)


def sentence(ramp: RampRun | StepRamp) -> str:
    """What the ramp may have cost, and why its weight is not higher."""
    cost = f"may have cost {ramp.spent:.1f} of {ramp.max_harm} extra bad responses"
    if not ramp.weight:
        return f"the ramp {cost}, and no weight fits the rest while at most {ramp.at_most:g} per 1,000 are proved"
    return f"the ramp {cost}, at most {ramp.at_most:g} per 1,000 are proved"


def _weighted(at: Situation, ramp: RampRun, step: Ramp) -> RampRun:
    """The ramp with its next weight: a lower one at once, a higher one when the present one was in force for a look."""
    u, live, spent = ramp.at_most / THOUSAND, ramp.live_at_most / THOUSAND, ramp.spent
    least = min(least_weight(u, spent, step.max_harm, ramp.rate), step.max_weight)
    fits = max(least, next_weight(u, live, spent, step.max_harm, ramp.rate, step.max_weight))
    seen = ramp.rate > 0 and at.traffic_synced and at.elapsed_s(ramp.changed_at or at.now) >= LOOK_S
    may_increase = seen and not at.holds
    if fits == ramp.weight or (fits > ramp.weight and not may_increase):
        return ramp
    return replace(ramp, weight=fits, changed_at=at.now)


def _baking(course: Course, at: Situation, ramp: RampRun, step: Ramp) -> RampRun:
    """The ramp, with the end of its bake as soon as all gateways route by the weight of the bake."""
    if ramp.bake_until or not at.traffic_synced or at.weight(course.target) < ramp.weight:
        return ramp
    return replace(ramp, bake_until=at.now + timedelta(seconds=step.bake_s))


def _bounded(ramp: RampRun, run: RunStatus, spec: AnalysisSpec) -> RampRun:
    """The ramp with the bounds per 1,000 that the counts prove, rounded up: what is shown is proved."""
    metric = _of_bad(spec)
    epochs = next((item.epochs for item in run.counts if metric and item.metric == metric.name), ())
    bad, units = sum(epoch.canary_bad for epoch in epochs), sum(epoch.canary_units for epoch in epochs)
    level = spec.false_promote_rate / 2
    live = min(1.0, math.ceil(1e4 * float(rate_upper(bad, units, level))) / 1e4) * THOUSAND if units else THOUSAND
    live = round(float(live), 1)
    shadow = THOUSAND if ramp.shadow_at_most is None else ramp.shadow_at_most
    return replace(ramp, live_at_most=live, at_most=min(float(shadow), live))


def _rate(at: Situation, ramp: RampRun, before: RunStatus, run: RunStatus) -> float:
    """Requests per second to all revisions since the last reading, but at least FADES of the former rate.

    The gateways' own sums decrease when they forget an old generation, as after each change of the weight. What the run
    has added up does not, but it has only requests that were split.
    """
    seconds = max(1.0, at.elapsed_s(before.read_at))
    more = max(_assigned(at) - ramp.assigned, _split(run) - _split(before))
    return round(max(more / seconds, FADES * ramp.rate), 3)


def _assigned(at: Situation) -> int:
    """Units that gateways assigned by weight to any revision, as far as they still count them."""
    samples = (sample for gateway in at.observed.gateways if gateway.incarnation for sample in gateway.samples)
    return sum(side.assigned for sample in samples for side in sample.revisions.values())


def _split(run: RunStatus) -> int:
    return sum(epoch.canary_units + epoch.stable_units for epoch in run.assigned)


def _units(run: RunStatus) -> int:
    return sum(epoch.canary_units for epoch in run.assigned)


def _of_bad(spec: AnalysisSpec) -> MetricSpec | None:
    """The gating metric that bounds all bad responses; None where the template has none."""
    return next((one for one in spec.gating if one.event == COMPOSITE and one.max_extra is not None), None)
