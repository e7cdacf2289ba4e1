"""Flux and Helm wait while a rollout runs, go on when it is done, and fail when it was rejected or rolled back."""

from typing import Any

import pytest
import yaml

from slipway_operator.api.v1alpha1.status import State
from testkit import ROOT
from tests.gitops import recorded
from tests.gitops.kstatus import Result, compute
from tests.operator.planning.test_rollout import attempt, canary_at_first_pause, token
from tests.operator.planning.test_sleep import asleep
from tests.support.model_cluster import healthy, model

KINDS = ("modeldeployments", "modeladapters", "modelpools", "modelroutes", "tenants", "experiments")


@pytest.mark.parametrize("name", recorded.SCENES)
def test_a_tool_waits_goes_on_or_fails_in_each_phase(name: str) -> None:
    [one] = (item for item in recorded.deployments() if item.name == name)
    assert compute(one.obj) is one.result, one.obj["status"]


@pytest.mark.parametrize("one", recorded.others(), ids=lambda one: f"{one.kind}: {one.name}")
def test_other_kinds_are_read_as_well(one: recorded.Recorded) -> None:
    assert compute(one.obj) is one.result, one.obj["status"]


def test_the_scenes_have_every_state_of_a_rollout() -> None:
    seen = {(item.obj["status"].get("rollout") or {}).get("state") for item in recorded.deployments()}
    assert seen == {None, *State}


def test_a_whole_rollout_is_waited_for_until_its_end() -> None:
    world = healthy()
    world.edit(model=model("v2"))
    seen: list[Result] = [compute(world.obj())]
    for _ in range(400):
        world.reconcile()
        seen.append(compute(world.obj()))
        if world.state() == "Paused":
            world.edit(rollout__promote=token(world))
        if world.state() is None:
            break
        world.pass_time()
    assert set(seen[:-1]) == {Result.IN_PROGRESS} and seen[-1] is Result.CURRENT
    world.run(60)
    assert compute(world.obj()) is Result.CURRENT, "the former revision leaves, and nothing waits for that"


def test_a_rejection_fails_at_once_and_until_git_says_otherwise() -> None:
    world = canary_at_first_pause()
    world.edit(rollout__abort=attempt(world))
    for _ in range(100):
        world.reconcile()
        assert compute(world.obj()) is Result.FAILED
        world.pass_time()
    world.edit(model=model("v3"))
    world.reconcile()
    assert compute(world.obj()) is Result.IN_PROGRESS


def test_both_conditions_are_absent_where_nothing_is_due_and_never_true_together() -> None:
    for one in recorded.deployments():
        shown = _true(one.obj)
        assert len(shown) <= 1, (one.name, shown)
        assert not (one.result is Result.CURRENT and shown)


def test_a_stalled_condition_gives_the_reason_of_the_rejection() -> None:
    [broken] = (item for item in recorded.deployments() if item.name == "broken")
    [stalled] = (one for one in broken.obj["status"]["conditions"] if one["type"] == "Stalled")
    assert stalled["reason"] == "ProgressDeadlineExceeded" and "CrashLoopBackOff" in stalled["message"]


def test_a_sleeping_model_is_as_git_describes_it() -> None:
    world = asleep()
    assert world.parsed().phase == "Asleep" and compute(world.obj()) is Result.CURRENT
    world.gateways[0].visit(world)
    phases = set()
    for _ in range(5):
        world.reconcile()
        phases.add(world.parsed().phase.value)
        assert compute(world.obj()) is Result.CURRENT, "a request that wakes it is nothing that an apply waits for"
        world.pass_time()
    assert "Progressing" in phases


@pytest.mark.parametrize("plural", KINDS)
def test_a_new_object_is_not_reconciled_before_the_operator_has_read_it(plural: str) -> None:
    """Without a default of the status a tool would go on at once: an object without conditions counts as reconciled."""
    crd: dict[str, Any] = yaml.load((ROOT / "crds" / f"{plural}.yaml").read_text(), yaml.CSafeLoader)
    status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    created = {"metadata": {"generation": 1}, "status": status["default"]}
    assert compute(created) is Result.IN_PROGRESS
    assert compute({"metadata": {"generation": 1}}) is Result.CURRENT


def _true(obj: dict[str, Any]) -> list[str]:
    conditions = obj["status"].get("conditions") or ()
    return [one["type"] for one in conditions if one["type"] in ("Reconciling", "Stalled") and one["status"] == "True"]
