"""Error budgets of spec.slo: exact over restarts of gateways and operators, and a rollout that a spent one holds."""

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.status import ServiceLevelStatus, Status
from slipway_operator.model.cluster.observed import Gateway, Observed
from slipway_operator.model.deployment import status as status_room
from slipway_operator.model.deployment.spec import Spec, parse
from slipway_operator.planning.facts import error_budget, process_counts
from slipway_operator.planning.facts.situation import Situation
from tests.operator.planning.test_analysis import BAD, QUICK, step
from tests.operator.planning.test_twin_shadow import decided
from tests.support.model_cluster import ModelCluster, healthy, model
from tests.support.model_gateway import ModelGateway

SLO = {"ttftP95": "800ms", "latencyP99": "2s", "availability": "99"}
AVAILABILITY, TTFT = "availability/0", "ttftP95/800"
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def spec_of(**slo: str) -> Spec:
    parsed = parse({"metadata": {"name": "chat"}, "spec": {"model": model("v1"), "slo": slo or SLO}})
    assert isinstance(parsed, Spec), parsed
    return parsed


def counted(
    before: ServiceLevelStatus | None, gateways: dict[str, dict[str, tuple[int, int]]], now: datetime, **slo: str
) -> ServiceLevelStatus | None:
    """What the status has after a reconcile that reads these counts, by process; it is written and read again."""
    seen = tuple(Gateway(name, True, True, incarnation=name, objectives=one) for name, one in gateways.items())
    at = Situation(spec_of(**slo), "r", "r", Status(slo=before), Observed(gateways=seen), now)
    return status_room.parse(status_room.render(Status(slo=error_budget.counted(at)))).slo


def requests(status: ServiceLevelStatus | None, objective: str) -> tuple[int, int]:
    assert status is not None
    return next((one.requests, one.missed) for one in status.objectives if one.objective == objective)


def holding(*steps: dict[str, Any], **fields: Any) -> ModelCluster:
    """A cluster with objectives and a rollout that a spent budget holds, at the first of its steps."""
    listed = list(steps) or [{"setWeight": 10}, {"pause": {"duration": "20s"}}, {"setWeight": 50}]
    canary = {"steps": listed, "holdOnBudget": True, "scaleDownDelaySeconds": 5}
    world = healthy(strategy={"canary": canary}, slo=SLO, **fields)
    world.rate = 10
    world.edit(model=model("v2"))
    return world


def spend(world: ModelCluster, missed: int = 50, total: int = 1000) -> None:
    """Gateways count these further requests against availability."""
    before = world.gateways[0].objectives.get(AVAILABILITY, (0, 0))
    world.gateways[0].objectives[AVAILABILITY] = (before[0] + total, before[1] + missed)


def condition(world: ModelCluster) -> tuple[str, str] | None:
    found = (item for item in world.parsed().conditions if item.type == "ErrorBudgetSpent")
    return next(((item.status, item.reason) for item in found), None)


# --- counts ---------------------------------------------------------------------------------------------------------


def test_counts_are_exact_whatever_restarts_and_whatever_is_not_written() -> None:
    """The operator keeps nothing but the status; a gateway's counters begin at zero with each process."""
    chance, status, now = Random(7), None, NOW
    processes: dict[str, tuple[int, int]] = {}
    truth, number = [0, 0], 0
    for _ in range(400):
        if len(processes) < 3 or chance.random() < 0.05:
            number += 1
            processes[f"p{number}"] = (0, 0)
        for name, (total, missed) in processes.items():
            bad = int(chance.random() < 0.1)
            processes[name] = (total + 1, missed + bad)
            truth = [truth[0] + 1, truth[1] + bad]
        silent = {name for name in processes if chance.random() < 0.2}
        now += timedelta(seconds=61)
        status = counted(status, {n: {AVAILABILITY: c} if n not in silent else {} for n, c in processes.items()}, now)
        if len(processes) > 3:  # one leaves after it was read
            gone = next(name for name in processes if name not in silent) if len(silent) < len(processes) else None
            processes.pop(gone or "", None)
    status = counted(status, {name: {AVAILABILITY: count} for name, count in processes.items()}, now + WRITE)
    assert requests(status, "availability") == tuple(truth)
    assert status is not None and len(status.counted) <= process_counts.MOST_NOTED


