"""Conditions outside of a plan: what one of them may read, with as little of a ModelDeployment as it takes."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from slipway_operator.api.v1alpha1.status import Condition, Status
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.deployment.spec import Invalid, parse
from slipway_operator.planning.conditions.condition_type import ConditionFacts
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.sizing.sizes import sizes_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REVISION = "aaaaaaaaaa"
MANIFEST = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": {"model": {"uri": "file:///models/v1"}}}


def condition_facts(
    obj: dict[str, Any] | None = None, former: Iterable[Condition] = (), **observed: Any
) -> ConditionFacts:
    """The facts of a ModelDeployment whose one revision is stable; `observed` are fields of Observed."""
    spec = parse(MANIFEST)
    assert not isinstance(spec, Invalid)
    status = Status(conditions=tuple(former), stable_revision=REVISION)
    course = Course(stable=REVISION)
    at = Situation(spec, REVISION, REVISION, status, Observed(**observed), NOW)
    return ConditionFacts(course, at, sizes_of(course, at), None, obj or MANIFEST)
