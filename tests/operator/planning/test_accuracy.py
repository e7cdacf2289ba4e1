"""spec.accuracy: what is counted is exact over restarts, alarms, and a rollback to a revision without pods."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from slipway_contracts.accuracy import AccuracyCounts, PublishedBins
from slipway_operator.api.v1alpha1.accuracy_status import AccuracyMonitor, AccuracyStatus
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.cluster.observed import Gateway, Observed
from slipway_operator.model.deployment import status as status_room
from slipway_operator.model.deployment.spec import Invalid, Spec, parse
from slipway_operator.planning.facts import accuracy, process_counts
from slipway_operator.planning.facts.situation import Course, Situation
from tests.support.model_cluster import ModelCluster, healthy, model

FEEDBACK = {"minAccuracy": 0.9}
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
CUTS = PublishedBins(cuts=("1.0", "2.0", "3.0"))
LABELS = 200  # enough wrong ones to raise an alarm


def spec_of(**written: Any) -> Spec:
    parsed = parse({"metadata": {"name": "chat"}, "spec": {"model": model("v1"), "accuracy": written}})
    assert isinstance(parsed, Spec), parsed
    return parsed


def counted(
    before: AccuracyStatus | None,
    gateways: dict[str, AccuracyCounts],
    now: datetime,
    stable: str = "r",
    **written: Any,
) -> AccuracyStatus | None:
    """What the status has after a reconcile that reads these counts, by process; it is written and read again."""
    seen = tuple(Gateway(name, True, True, incarnation=name, accuracy=one) for name, one in gateways.items())
    spec = spec_of(**(written or {"feedback": FEEDBACK}))
    at = Situation(spec, stable, stable, Status(accuracy=before), Observed(gateways=seen), now)
    status = Status(accuracy=accuracy.counted(Course(stable=stable), at))
    return status_room.parse(status_room.render(status)).accuracy


def rated(right: int, wrong: int, revision: str = "r") -> AccuracyCounts:
    return AccuracyCounts(labels={revision: (right, wrong)})


def monitor(status: AccuracyStatus | None, revision: str = "r", place: int = 0) -> AccuracyMonitor:
    watched = status.of(revision) if status else None
    assert watched is not None
    return watched.monitors[place]


# --- counts ---------------------------------------------------------------------------------------------------------


def test_counts_are_exact_whatever_restarts_and_whatever_is_not_written() -> None:
    chance, status, now = Random(7), None, NOW
    processes: dict[str, tuple[int, int]] = {}
    truth, number = [0, 0], 0
    for _ in range(400):
        if len(processes) < 3 or chance.random() < 0.05:
            number += 1
            processes[f"p{number}"] = (0, 0)
        for name, (right, wrong) in processes.items():
            bad = int(chance.random() < 0.05)
            processes[name] = (right + 1 - bad, wrong + bad)
            truth = [truth[0] + 1 - bad, truth[1] + bad]
        silent = {name for name in processes if chance.random() < 0.2}
        now += timedelta(seconds=61)
        read = {name: AccuracyCounts() if name in silent else rated(*counts) for name, counts in processes.items()}
        status = counted(status, read, now)
        if len(processes) > 3 and (gone := [name for name in processes if name not in silent]):
            processes.pop(gone[0])
    status = counted(status, {name: rated(*counts) for name, counts in processes.items()}, now + MINUTE)
    assert monitor(status).counts == tuple(truth)
    assert status is not None and len(status.counted) <= process_counts.MOST_NOTED


def test_an_operator_that_died_before_its_write_comes_to_the_same_bits() -> None:
    """It computes from the former status again: what was not written is counted once, with the same evidence."""
    first = counted(None, {"a": rated(90, 10)}, NOW)
    lost = counted(first, {"a": rated(180, 20)}, NOW + MINUTE)
    assert lost != first
    again = counted(first, {"a": rated(180, 20)}, NOW + MINUTE)
    assert again == lost and monitor(again).bets == monitor(lost).bets != ()


def test_time_alone_is_written_once_a_day_and_staked_on_what_comes_later() -> None:
    """So labels that come all at once, each month, find stakes that were there before."""
    first = counted(None, {"a": rated(90, 10)}, NOW)
    assert counted(first, {"a": rated(90, 10)}, NOW + DAY - MINUTE) == first
    idle = counted(first, {"a": rated(90, 10)}, NOW + DAY)
    assert monitor(idle).bets and monitor(counted(idle, {"a": rated(90, 210)}, NOW + DAY + MINUTE)).alarm_since
    assert monitor(counted(first, {"a": rated(90, 210)}, NOW + MINUTE)).alarm_since is None, "nothing was staked"


def test_another_limit_begins_other_evidence_and_keeps_the_counts() -> None:
    status = counted(None, {"a": rated(900, 100)}, NOW)
    status = counted(status, {"a": rated(1800, 200)}, NOW + DAY)
    changed = counted(status, {"a": rated(1800, 200)}, NOW + DAY + MINUTE, feedback={"minAccuracy": 0.8})
    assert monitor(changed).counts == (1800, 200) and monitor(changed).limits != monitor(status).limits


def test_labels_of_a_former_revision_count_for_it_weeks_later_and_three_are_kept() -> None:
    status: AccuracyStatus | None = None
    for number, name in enumerate(("r1", "r2", "r3", "r4")):
        counts = AccuracyCounts(labels={f"r{one + 1}": (10, one) for one in range(number + 1)})
        status = counted(status, {"a": counts}, NOW + number * 7 * DAY, stable=name)
    assert status is not None and [one.revision for one in status.revisions] == ["r2", "r3", "r4"]
    late = counted(status, {"a": AccuracyCounts(labels={"r3": (50, 9), "r4": (10, 3)})}, NOW + 40 * DAY, stable="r4")
    assert monitor(late, "r3").counts == (50, 9) and monitor(late, "r4").counts == (10, 3)


def test_a_status_by_another_hand_stops_nothing() -> None:
    status = counted(None, {"a": rated(90, 10)}, NOW)
    assert status is not None
    watched = status.revisions[0]
    broken = replace(
        watched.monitors[0], bets=(10**15, -5), counts=(-1, 5, 7), periods=("x", "2026-13-01T00:00:00Z 1:2", "a 1")
    )
    forged = replace(status, revisions=(replace(watched, monitors=(broken,)),), counted=("", "a r=x", "a r=1:2:3"))
    found = monitor(counted(forged, {"a": rated(180, 20)}, NOW + MINUTE))
    assert found.alarm_since is None and len(found.counts) == 2


def test_the_longest_counts_of_a_process_fit_in_its_line() -> None:
    """A line that is cut would have its counter begin at zero, and count again in each reconcile."""
    most = 2**53
    written: dict[str, Any] = {"feedback": FEEDBACK, "predictions": {}}
    names = [f"r{number}aaaaaaaa" for number in range(3)]
    status: AccuracyStatus | None = None
    for number, name in enumerate(names):
        bins = dict.fromkeys(names[: number + 1], CUTS)
        status = counted(status, {"p" * 36: AccuracyCounts(bins=bins)}, NOW, stable=name, **written)
    counts = AccuracyCounts(dict.fromkeys(names, (most, most)), {f"{name}/{CUTS.id}": (most,) * 17 for name in names})
    status = counted(status, {"p" * 36: counts}, NOW + MINUTE, stable=names[-1], **written)
    again = counted(status, {"p" * 36: counts}, NOW + DAY, stable=names[-1], **written)
    assert monitor(again, names[-1], 1).counts == monitor(status, names[-1], 1).counts == (most,) * 17
    assert monitor(again, names[0]).counts == (most, most)


# --- a reference ----------------------------------------------------------------------------------------------------


def test_a_baseline_is_taken_from_the_first_labels_and_a_drop_below_it_is_an_alarm() -> None:
    written: dict[str, Any] = {"feedback": {"maxDrop": 0.02, "baselineLabels": 5000}, "falseAlarmsPerYear": 1}
    status = counted(None, {"a": rated(4750, 250)}, NOW, **written)
    assert monitor(status).reference == (4750, 250) and monitor(status).reference_until == NOW
    status = counted(status, {"a": rated(9500, 500)}, NOW + DAY, **written)
    assert monitor(status).alarm_since is None, "as accurate as before"
    status = counted(status, {"a": rated(18_000, 2000)}, NOW + 2 * DAY, **written)
    assert monitor(status).alarm_since == NOW + 2 * DAY
    assert "labels of the last days are wrong" in monitor(status).finding


def test_a_baseline_that_is_wrong_too_often_for_any_limit_raises_no_alarm() -> None:
    written: dict[str, Any] = {"feedback": {"maxDrop": 0.5, "baselineLabels": 100}}
    status = counted(None, {"a": rated(20, 80)}, NOW, **written)
    status = counted(status, {"a": rated(20, 980)}, NOW + DAY, **written)
    assert monitor(status).limit == 1 and monitor(status).alarm_since is None and monitor(status).bets == ()


def test_bins_of_one_gateway_are_published_and_a_shift_against_the_first_week_is_an_alarm() -> None:
    written: dict[str, Any] = {"predictions": {"maxShift": 0.1}}
    status = counted(None, {"b": AccuracyCounts(bins={"r": CUTS}), "a": AccuracyCounts()}, NOW, **written)
    assert status is not None and status.revisions[0].bins == CUTS
    at = Situation(spec_of(**written), "r", "r", Status(accuracy=status), Observed(), NOW)
    table = accuracy.counting(Course(stable="r"), at)
    assert table is not None and (table.revision, table.bins) == ("r", CUTS)
    name, week = f"r/{CUTS.id}", (1000, 1000, 1000, 1000, *(0,) * 13)

    def predicted(*counts: int) -> dict[str, AccuracyCounts]:
        return {"a": AccuracyCounts(predictions={name: (*counts, *(0,) * (17 - len(counts)))})}

    status = counted(status, predicted(500, 500, 500, 500), NOW + DAY, **written)
    assert monitor(status).reference_until is None, "a week is not over"
    status = counted(status, predicted(*week), NOW + 8 * DAY, **written)
    assert monitor(status).reference == week
    status = counted(status, predicted(2000, 2000, 2000, 2000), NOW + 9 * DAY, **written)
    assert monitor(status).alarm_since is None
    status = counted(status, predicted(5000, 2000, 2000, 2000), NOW + 10 * DAY, **written)
    assert monitor(status).alarm_since is not None
    assert "bin 0 has 4,500 of 9,000 predictions" in monitor(status).finding
    assert "25.00% in the reference" in monitor(status).finding


def test_an_alarm_lasts_a_week_and_ends_when_labels_are_right_again() -> None:
    status = counted(None, {"a": rated(90, 10)}, NOW - DAY)
    status = counted(status, {"a": rated(90, 10)}, NOW)
    status = counted(status, {"a": rated(90, 310)}, NOW + DAY)
    assert monitor(status).alarm_since == NOW + DAY and monitor(status).alarms == 1
    status = counted(status, {"a": rated(590, 310)}, NOW + 2 * DAY)
    assert monitor(status).alarm_since == NOW + DAY, "for a week at least"
    status = counted(status, {"a": rated(591, 310)}, NOW + 9 * DAY)
    assert monitor(status).alarm_since is None and monitor(status).alarms == 1
    status = counted(status, {"a": rated(591, 310)}, NOW + 20 * DAY)
    assert monitor(status).alarms == 1


# --- rollbacks ------------------------------------------------------------------------------------------------------


def watched(on_alarm: str = "Rollback", **fields: Any) -> ModelCluster:
    """v2 serves, and the pods of v1 are gone."""
    canary = {"steps": [{"setWeight": 50}], "scaleDownDelaySeconds": 0}
    world = healthy(strategy={"canary": canary}, accuracy={"feedback": FEEDBACK, "onAlarm": on_alarm}, **fields)
    world.rate = 10
    world.edit(model=model("v2"))
    world.run_until(None)
    world.run(120, step=5)
    assert world.weights() == {"v2": 100} and world.pods.keys() >= {world.parsed().stable_revision}
    return world


def label(world: ModelCluster, right: int, wrong: int) -> None:
    """Labels on responses of what serves now."""
    gateway, name = world.gateways[0], str(world.parsed().stable_revision)
    before = gateway.accuracy.labels.get(name, (0, 0))
    counts = {**gateway.accuracy.labels, name: (before[0] + right, before[1] + wrong)}
    gateway.accuracy = replace(gateway.accuracy, labels=counts)
    world.run(180, step=10)


def condition(world: ModelCluster) -> tuple[str, str] | None:
    found = (item for item in world.parsed().conditions if item.type == "AccuracyAlarm")
    return next(((item.reason, item.message) for item in found), None)


def test_an_alarm_is_a_condition_and_one_event_and_changes_nothing_else() -> None:
    world = watched("Alert")
    label(world, 900, 100)
    assert condition(world) is None
    label(world, 0, LABELS)
    reason, message = condition(world) or ("", "")
    assert (
        reason == "AccuracyLow" and "300 of 1,200 labels of the last days are wrong (25.00%, limit 10.00%)" in message
    )
    assert sum(event.reason == "AccuracyAlarm" for event in world.events) == 1
    assert world.weights() == {"v2": 100} and world.parsed().phase == "Healthy" and world.state() is None


def test_an_alarm_goes_back_to_a_revision_without_pods_and_then_only_alerts() -> None:
    world = watched()
    first = str(world.parsed().previous_revision)
    assert first not in world.pods or not world.pods[first].placed
    label(world, 900, 100)
    label(world, 0, LABELS)
    world.run_until(None)
    world.run(60, step=5)
    assert world.weights()["v1"] == 100 and world.parsed().stable_revision == first
    reason, message = condition(world) or ("", "")
    assert reason == "RolledBack" and f"revision {first} runs in its place" in message
    assert "holds in place of" in world.parsed().message
    label(world, 900, 100)
    label(world, 0, 2 * LABELS)
    world.run(3600, step=30)
    assert world.parsed().stable_revision == first, "it does not go back and forth"
    assert world.weights()["v1"] == 100


def test_rollback_to_itself_ends_a_rollback_and_the_alarm_rolls_back_once() -> None:
    world = watched()
    label(world, 0, LABELS)
    world.run_until(None)
    current = world.parsed().current_revision
    world.edit(rollout={"rollbackTo": f"{current}/{current}"})
    world.run(5)
    world.run_until(None)
    assert world.weights()["v2"] == 100 and world.parsed().stable_revision == current
    world.edit(rollout=None)
    world.run(1800, step=30)
    reason, message = condition(world) or ("", "")
    assert world.weights()["v2"] == 100 and reason == "AccuracyLow"
    assert "no rollback: there was one from this revision before" in message


def test_another_revision_ends_the_rollback_and_is_watched_itself() -> None:
    world = watched()
    label(world, 0, LABELS)
    world.run_until(None)
    world.edit(model=model("v3"))
    world.run(5)
    world.run_until(None)
    assert world.weights()["v3"] == 100 and condition(world) is None
    status = world.parsed().accuracy
    assert status is not None and status.rollback is None and len(status.rolled_back) == 1


@pytest.mark.parametrize("crash", range(6))
def test_an_operator_that_dies_during_the_rollback_goes_on_with_it(crash: int) -> None:
    world = watched()
    label(world, 0, LABELS // 20)
    gateway, name = world.gateways[0], str(world.parsed().stable_revision)
    gateway.accuracy = rated(0, LABELS, name)
    for _ in range(crash):
        world.run(5)
    world.forge(dict(world.status))  # a fresh operator reads the status
    world.run(300, step=5)
    world.run_until(None)
    assert world.weights()["v1"] == 100


def test_without_a_former_revision_the_condition_says_why_nothing_goes_back() -> None:
    world = healthy(accuracy={"feedback": FEEDBACK, "onAlarm": "Rollback"})
    label(world, 0, LABELS)
    reason, message = condition(world) or ("", "")
    assert reason == "AccuracyLow" and message.endswith("no rollback: there is no record of a former revision")


def test_a_change_of_spec_accuracy_restarts_nothing() -> None:
    world = healthy()
    pods = {name: item.placed for name, item in world.pods.items()}
    world.edit(accuracy={"feedback": FEEDBACK})
    world.run(60)
    assert {name: item.placed for name, item in world.pods.items()} == pods and world.state() is None
    table = world.parsed().traffic
    assert table is not None and table.accuracy is not None and table.accuracy.max_age_seconds == 30 * 86_400
    world.edit(accuracy=None)
    world.run(60)
    assert "accuracy" not in world.status and "accuracy" not in world.status["traffic"]


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ({}, "spec.accuracy watches nothing"),
        ({"feedback": {}}, "spec.accuracy.feedback has one limit"),
        ({"feedback": {"minAccuracy": 0.9, "maxDrop": 0.1}}, "spec.accuracy.feedback has one limit"),
        ({"feedback": {"minAccuracy": 1.5}}, "minAccuracy"),
        ({"feedback": {"minAccuracy": 0.9, "maxAge": "40x"}}, "spec.accuracy.feedback.maxAge"),
        ({"feedback": {"minAccuracy": 0.9, "maxAge": "200d"}}, "maxAge is at most 180d"),
        ({"predictions": {"reference": "1y"}}, "spec.accuracy.predictions.reference"),
        ({"feedback": FEEDBACK, "falseAlarmsPerYear": 0}, "falseAlarmsPerYear"),
        ({"feedback": FEEDBACK, "onAlarm": "Page"}, "onAlarm"),
    ],
)
def test_an_invalid_field_is_named(written: dict[str, Any], names: str) -> None:
    parsed = parse({"metadata": {"name": "chat"}, "spec": {"model": model("v1"), "accuracy": written}})
    assert isinstance(parsed, Invalid) and names in parsed.message, parsed