WRITE, SECOND = timedelta(seconds=error_budget.WRITE_S), timedelta(seconds=1)


def test_counts_alone_are_written_once_a_minute_and_a_spent_budget_at_once() -> None:
    first = counted(None, {"a": {AVAILABILITY: (10_000, 0)}}, NOW)
    soon = counted(first, {"a": {AVAILABILITY: (11_000, 5)}}, NOW + timedelta(seconds=30))
    assert soon == first
    later = counted(soon, {"a": {AVAILABILITY: (11_000, 5)}}, NOW + WRITE)
    assert requests(later, "availability") == (11_000, 5)
    assert counted(later, {"a": {AVAILABILITY: (11_000, 5)}}, NOW + 5 * WRITE) == later, "nothing new, no write"
    spent = counted(later, {"a": {AVAILABILITY: (11_100, 200)}}, NOW + WRITE + timedelta(seconds=1))
    assert requests(spent, "availability") == (11_100, 200)


def test_the_last_report_of_a_gateway_that_is_gone_is_written_at_once() -> None:
    first = counted(None, {"a": {AVAILABILITY: (100, 0)}, "b": {AVAILABILITY: (100, 0)}}, NOW)
    left = tuple(
        Gateway(name, True, True, incarnation=name, objectives={AVAILABILITY: (150, 1)}, gone=name == "a")
        for name in ("a", "b")
    )
    at = Situation(spec_of(), "r", "r", Status(slo=first), Observed(gateways=left), NOW + timedelta(seconds=1))
    assert requests(error_budget.counted(at), "availability") == (300, 2)


def test_counts_leave_with_their_period() -> None:
    status = counted(None, {"a": {AVAILABILITY: (1000, 100)}}, NOW)
    status = counted(status, {"a": {AVAILABILITY: (3000, 100)}}, NOW + timedelta(days=14))
    assert requests(status, "availability") == (3000, 100)
    status = counted(status, {"a": {AVAILABILITY: (3001, 100)}}, NOW + timedelta(days=28, hours=1))
    assert requests(status, "availability") == (2001, 0)
    assert status is not None and len(status.periods) == 2
    assert next(one.budget_left for one in status.objectives if one.objective == "availability") == 1


def test_another_limit_begins_other_counts_and_another_target_does_not() -> None:
    status = counted(None, {"a": {TTFT: (100, 7), AVAILABILITY: (100, 7)}}, NOW)
    status = counted(status, {"a": {TTFT: (100, 7), AVAILABILITY: (100, 7)}}, NOW, ttftP95="500ms", availability="90")
    assert requests(status, "ttftP95") == (0, 0) and requests(status, "availability") == (100, 7)
    assert status is not None and [one.target for one in status.objectives] == [95, 90]
    status = counted(status, {"a": {"ttftP95/500": (20, 2)}}, NOW + WRITE, ttftP95="500ms", availability="90")
    assert requests(status, "ttftP95") == (20, 2) and requests(status, "availability") == (100, 7)


def test_a_number_of_days_has_as_many_periods() -> None:
    status: ServiceLevelStatus | None = None
    for hour in range(24 * 9):
        now = NOW + timedelta(hours=hour)
        status = counted(status, {"a": {AVAILABILITY: (hour + 1, 0)}}, now, availability="99", window="7d")
    assert status is not None and len(status.periods) <= error_budget.PERIODS
    assert abs(requests(status, "availability")[0] - 24 * 7) <= 6, "to one period"


def test_more_processes_than_there_is_room_for_are_not_counted_twice() -> None:
    many = {f"p{number:03}": {AVAILABILITY: (1, 0)} for number in range(100)}
    status = counted(None, many, NOW)
    before = requests(status, "availability")
    assert before == (process_counts.MOST_PROCESSES, 0)
    assert requests(counted(status, many, NOW + WRITE), "availability") == before


