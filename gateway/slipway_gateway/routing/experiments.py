"""Experiments of a table: which of them are followed, and the arms of requests (pure).

The operator publishes what it has accepted in `status.assignment`. Gateways follow that and nothing else of an
Experiment, and only while all deployments and revisions of its arms are there: an experiment with one arm less would
compare nothing, so its requests take the ordinary way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_contracts.experiments.assignment import AssignedArm, Assignment
from slipway_contracts.experiments.spec import FEWEST_ARMS, MOST_ARMS
from slipway_contracts.model_routes.references import namespace_of
from slipway_contracts.model_routes.spec import DEPLOYMENT
from slipway_contracts.route_table import Backend


@dataclass(frozen=True, slots=True)
class PublishedExperiment:
    """An Experiment as gateways follow it. `name`: `namespace/name`. `created`: RFC 3339 in UTC."""

    name: str
    uid: str
    created: str
    assignment: Assignment

    @property
    def since_s(self) -> float:
        """Unix time from which its version is followed; 0: not known."""
        return self.assignment.since.timestamp() if self.assignment.since else 0.0

    def runs(self, now_s: float) -> bool:
        """Whether units get arms at a Unix time."""
        return self.assignment.runs(datetime.fromtimestamp(now_s, UTC))


class ChosenArm(msgspec.Struct, frozen=True):
    """What an experiment chose for a request.

    `arm`: its name, or HOLDOUT. `unit`: as `unit_key` has it. `deployment`: `namespace/name` of the one that should
    serve it. `revision`: the one that should; empty: any of its split.
    """

    experiment: PublishedExperiment
    arm: str
    unit: str
    deployment: str
    revision: str = ""


def subject_of(kind: str, name: str) -> str:
    """How assignments name what an Experiment is about. `name`: `namespace/name`."""
    return f"{kind}/{name}"


def parse_experiment(obj: Mapping[str, Any]) -> PublishedExperiment | None:
    """None: nothing of it is published yet. Raises UnreadableObject: the message names the field."""
    meta = obj["metadata"]
    raw = (obj.get("status") or {}).get("assignment")
    if raw is None:
        return None
    name, assignment = f"{meta['namespace']}/{meta['name']}", read(Assignment, encoded(raw), "status.assignment")
    if problem := _problem(namespace_of(name), assignment):
        raise UnreadableObject(f"status.assignment: {problem}")
    return PublishedExperiment(name, meta.get("uid") or "", meta.get("creationTimestamp") or "", assignment)


def _problem(namespace: str, assignment: Assignment) -> str:
    """Why an assignment cannot be followed; empty where it can."""
    arms = assignment.arms
    if not FEWEST_ARMS <= len(arms) <= MOST_ARMS or any(arm.weight < 0 for arm in arms):
        return f"an experiment has {FEWEST_ARMS} to {MOST_ARMS} arms, whose weights are not negative"
    if sum(arm.weight for arm in arms) != 100 or len({arm.name for arm in arms}) < len(arms):
        return "arms have names of their own, and weights that are 100 together"
    places = [arm.deployment for arm in arms] + [assignment.subject.partition("/")[2]]
    if any(namespace_of(place) != namespace for place in places):
        return "an experiment is about its own namespace"
    return ""


def revision_named(backends: Iterable[Backend], name: str) -> str:
    """The revision of a hash or version; empty where no backend has it."""
    return next((backend.revision for backend in backends if name in (backend.revision, backend.version)), "")


def by_subject(
    experiments: Iterable[PublishedExperiment], backends_of: Mapping[str, tuple[Backend, ...]]
) -> dict[str, tuple[PublishedExperiment, ...]]:
    """The experiments that are followed, by what they are about, the oldest first. `backends_of`: by deployment."""
    listed: dict[str, list[PublishedExperiment]] = {}
    for experiment in sorted(experiments, key=lambda one: (one.created, one.name)):
        if all(_is_there(arm, backends_of) for arm in experiment.assignment.arms):
            listed.setdefault(experiment.assignment.subject, []).append(experiment)
    return {subject: tuple(found) for subject, found in listed.items()}


def _is_there(arm: AssignedArm, backends_of: Mapping[str, tuple[Backend, ...]]) -> bool:
    backends = backends_of.get(arm.deployment)
    return backends is not None and (not arm.revision or bool(revision_named(backends, arm.revision)))


def is_subject(subjects: Mapping[str, object], name: str, kind: str = DEPLOYMENT) -> bool:
    """Whether requests to a deployment by its own names, or to the public names of a ModelRoute, take part in an
    experiment."""
    return subject_of(kind, name) in subjects
