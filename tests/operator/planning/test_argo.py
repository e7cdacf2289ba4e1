"""Argo Rollouts' status patches do what its users expect of them, each once."""

from typing import Any

from slipway_operator.model.deployment.spec import Invalid, Spec, parse
from slipway_operator.planning.rollout import argo
from tests.support.model_cluster import ModelCluster, cluster, healthy, model


def canary_at_first_pause(**options: Any) -> ModelCluster:
    world = healthy(**options)
    world.edit(model=model("v2"))
    world.run_until("Paused")
    return world


def event_messages(world: ModelCluster, reason: str) -> list[str]:
    return [event.message for event in world.events if event.reason == reason]


def test_abort_true_rejects_the_attempt_in_flight() -> None:
    world = canary_at_first_pause()
    attempt = world.parsed().rollout.attempt_token  # type: ignore[union-attr]
    world.patch_status(abort=True)
    world.reconcile()
    assert "abort" not in world.status
    world.run_until("Aborted")
    assert world.parsed().aborted_revisions == (attempt,)
    assert world.weights()["v1"] == 100
    assert event_messages(world, "ControlTranslated") == [f"status.abort is taken as spec.rollout.abort: {attempt}"]


def test_abort_false_tries_the_rejected_revision_again() -> None:
    world = canary_at_first_pause()
    world.patch_status(abort=True)
    world.run_until("Aborted")
    world.patch_status(abort=False)
    world.run_until("Paused")
    assert world.parsed().rollout.attempt == 2  # type: ignore[union-attr]


def test_promote_full_skips_the_steps() -> None:
    world = canary_at_first_pause()
    world.patch_status(promoteFull=True)
    world.reconcile()
    assert "promoteFull" not in world.status
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_removing_the_pause_conditions_ends_that_pause_and_no_other() -> None:
    world = canary_at_first_pause(steps=[{"setWeight": 10}, {"pause": {}}, {"setWeight": 50}, {"pause": {}}])
    assert world.status["controllerPause"] and world.status["pauseConditions"][0]["reason"] == "CanaryPauseStep"
    world.patch_status(pauseConditions=None)
    world.reconcile()
    assert "controllerPause" not in world.status
    world.run_until("Paused")
    assert world.parsed().rollout.step_index == 3  # type: ignore[union-attr]
    world.run(30)
    assert world.state() == "Paused", "the second pause has conditions of its own"


def test_pause_conditions_removed_while_paused_by_spec_count_when_it_is_resumed() -> None:
    world = canary_at_first_pause()
    world.edit(paused=True)
    world.patch_status(pauseConditions=None)
    world.run(5)
    assert (world.state(), "pauseConditions" in world.status) == ("Paused", False)
    assert not event_messages(world, "ControlTranslated")
    world.edit(paused=False)
    world.reconcile()
    assert world.state() != "Paused"


def test_a_pause_of_an_operator_without_conditions_is_not_taken_for_released() -> None:
    world = canary_at_first_pause()
    world.patch_status(pauseConditions=None, controllerPause=None)
    world.run(30)
    assert world.state() == "Paused"
    assert world.status["pauseConditions"]


def test_patches_without_effect_are_removed_and_reported() -> None:
    world = healthy()
    world.patch_status(abort=True, promoteFull=True)
    world.run(3)
    assert not {"abort", "promoteFull"} & world.status.keys()
    assert event_messages(world, "ControlIgnored") == [
        "status.abort true has no effect: no attempt can be rejected now",
        "status.promoteFull has no effect: no rollout is in its steps now",
    ]
    world.patch_status(abort=False)
    world.run(3)
    assert event_messages(world, "ControlIgnored")[2:] == ["status.abort false has no effect: none was rejected now"]


def test_the_spec_is_left_as_the_user_wrote_it() -> None:
    world = canary_at_first_pause()
    before = world.obj()["spec"]
    world.patch_status(abort=True)
    world.run(3)
    assert world.obj()["spec"] == before


def test_without_patches_nothing_is_translated() -> None:
    world = cluster()
    spec = parse(world.obj())
    assert isinstance(spec, Spec) and not isinstance(spec, Invalid)
    assert argo.translate(spec, world.status, world.parsed()) == (spec, ())