def test_many_gateways_that_are_away_for_a_while_are_not_counted_twice() -> None:
    many = {f"p{number:03}": {AVAILABILITY: (1000, 1)} for number in range(60)}
    status = counted(None, many, NOW)
    status = counted(status, {"q": {AVAILABILITY: (5, 0)}}, NOW + WRITE)
    status = counted(status, {**many, "q": {AVAILABILITY: (5, 0)}}, NOW + 2 * WRITE)
    assert requests(status, "availability") == (60_005, 60)


@pytest.mark.parametrize("name", ["a b", " a", "a availability/0=5:5"])
def test_a_process_whose_name_no_line_keeps_does_not_count_again_and_again(name: str) -> None:
    """The name is what a gateway reports, and may be any text."""
    status: ServiceLevelStatus | None = None
    for minute in range(5):
        status = counted(status, {name: {AVAILABILITY: (1000, 20)}}, NOW + minute * WRITE)
    assert requests(status, "availability")[0] <= 1000


def test_the_last_report_of_a_process_that_is_not_counted_is_not_written_again_and_again() -> None:
    names = [f"p{number:03}" for number in range(70)]
    status = counted(None, {name: {AVAILABILITY: (10, 0)} for name in names[:40]}, NOW)
    status = counted(status, {name: {AVAILABILITY: (10, 0)} for name in names[40:]}, NOW + WRITE)
    assert status is not None and len(status.counted) == 70
    left = tuple(
        Gateway(name, True, True, incarnation=name, objectives={AVAILABILITY: (11, 0)}, gone=True) for name in names
    )
    writes = 0
    for second in range(10):
        at = Situation(spec_of(), "r", "r", Status(slo=status), Observed(gateways=left), NOW + WRITE + second * SECOND)
        renewed = error_budget.counted(at)
        writes, status = writes + (renewed != status), renewed
    assert writes == 1


def test_lines_that_make_no_sense_are_left_out() -> None:
    sound = counted(None, {"a": {AVAILABILITY: (100, 7)}}, NOW)
    assert sound is not None
    wrong = ("", "x", "a availability/0=5", "a availability/0=3:9", "a else/0=3:1", "a availability/0=-1:0")
    broken = replace(sound, periods=(*sound.periods, *wrong, "2026-13-01T00:00:00Z availability/0=9:9"))
    status = counted(broken, {"a": {AVAILABILITY: (101, 7)}}, NOW + WRITE)
    assert requests(status, "availability") == (101, 7)


# --- rollouts -------------------------------------------------------------------------------------------------------


def test_a_spent_budget_holds_the_rollout_at_its_step_and_rejects_nothing() -> None:
    world = holding()
    world.run_until("Paused")
    spend(world)
    world.run(1200, step=10)
    assert world.state() == "Paused" and world.weights()["v2"] == 10
    assert condition(world) == ("True", "RolloutHeld") and world.parsed().phase == "Paused"
    assert "held by holdOnBudget" in world.parsed().message and "50 of 1000 requests" in world.parsed().message
    assert sum(event.reason == "ErrorBudgetSpent" for event in world.events) == 1
    assert world.parsed().aborted_revisions == ()


def test_a_spec_that_is_reverted_is_not_held_by_what_it_repairs() -> None:
    world = holding()
    world.run_until(None)
    assert world.weights() == {"v2": 100}
    spend(world, 5000, 10_000)
    world.run(60)
    world.edit(model=model("v1"))
    world.run_until(None)
    assert world.weights()["v1"] == 100 and condition(world) == ("True", "BudgetSpent")
    world.edit(model=model("v3"))
    world.run(300, step=5)
    assert world.weights()["v3"] == 0 and condition(world) == ("True", "RolloutHeld")


def test_a_rollout_begins_only_with_a_budget_and_goes_on_when_there_is_one_again() -> None:
    world = holding()
    spend(world)
    world.run(120)
    assert world.state() == "Provisioning" and world.weights()["v2"] == 0
    spend(world, 0, 10_000)
    world.run_until(None)
    assert world.weights() == {"v2": 100} and condition(world) is None


