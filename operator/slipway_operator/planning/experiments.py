"""What gateways follow of an Experiment, and its status (pure).

A spec is published when all that it names is there and its units are no other experiment's; else the last one that was
published stays, so that a mistake changes no traffic.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from slipway_contracts.experiments.assignment import AssignedArm, Assignment
from slipway_contracts.experiments.spec import MOST_EXPERIMENTS, ExperimentArm, ExperimentSpec, control_of, layer_of
from slipway_contracts.model_routes.references import namespace_of
from slipway_contracts.model_routes.spec import DEPLOYMENT, ModelRouteSpec, names_of
from slipway_contracts.model_routes.spec import KIND as MODEL_ROUTE
from slipway_operator.api.v1alpha1.experiment import ENDED, PAUSED, PENDING, RUNNING, ExperimentStatus
from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions.transitions import READ_BY_KSTATUS, awaited, carry_over, condition, failed
from slipway_operator.planning.experiment_counts import Counted

ACCEPTED, RESOLVED, MISMATCH = "Accepted", "ResolvedRefs", "SampleRatioMismatch"
INVALID, OVERLAP, OTHER_UNIT, TOO_MANY = "Invalid", "AllocationOverlap", "LayerUnitMismatch", "TooManyExperiments"
NO_MODEL, NO_ARM, NO_REVISION, NO_RULE = "ModelNotFound", "ArmNotFound", "RevisionNotFound", "RuleNotFound"
MOST_MESSAGE = 1024
_STAYS = "gateways follow the last spec that was accepted"


@dataclass(frozen=True, slots=True)
class DeploymentFacts:
    """A ModelDeployment, as far as experiments look at it. `revisions`: hashes and versions that may serve."""

    model: str
    revisions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ExperimentWorld:
    """What experiments may name, by `namespace/name`. `published`: what gateways follow now."""

    deployments: Mapping[str, DeploymentFacts]
    routes: Mapping[str, ModelRouteSpec]
    published: Mapping[str, Assignment]


class Problem(NamedTuple):
    """Why a spec is not published. `kind`: of the condition that says so."""

    kind: str
    reason: str
    message: str


def propose(
    name: str, generation: int, spec: ExperimentSpec, world: ExperimentWorld, now: datetime
) -> Assignment | Problem:
    """What gateways are to follow of a spec, or why they cannot."""
    found = _assignment(name, generation, spec, world, now)
    return found if isinstance(found, Problem) else _conflict(name, found, world.published, now) or found


def _assignment(
    name: str, generation: int, spec: ExperimentSpec, world: ExperimentWorld, now: datetime
) -> Assignment | Problem:
    namespace = namespace_of(name)
    subject = _subject(namespace, spec.model, world)
    if not subject:
        message = f"there is no ModelRoute or ModelDeployment of namespace {namespace} with the name {spec.model}"
        return Problem(RESOLVED, NO_MODEL, message)
    if problem := _rules_problem(subject, spec, world):
        return problem
    arms: list[AssignedArm] = []
    for arm in spec.arms:
        assigned = _arm(namespace, subject, arm, world.deployments)
        if isinstance(assigned, Problem):
            return assigned
        arms.append(assigned)
    made = Assignment(
        generation,
        1,
        now,
        subject,
        spec.rules,
        spec.unit.type,
        spec.unit.header,
        layer_of(name, spec),
        spec.allocation.start,
        spec.allocation.end,
        spec.holdout_percentage,
        tuple(arms),
        control_of(spec),
        spec.outcomes,
        spec.start_time,
        spec.end_time,
        spec.paused or None,
    )
    return _versioned(made, world.published.get(name))


def _versioned(made: Assignment, former: Assignment | None) -> Assignment:
    """With the version and time of the former assignment, unless units of arms changed."""
    if former is None:
        return made
    same = _compared(made) == _compared(former)
    version = former.version if same else former.version + 1
    return replace(made, version=version, since=former.since if same else made.since)


def _compared(assignment: Assignment) -> tuple[object, ...]:
    """What counts of one version have in common."""
    one = assignment
    return one.subject, one.rules, one.unit_type, one.unit_header, one.layer, one.arms, one.control


def _subject(namespace: str, model: str, world: ExperimentWorld) -> str:
    """What has a name: a ModelRoute before a ModelDeployment, as for gateways. Empty: nothing of the namespace does."""
    for name, route in sorted(world.routes.items()):
        if namespace_of(name) == namespace and model in names_of(name.partition("/")[2], route):
            return f"{MODEL_ROUTE}/{name}"
    listed = {name: facts for name, facts in world.deployments.items() if namespace_of(name) == namespace}
    by_model = sorted(name for name, facts in listed.items() if facts.model == model)
    own = f"{namespace}/{model}"
    found = by_model[0] if by_model else own if own in listed else ""
    return f"{DEPLOYMENT}/{found}" if found else ""


def _rules_problem(subject: str, spec: ExperimentSpec, world: ExperimentWorld) -> Problem | None:
    kind, _, name = subject.partition("/")
    rules = {rule.name for rule in world.routes[name].rules} if kind == MODEL_ROUTE else set()
    missing = [rule for rule in spec.rules if rule not in rules]
    return Problem(RESOLVED, NO_RULE, f"{subject} has no rule {missing[0]}") if missing else None


def _arm(
    namespace: str, subject: str, arm: ExperimentArm, deployments: Mapping[str, DeploymentFacts]
) -> AssignedArm | Problem:
    kind, _, own = subject.partition("/")
    if arm.deployment_ref is None and kind != DEPLOYMENT:
        message = f"arm {arm.name} has no deploymentRef, and the model is a ModelRoute: write the ModelDeployment"
        return Problem(RESOLVED, NO_ARM, message)
    target = f"{namespace}/{arm.deployment_ref.name}" if arm.deployment_ref else own
    facts = deployments.get(target)
    if facts is None:
        return Problem(RESOLVED, NO_ARM, f"there is no ModelDeployment {target}, which arm {arm.name} names")
    if arm.revision is not None and arm.revision not in facts.revisions:
        message = f"no revision {arm.revision} of ModelDeployment {target} may serve now, which arm {arm.name} names"
        return Problem(RESOLVED, NO_REVISION, message)
    return AssignedArm(arm.name, arm.weight, target, arm.revision)


def _conflict(name: str, made: Assignment, published: Mapping[str, Assignment], now: datetime) -> Problem | None:
    """What other experiments of the namespace have already; one that has ended has nothing."""
    namespace = namespace_of(name)
    others = {
        other: one
        for other, one in sorted(published.items())
        if other != name and namespace_of(other) == namespace and not _has_ended(one, now)
    }
    if name not in published and len(others) >= MOST_EXPERIMENTS:
        message = f"namespace {namespace} has {len(others)} experiments that have not ended: end or delete one"
        return Problem(ACCEPTED, TOO_MANY, message)
    for other, one in others.items():
        if one.layer != made.layer:
            continue
        where = f"Experiment {other.partition('/')[2]} of the same layer"
        if (one.unit_type, one.unit_header) != (made.unit_type, made.unit_header):
            return Problem(ACCEPTED, OTHER_UNIT, f"{where} has other units, so they could not exclude each other")
        if made.first < one.end and one.first < made.end:
            message = f"{where} has units from {one.first} to {one.end} percent: write an allocation without these"
            return Problem(ACCEPTED, OVERLAP, message)
    return None


def _has_ended(assignment: Assignment, now: datetime) -> bool:
    return assignment.end_time is not None and assignment.end_time <= now


def phase_of(assignment: Assignment | None, now: datetime) -> str:
    """Whether units get arms."""
    if assignment is None or (assignment.start_time is not None and now < assignment.start_time):
        return PENDING
    if _has_ended(assignment, now):
        return ENDED
    return PAUSED if assignment.paused else RUNNING


def status(
    generation: int,
    proposal: Assignment | Problem,
    counted: Counted,
    former: ExperimentStatus,
    now: datetime,
) -> ExperimentStatus:
    """The status as it is now; conditions that did not change keep the transition time of `former`.

    `counted`: what gateways counted of the assignment that is followed, which is the former one after a problem.
    """
    problem = proposal if isinstance(proposal, Problem) else None
    followed = former.assignment if isinstance(proposal, Problem) else proposal
    accepted = _accepted(problem, followed, now)
    fresh = (accepted, _resolved(problem, now), _mismatch(counted, now), *_for_tools(problem, accepted, now))
    return ExperimentStatus(
        generation,
        phase_of(followed, now),
        counted.verdict,
        followed,
        counted.arms,
        counted.gateways,
        counted.lost,
        carry_over(fresh, former.conditions),
    )


def _accepted(problem: Problem | None, followed: Assignment | None, now: datetime) -> Condition:
    if problem is None:
        return condition(ACCEPTED, True, ACCEPTED, "gateways follow the spec", now)
    stays = _STAYS if followed is not None else "no request takes part"
    reason = problem.reason if problem.kind == ACCEPTED else "NotResolved"
    return condition(ACCEPTED, False, reason, f"{problem.message}; {stays}"[:MOST_MESSAGE], now)


def _for_tools(problem: Problem | None, accepted: Condition, now: datetime) -> tuple[Condition, ...]:
    """Stalled or Reconciling, for tools that wait for an apply: what it names may come with the same one."""
    if problem is None:
        return ()
    shown = awaited if problem.kind == RESOLVED else failed
    return (shown(accepted.reason, accepted.message, now),)


def _resolved(problem: Problem | None, now: datetime) -> Condition:
    if problem is not None and problem.kind == RESOLVED:
        return condition(RESOLVED, False, problem.reason, problem.message[:MOST_MESSAGE], now)
    return condition(RESOLVED, True, RESOLVED, "the model and all arms are there", now)


def _mismatch(counted: Counted, now: datetime) -> Condition:
    holds, reason, message = counted.split
    return condition(MISMATCH, holds, reason, message[:MOST_MESSAGE], now)


def events(former: ExperimentStatus, fresh: ExperimentStatus) -> tuple[Event, ...]:
    """Events for conditions whose reason changed to a bad one, or that were bad, and for a phase that changed."""
    return (*_condition_events(former.conditions, fresh.conditions), *_phase_events(former, fresh))


def _condition_events(former: Collection[Condition], fresh: Iterable[Condition]) -> Iterator[Event]:
    before = {one.type: one for one in former}
    for one in (item for item in fresh if item.type not in READ_BY_KSTATUS):
        was, bad = before.get(one.type), "True" if one.type == MISMATCH else "False"
        if one.status == bad and (was is None or was.reason != one.reason):
            yield Event("Warning", one.reason, one.message)
        elif was is not None and was.status == bad and one.status != bad:
            yield Event("Normal", one.reason, one.message)


def _phase_events(former: ExperimentStatus, fresh: ExperimentStatus) -> Iterator[Event]:
    if former.phase != fresh.phase and fresh.phase in (RUNNING, PAUSED, ENDED):
        message = {
            RUNNING: "units get arms",
            PAUSED: "no unit gets an arm for now",
            ENDED: "no unit gets an arm any more",
        }
        yield Event("Normal", f"Experiment{fresh.phase}", message[fresh.phase])
