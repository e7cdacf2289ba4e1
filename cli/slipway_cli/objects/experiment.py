"""Experiments: what their counts say, and which arm a unit gets and why; pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slipway_cli.api import Json
from slipway_cli.errors import CommandError
from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_contracts.experiments.assignment import HELD_OUT, OUTSIDE, Assignment, place, unit_key
from slipway_contracts.experiments.spec import HOLDOUT

GOOD = {"Accepted": "True", "ResolvedRefs": "True", "SampleRatioMismatch": "False"}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a unit is. `arm`: empty where it has none. `reasons`: why, in the order in which gateways look.

    `deployment`, `revision`: what serves it; empty: the ordinary way.
    """

    experiment: str
    unit: str
    tenant: str
    arm: str
    deployment: str
    revision: str
    reasons: tuple[str, ...]


def assignment_of(obj: Json) -> Assignment:
    """What gateways follow.

    Raises:
        CommandError: they follow nothing of it yet, or it cannot be read by this release.
    """
    name, raw = name_of(obj), (obj.get("status") or {}).get("assignment")
    if raw is None:
        raise CommandError(f"Experiment {name} is not followed yet: {'; '.join(problems(obj)) or 'it has no status'}")
    try:
        return read(Assignment, encoded(raw), "status.assignment")
    except UnreadableObject as error:
        raise CommandError(f"Experiment {name} cannot be read: {error}") from None


def name_of(obj: Json) -> str:
    """`namespace/name`."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def problems(obj: Json) -> list[str]:
    """Conditions that are not as they should be."""
    listed = (obj.get("status") or {}).get("conditions") or ()
    return [
        f"{one.get('type')} is {one.get('status')} ({one.get('reason')}): {one.get('message')}"
        for one in listed
        if one.get("status") != GOOD.get(str(one.get("type")), "True")
    ]


def explain(obj: Json, unit: str, tenant: str, now: datetime) -> Explanation:
    """Which arm a unit gets now, by the code that gateways run. Raises CommandError."""
    name, assignment = name_of(obj), assignment_of(obj)
    placed = place(name, assignment, unit_key(tenant, unit))
    reasons = list(_reasons(assignment, placed.position))
    if not assignment.runs(now):
        return Explanation(name, unit, tenant, "", "", "", (*reasons, _why_stopped(assignment, now)))
    if placed.result == HELD_OUT:
        reasons.append(f"the layer holds out {assignment.holdout} % of its units, and this is one: the ordinary way")
        return Explanation(name, unit, tenant, HOLDOUT, "", "", tuple(reasons))
    if placed.result == OUTSIDE or placed.arm is None:
        reasons.append("that is outside of the experiment: the ordinary way")
        return Explanation(name, unit, tenant, "", "", "", tuple(reasons))
    arm = placed.arm
    weights = ", ".join(f"{one.name} {one.weight} %" for one in assignment.arms)
    reasons.append(f"of the arms ({weights}) it has {arm.name} while names and weights stay")
    return Explanation(name, unit, tenant, arm.name, arm.deployment, arm.revision or "", tuple(reasons))


def _reasons(assignment: Assignment, position: float) -> Iterator[str]:
    yield f"the experiment is about {assignment.subject}, with units by {_unit(assignment)}"
    layer = assignment.layer
    shown = f"layer {layer}" if not layer.endswith("/") else "a layer of its own"
    yield f"in {shown} it is at {position:.2f} %, and the experiment has {assignment.first} to {assignment.end} %"


def _unit(assignment: Assignment) -> str:
    return f"header {assignment.unit_header}" if assignment.unit_header else assignment.unit_type


def _why_stopped(assignment: Assignment, now: datetime) -> str:
    if assignment.paused:
        return "the experiment is paused: the ordinary way"
    if assignment.start_time is not None and now < assignment.start_time:
        return f"the experiment begins at {assignment.start_time.isoformat()}: the ordinary way"
    return f"the experiment ended at {assignment.end_time.isoformat() if assignment.end_time else ''}: the ordinary way"


def explained_lines(explained: Explanation) -> list[str]:
    """The explanation as text."""
    whose = f" of tenant {explained.tenant}" if explained.tenant else ""
    revision = f", revision {explained.revision}" if explained.revision else ""
    end = f"arm {explained.arm}" if explained.arm else "no arm"
    where = f"ModelDeployment {explained.deployment}{revision}" if explained.deployment else "the ordinary way"
    shown = [f"Experiment {explained.experiment}, unit {explained.unit}{whose}"]
    return [*shown, *(f"   {reason}" for reason in explained.reasons), f"-> {end}: {where}"]


def explained_data(explained: Explanation) -> dict[str, Any]:
    """The explanation as JSON."""
    return {
        "experiment": explained.experiment,
        "unit": explained.unit,
        "tenant": explained.tenant,
        "arm": explained.arm,
        "deployment": explained.deployment,
        "revision": explained.revision,
        "reasons": list(explained.reasons),
    }


def status_lines(obj: Json) -> Iterator[str]:
    """What is known of an Experiment, but for the table of arms."""
    status, spec = obj.get("status") or {}, obj.get("spec") or {}
    yield f"Experiment {name_of(obj)} about {spec.get('model')}: {status.get('phase') or 'Pending'}"
    yield from (f"! {problem}" for problem in problems(obj))
    if lost := status.get("lost"):
        yield f"! {lost} exposures are in no log: see slipway_gateway_exposures_lost_total"
    yield f"Verdict: {status.get('verdict') or 'nothing is counted yet'}"


def arm_rows(obj: Json) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows of the arms, with one row for each outcome of an arm."""
    columns = ("arm", "weight", "units", "requests", "elsewhere", "outcome", "rated", "mean", "interval", "difference")
    rows: list[tuple[str, ...]] = []
    for arm in (obj.get("status") or {}).get("arms") or ():
        weight = arm.get("weight")
        head = (
            str(arm.get("name")),
            "" if weight is None else f"{weight} %",
            *(str(arm.get(field, 0)) for field in ("units", "requests", "elsewhere")),
        )
        outcomes: Sequence[Mapping[str, Any]] = arm.get("outcomes") or ({},)
        for number, outcome in enumerate(outcomes):
            rows.append((*(("",) * len(head) if number else head), *_outcome(outcome)))
    return columns, rows


def _outcome(outcome: Mapping[str, Any]) -> tuple[str, ...]:
    if not outcome.get("units"):
        return (str(outcome.get("name", "")), "0" if outcome else "", "", "", "")
    difference = ""
    if outcome.get("differenceLower") is not None:
        ends = (outcome["differenceLower"], outcome["differenceUpper"])
        difference = f"{outcome['difference']:+.4f} ({ends[0]:+.4f} to {ends[1]:+.4f})"
    interval = f"{outcome['lower']:.4f} to {outcome['upper']:.4f}"
    return str(outcome["name"]), str(outcome["units"]), f"{outcome['mean']:.4f}", interval, difference