def test_without_hold_on_budget_a_spent_budget_is_shown_and_holds_nothing() -> None:
    world = holding()
    world.edit(strategy__canary__holdOnBudget=None)
    spend(world)
    world.run(5)
    assert condition(world) == ("True", "BudgetSpent")
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_a_few_failures_of_a_quiet_model_spend_nothing() -> None:
    world = holding()
    spend(world, error_budget.LEAST_MISSED - 1, 20)
    world.run_until(None)
    assert condition(world) is None


@pytest.mark.parametrize("command", ["promoteFull", "promote"])
def test_a_person_goes_on_without_a_budget(command: str) -> None:
    world = holding({"setWeight": 10}, {"pause": {}}, {"setWeight": 50})
    world.run_until("Paused")
    spend(world)
    world.run(60)
    rollout = world.parsed().rollout
    assert rollout is not None
    token = rollout.attempt_token if command == "promoteFull" else rollout.step_token
    world.edit(**{f"rollout__{command}": token})
    world.run(60)
    weight = world.weights()["v2"]
    assert weight == 100 if command == "promoteFull" else rollout.step_index < world.parsed().rollout.step_index  # type: ignore[union-attr]


def test_a_rollback_is_held_by_no_budget() -> None:
    world = holding()
    world.run_until(None)
    spend(world)
    world.run(10)
    status = world.parsed()
    world.edit(rollout__rollbackTo=f"{status.current_revision}/{status.previous_revision}")
    world.run(120)
    assert world.weights() == {"v1": 100} and condition(world) == ("True", "BudgetSpent")


def test_while_it_is_held_only_the_comparison_rejects() -> None:
    for bad, state in ((dict.fromkeys((BAD, model("v1")["uri"]), 0.3), "Analyzing"), ({BAD: 0.6}, "Aborted")):
        world = holding({"setWeight": 25}, step())
        world.templates = {"quick": copy.deepcopy(QUICK)}
        world.run_until("Analyzing")
        spend(world, 300)
        world.bad = bad
        if state == "Aborted":
            decided(world, "Aborted")
        else:
            world.run(1500, step=5)
        assert world.state() == state, world.parsed().message
        assert len(world.parsed().aborted_revisions) == (state == "Aborted")


def test_objectives_change_in_the_middle_of_an_analysis_and_nothing_starts_again() -> None:
    world = holding({"setWeight": 25}, step(maxDuration="2h"))
    world.templates = {"quick": {**copy.deepcopy(QUICK), "minSamples": {"canaryRequests": 5000, "warmupSeconds": 10}}}
    world.run_until("Analyzing")
    world.run(120, step=5)
    before = world.parsed()
    pods, runs = {name: list(item.made) for name, item in world.pods.items()}, len(world.runs)
    world.edit(slo={"ttftP95": "500ms", "itlP95": "40ms"})
    world.run(60, step=5)
    after = world.parsed()
    assert after.traffic and after.traffic.slo and after.traffic.slo.by_key() == {
        "ttftP95/500": "ttftP95", "itlP95/40": "itlP95",
    }  # fmt: skip
    assert before.rollout and after.rollout and before.rollout.analysis and after.rollout.analysis
    assert (after.rollout.step_token, after.rollout.started_at) == (
        before.rollout.step_token,
        before.rollout.started_at,
    )
    assert after.rollout.analysis.uid == before.rollout.analysis.uid and len(world.runs) == runs
    assert after.rollout.analysis.lost is None and after.rollout.analysis.sequence > before.rollout.analysis.sequence
    assert {name: item.made for name, item in world.pods.items()} == pods
    world.edit(slo=None)
    world.run(5)
    assert world.parsed().slo is None and world.parsed().traffic.slo is None  # type: ignore[union-attr]


def test_a_gateway_that_was_killed_and_an_operator_that_lost_its_memory_count_on() -> None:
    world = holding()
    world.edit(strategy__canary__holdOnBudget=None)
    spend(world, 5, 100)
    world.run(70, step=10)
    world.gateways[0] = ModelGateway("another", objectives={AVAILABILITY: (100, 6)})
    world.forge(copy.deepcopy(world.status))  # what an operator that starts reads
    world.run(70, step=10)
    assert requests(world.parsed().slo, "availability") == (200, 11)
