"""What is missing is never guessed: a reference that cannot be resolved holds what serves, and says so."""

import pytest

from tests.support.forgery import Forged
from tests.support.model_cluster import ModelCluster, healthy, model

pytestmark = pytest.mark.finding("L1")


def promoted(world: ModelCluster, version: str) -> str:
    """The revision of this version, rolled out and promoted by hand; the token stays in the spec."""
    world.edit(model=model(version))
    world.run_until("Paused")
    rollout = world.parsed().rollout
    assert rollout
    world.edit(rollout__promoteFull=rollout.attempt_token)
    world.run_until(None)
    assert world.parsed().stable_revision == rollout.revision
    return rollout.revision


def rolled_back() -> tuple[ModelCluster, str]:
    """A world in which v1 serves in place of v2, by spec.rollout.rollbackTo; and the revision of v1."""
    world = healthy()
    first = str(world.parsed().stable_revision)
    second = promoted(world, "v2")
    world.edit(rollout__rollbackTo=f"{second}/{first}")
    world.run_until("Promoting")
    world.run_until(None)
    world.run(60)
    assert world.weights() == {"v1": 100}
    return world, first


def resolved_refs(world: ModelCluster) -> str:
    """Reason of the condition ResolvedRefs; empty without it."""
    return next((item.reason for item in world.parsed().conditions if item.type == "ResolvedRefs"), "")


def test_a_lost_record_of_a_rollback_is_made_again_from_its_workload() -> None:
    world, first = rolled_back()
    lost = world.snapshots.pop(first)
    world.run(120)
    assert world.parsed().stable_revision == first and world.weights() == {"v1": 100}
    assert world.snapshots[first] == lost
    assert [event.reason for event in world.events].count("RecordRestored") == 1
    assert resolved_refs(world) == "" and world.parsed().phase == "Healthy"


@pytest.mark.parametrize("copy", ["", "no JSON", "{}", '{"annotations": {}, "data": {}, "revision": 1}'])
def test_a_rollback_without_its_record_holds_what_serves(copy: str) -> None:
    world, first = rolled_back()
    del world.snapshots[first]
    world.pods[first].record = copy
    pods = world.pods[first].desired
    for _ in range(120):
        world.reconcile()
        world.pass_time()
        table = world.parsed().traffic
        assert table and [(item.revision, item.weight) for item in table.backends] == [(first, 100)]
        assert table.backends[0].version == "v1"
    assert (world.parsed().stable_revision, world.state(), world.pods[first].desired) == (first, None, pods)
    assert resolved_refs(world) == "RollbackTargetNotFound" and world.parsed().phase == "Degraded"
    assert [event.reason for event in world.events].count("ReferenceNotFound") == 1


def test_a_copy_that_its_hash_does_not_prove_counts_as_none() -> None:
    world, first = rolled_back()
    del world.snapshots[first]
    world.pods[first].record = world.pods[first].record.replace("models/v1", "models/v9")
    world.run(20)
    assert first not in world.snapshots and resolved_refs(world) == "RollbackTargetNotFound"


def test_a_hold_ends_by_the_record_and_by_the_spec() -> None:
    world, first = rolled_back()
    record = world.snapshots.pop(first)
    world.pods[first].record = ""
    world.run(20)
    world.snapshots[first] = record
    world.run(20)
    assert resolved_refs(world) == "" and world.weights() == {"v1": 100}
    del world.snapshots[first]
    world.pods[first].record = ""
    world.run(5)
    world.edit(rollout__rollbackTo=None)
    world.run_until("Paused")
    assert world.weights() == {"v2": 10, "v1": 90}, "by its steps: the former promotion is of a former attempt"


@pytest.mark.parametrize("token", ["promote", "promoteFull", "promoteFull of a revision"])
def test_an_intent_of_the_past_does_not_act_on_a_later_attempt(token: str) -> None:
    """The status was lost, and with it the number of attempts: the token in the spec still names an earlier one."""
    world = healthy()
    world.edit(model=model("v2"))
    world.run_until("Paused")
    rollout = world.parsed().rollout
    assert rollout and rollout.attempt == 1
    field, _, bare = token.partition(" of ")
    value = rollout.step_token if field == "promote" else rollout.attempt_token
    world.__class__ = Forged
    world.forge({})
    world.edit(**{f"rollout__{field}": rollout.revision if bare else value})
    world.run(120)
    again = world.parsed().rollout
    assert again and (again.attempt, again.step_index, again.state) == (2, 1, "Paused")
    assert world.weights() == {"v2": 10, "v1": 90}
