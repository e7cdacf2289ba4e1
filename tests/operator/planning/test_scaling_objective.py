"""spec.autoscaling.objective in the status: advice, its log and Events, who follows it, and how often it is written."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.manifests.autoscaler import horizontal_pod_autoscaler
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.cluster.observed import Autoscaler, Observed, ScalingReport
from slipway_operator.model.deployment import status as status_room
from slipway_operator.model.deployment.spec import Invalid, Spec, parse
from slipway_operator.planning.facts.situation import Situation
from slipway_operator.planning.scaling import objective
from slipway_operator.planning.scaling.autoscale import scalers_of
from tests.support.model_cluster import healthy, model

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
REPORT = ScalingReport(6, 6, "Utilization", "6 pods: 480/s at 80% of 100 (Measured)", 96, 480.0)
THEIRS = Autoscaler("theirs", False, True, NOW)
FOLLOWS = {"metrics": [{"type": "External", "external": {"metric": {"name": "slipway_desired_replicas"}}}]}


def spec_of(mode: str = "Advise", **fields: Any) -> Spec | Invalid:
    scaled = {"maxReplicas": 8, "objective": {"mode": mode, **fields}}
    spec = {"model": model("v1"), "slo": {"ttftP95": "800ms"}, "autoscaling": scaled}
    return parse({"metadata": {"name": "chat"}, "spec": spec})


def situation(mode: str, status: Status | None = None, now: datetime = NOW, **observed: Any) -> Situation:
    spec = spec_of(mode)
    assert isinstance(spec, Spec), spec
    return Situation(spec, "r", "r", status or Status(), Observed(**{"scaling": REPORT, **observed}), now)


def written(at: Situation) -> Status:
    """The status as it is read again."""
    return status_room.parse(status_room.render(Status(autoscaling=objective.shown(at))))


def test_advice_is_in_the_status_and_a_change_is_an_event() -> None:
    first = written(situation("Advise"))
    assert first.autoscaling is not None
    assert (first.autoscaling.desired_replicas, first.autoscaling.mode) == (6, "Advise")
    assert first.autoscaling.log == ("2026-11-01T12:00:00Z 6 Utilization: 6 pods: 480/s at 80% of 100 (Measured)",)
    assert objective.events(situation("Advise")) == ()
    more = replace(REPORT, desired=7, message="7 pods: more")
    later = situation("Advise", first, NOW + timedelta(seconds=5), scaling=more)
    (event,) = objective.events(later)
    assert (event.reason, event.message) == ("ScalingAdvised", "6 to 7 pods: more")
    second = written(later)
    assert second.autoscaling is not None and len(second.autoscaling.log) == 2
    assert objective.events(situation("Act", first, NOW, scaling=more))[0].reason == "ScalingDecided"


def test_numbers_alone_are_written_once_a_minute() -> None:
    first = written(situation("Advise"))
    busier = replace(REPORT, demand=490.0)
    assert written(situation("Advise", first, NOW + timedelta(seconds=59), scaling=busier)) == first
    assert written(situation("Advise", first, NOW + timedelta(seconds=60), scaling=busier)) != first
    assert written(situation("Advise", first, NOW + timedelta(hours=1), scaling=None)) == first


def test_advice_has_no_autoscaler_and_acting_has_one_on_the_published_number() -> None:
    assert not scalers_of(situation("Advise")).wanted
    acting = situation("Act")
    assert scalers_of(acting).wanted and acting.spec.autoscaling
    manifest = horizontal_pod_autoscaler(
        Owner("chat", "default", "u1"), acting.spec.autoscaling, "custom.metrics.k8s.io"
    )
    (metric,) = manifest["spec"]["metrics"]
    assert metric["object"]["metric"] == {"name": "slipway_desired_replicas"}
    assert metric["object"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert manifest["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 0


@pytest.mark.parametrize(
    ("mode", "follows", "objective_reason", "reason"),
    [
        ("Advise", False, "Advises", "Starting"),
        ("Act", False, "OtherMetric", "TwoScalers"),
        ("Act", True, "Acts", "Starting"),
    ],
)
def test_an_autoscaler_of_the_users(mode: str, follows: bool, objective_reason: str, reason: str) -> None:
    """One that follows another metric gets advice only; one that follows the published number takes our place."""
    world = healthy(slo={"ttftP95": "800ms"}, autoscaling={"maxReplicas": 8, "objective": {"mode": mode}})
    world.scaling = REPORT
    spec = FOLLOWS if follows else {"metrics": []}
    world.autoscalers["theirs"] = replace(THEIRS, created_at=world.now, spec=spec)
    world.reconcile()
    conditions = {one.type: one for one in world.parsed().conditions}
    assert conditions["ScalingObjective"].reason == objective_reason
    assert conditions["Autoscaling"].reason == reason
    assert world.spec["replicas"] == 2, "Slipway never writes it"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schedules": [{"name": "x", "cron": "61 * * * *", "durationSeconds": 60, "minReplicas": 2}]}, "cron"),
        (
            {"schedules": [{"name": "x", "cron": "0 8 * * *", "timeZone": "Mars/X", "durationSeconds": 60}]},
            "timeZone 'Mars/X' is not known",
        ),
    ],
)
def test_a_schedule_that_cannot_be_followed_makes_the_spec_invalid(fields: dict[str, Any], message: str) -> None:
    spec = spec_of(**fields)
    assert isinstance(spec, Invalid) and message in str(spec)
