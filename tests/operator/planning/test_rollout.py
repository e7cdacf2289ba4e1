"""The rows of the rollout's table, each by name, in a model cluster."""

from dataclasses import replace

import pytest

from slipway_operator.api.v1alpha1.status import State
from slipway_operator.model.deployment.status import render
from slipway_operator.planning.rollout.table import TABLE
from tests.support.model_cluster import SETTINGS, ModelCluster, ModelGateway, cluster, healthy, model
from tests.support.planned import plan


def token(world: ModelCluster) -> str:
    rollout = world.parsed().rollout
    assert rollout
    return rollout.token


def attempt(world: ModelCluster) -> str:
    return token(world).rsplit("/", 1)[0]


def canary_at_first_pause(**options: object) -> ModelCluster:
    world = healthy(**options)  # type: ignore[arg-type]
    world.edit(model=model("v2"))
    world.run_until("Paused")
    return world


def reasons(world: ModelCluster) -> list[str]:
    return [event.reason for event in world.events]


def test_first_revision_comes_up_without_steps() -> None:
    world = healthy()
    status = world.parsed()
    assert (status.phase, status.step, world.weights()) == ("Healthy", None, {"v1": 100})
    assert status.message.startswith(f"serving revision {status.stable_revision}: 2 of 2 pods ready")
    assert "RolloutCompleted" in reasons(world)


def test_first_serves_and_changes_keeps_what_serves_as_stable() -> None:
    world = cluster(replicas=4)
    world.reconcile()
    world.pass_time(pods=False)
    next(iter(world.pods.values())).ready = 1
    world.reconcile()
    assert world.weights() == {"v1": 100}
    world.edit(model=model("v2"))
    world.reconcile()
    assert world.state() == "Initializing", "no gateway knows it yet: it neither serves nor may it go"
    world.pass_time(pods=False)
    world.reconcile()
    assert world.snapshots[world.parsed().stable_revision or ""].inputs.model.version == "v1"


def test_first_replaced_before_it_serves() -> None:
    world = cluster()
    world.broken = {"file:///models/v1"}
    world.run(3)
    world.edit(model=model("v2"))
    world.run_until(None)
    assert world.weights() == {"v2": 100}
    world.run(60)
    assert len(world.pods) == 1


def test_canary_waits_at_its_first_weight() -> None:
    world = canary_at_first_pause(replicas=4)
    assert world.weights() == {"v2": 10, "v1": 90}
    status = world.parsed()
    assert (status.phase, status.step, status.weight, status.ready) == ("Paused", "2/4", 10, "5/5")
    assert f"set spec.rollout.promote to {token(world)}" in status.message
    world.run(300)
    assert world.weights() == {"v2": 10, "v1": 90}


def test_promotion_releases_one_pause_and_the_rest_follows() -> None:
    world = canary_at_first_pause()
    world.edit(rollout__promote=token(world))
    world.run_until("Paused")
    assert world.weights() == {"v2": 50, "v1": 50}
    world.run_until(None)
    assert world.weights() == {"v2": 100}
    world.run(40)
    assert [item.desired for item in world.pods.values()] == [2]
    assert world.parsed().phase == "Healthy"


def test_old_revision_is_kept_until_drained() -> None:
    world = canary_at_first_pause(steps=[{"setWeight": 10}, {"pause": {}}])
    old = world.parsed().stable_revision or ""
    world.inflight = {old: 1}
    world.edit(rollout__promote=token(world))
    world.run_until(None)
    world.run(60)
    assert world.pods[old].desired == 2, "a request is still in progress there"
    assert f"former revision {old} finishes 2 requests" in world.parsed().message
    world.inflight = {}
    world.run(5)
    assert old not in world.pods


def test_drain_is_bounded() -> None:
    world = canary_at_first_pause(steps=[{"setWeight": 10}, {"pause": {}}], drain={"timeoutSeconds": 20})
    old = world.parsed().stable_revision or ""
    world.inflight = {old: 1}
    world.edit(rollout__promoteFull=world.parsed().canary_revision)
    world.run_until(None)
    world.run(60)
    assert old not in world.pods


def test_user_abort_returns_the_weight_and_has_an_event() -> None:
    world = canary_at_first_pause()
    stable, rejected = world.parsed().stable_revision, world.parsed().canary_revision
    world.edit(rollout__abort=attempt(world))
    world.run_until("Aborted")
    status = world.parsed()
    assert world.weights() == {"v1": 100}
    assert status.phase == "Degraded"
    assert status.message.startswith(
        f"serving stable {stable}; revision {rejected} was rejected: aborted by spec.rollout.abort"
    )
    world.run(40)
    assert rejected not in world.pods
    world.run(60)
    assert world.state() == "Aborted", "a rejected revision is not tried again by itself"


def test_abort_is_idempotent_and_does_not_hit_the_next_attempt() -> None:
    world = canary_at_first_pause()
    rejected = attempt(world)
    world.edit(rollout__abort=rejected)
    world.run_until("Aborted")
    world.edit(rollout__retry=rejected.replace("/1", "/2"))
    world.run_until("Paused")
    assert token(world).split("/")[1] == "2"
    assert world.parsed().aborted_revisions == (rejected,)


def test_retry_of_an_older_attempt_is_ignored() -> None:
    world = canary_at_first_pause()
    world.edit(rollout__abort=attempt(world), rollout__retry=attempt(world))
    world.run_until("Aborted")
    world.run(30)
    assert world.state() == "Aborted"


def test_edit_back_to_stable_is_an_abort_that_ends_healthy() -> None:
    world = canary_at_first_pause()
    pods = dict(world.pods)
    world.edit(model=model("v1"))
    world.run_until(None)
    assert world.weights() == {"v1": 100}
    world.run(60)
    assert world.parsed().phase == "Healthy"
    assert set(world.pods) < set(pods), "a revert creates no pods"


def test_reverted_after_abort_ends_healthy() -> None:
    world = canary_at_first_pause()
    world.edit(rollout__abort=attempt(world))
    world.run_until("Aborted")
    world.edit(model=model("v1"))
    world.run_until(None)
    assert world.parsed().phase == "Healthy"


def test_third_revision_supersedes() -> None:
    world = canary_at_first_pause()
    second = world.parsed().canary_revision
    world.edit(model=model("v3"))
    world.run_until("Paused")
    assert world.weights() == {"v3": 10, "v1": 90}
    assert "RevisionSuperseded" in reasons(world)
    assert second != world.parsed().canary_revision


def test_a_superseded_revision_makes_room_for_the_next_one_at_once() -> None:
    """Surge was short, and the next revision waited for the delay after which rejected pods leave."""
    steps = [{"setWeight": 10}, {"pause": {}}]
    world = healthy(strategy={"canary": {"steps": steps}, "capacity": {"maxSurge": 1}})
    world.broken = {"file:///models/v2"}  # it never had traffic
    world.edit(model=model("v2"))
    world.run(5)
    second = world.parsed().canary_revision
    world.edit(model=model("v3"))
    world.run(12)
    third = world.parsed().canary_revision
    assert second != third and world.pods[str(third)].desired == 1, world.parsed().message


def test_broken_revision_is_rejected_with_the_pods_own_reason() -> None:
    world = healthy()
    world.broken = {"file:///models/v2"}
    world.edit(model=model("v2"))
    world.run_until("Aborted")
    abort = world.parsed().rollout.abort  # type: ignore[union-attr]
    assert abort and abort.reason == "ProgressDeadlineExceeded"
    assert "CrashLoopBackOff: shard 2 is missing" in abort.message
    assert world.weights() == {"v1": 100}


def test_deadline_does_not_run_while_paused_by_spec() -> None:
    world = healthy()
    world.broken = {"file:///models/v2"}
    world.edit(model=model("v2"), paused=True)
    world.run(200)
    assert world.state() == "Provisioning"
    world.edit(paused=False)
    world.run(30)
    assert world.state() == "Provisioning", "the clock starts when the hold ends"
    world.run_until("Aborted")


def test_pause_by_spec_holds_and_abort_stays_live() -> None:
    world = healthy()
    world.edit(model=model("v2"), paused=True)
    world.run(30)
    assert (world.state(), world.parsed().phase) == ("Provisioning", "Paused")
    assert world.parsed().message.startswith("held by spec.paused; step 1 of 4")
    world.edit(rollout__abort=attempt(world))
    world.run_until("Aborted")


@pytest.mark.finding("L9")
def test_pods_beyond_those_that_are_wanted_are_counted_apart() -> None:
    """The message was: 3 of 2 pods ready."""
    world = healthy()
    ready = int(world.obj()["spec"]["replicas"])
    world.edit(replicas=ready - 1)
    before = world.parsed()
    planned = plan(world.obj(), before, world.observed(), SETTINGS, world.now).status
    assert f"{ready - 1} of {ready - 1} pods ready, 1 more than wanted" in planned.message
    (available,) = [item for item in planned.conditions if item.type == "Available"]
    assert available.message.startswith(f"{ready - 1} of {ready - 1} pods of revision")


def test_weight_waits_for_every_ready_gateway() -> None:
    world = healthy()
    world.gateways[1].generation, world.gateways[1].digest = 0, ""
    world.edit(model=model("v2"))
    for _ in range(20):
        world.reconcile()
        world.pass_time(gateways=False)
        world.gateways[0].follow(world.parsed().traffic)
    assert world.state() == "Shifting"
    assert "1 of 2 gateways acknowledged these weights" in world.parsed().message
    assert world.parsed().weight == 0, "what is shown is what was acknowledged"
    world.gateways[1].ready = False
    world.run_until("Paused")


def test_without_a_ready_gateway_nothing_moves() -> None:
    world = healthy()
    for gateway in world.gateways:
        gateway.ready = False
    world.edit(model=model("v2"))
    world.run(30)
    assert world.state() == "Shifting"
    assert "waits for a ready gateway" in world.parsed().message
    world.gateways.append(ModelGateway("c"))
    world.run_until("Paused")


def test_pods_lost_while_shifting_take_the_weight_down() -> None:
    world = canary_at_first_pause(replicas=4)
    world.edit(rollout__promote=token(world))
    world.run_until("Paused")
    target = world.parsed().canary_revision or ""
    world.broken = {"file:///models/v2"}
    world.pods[target].ready = 1
    world.reconcile()
    assert world.weights() == {"v2": 25, "v1": 75}
    world.pods[target].ready = 0
    world.reconcile()
    assert world.weights() == {"v2": 0, "v1": 100}


def test_steps_freeze_while_stable_lacks_pods() -> None:
    world = canary_at_first_pause(replicas=4, steps=[{"setWeight": 50}, {"pause": {"duration": "5s"}}])
    stable = world.parsed().stable_revision or ""
    world.broken = {"file:///models/v1"}
    world.pods[stable].ready = 1
    world.run(30)
    assert world.state() == "Paused"
    world.broken = set()
    world.run_until(None)


def test_promote_full_skips_steps_but_not_readiness() -> None:
    world = healthy(replicas=4)
    world.edit(model=model("v2"))
    world.run(2)
    world.edit(rollout__promoteFull=world.parsed().canary_revision)
    world.reconcile()
    assert world.state() == "Promoting"
    world.run_until(None)
    assert world.weights() == {"v2": 100}
    assert "SkipSteps" in reasons(world)


def test_edited_steps_keep_the_weight() -> None:
    world = canary_at_first_pause(replicas=4)
    world.edit(strategy__canary__steps=[{"setWeight": 5}, {"setWeight": 25}, {"pause": {}}])
    world.run_until("Paused")
    assert world.weights() == {"v2": 25, "v1": 75}
    assert "StepsChanged" in reasons(world)


def test_traffic_percent_steers_both_ways_and_promotes_at_100() -> None:
    world = healthy(replicas=4)
    world.edit(model=model("v2"), strategy__canary={"trafficPercent": 50})
    for percent in (50, 10, 75):
        world.edit(strategy__canary={"trafficPercent": percent})
        world.run(5)
        assert world.weights() == {"v2": percent, "v1": 100 - percent}
        assert world.state() == "Paused"
    world.edit(strategy__canary={"trafficPercent": 100})
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_blue_green_switches_at_once_after_full_size() -> None:
    world = healthy(replicas=3)
    world.edit(model=model("v2"), strategy={"blueGreen": {"autoPromotionEnabled": False}})
    world.run_until("Paused")
    assert world.weights() == {"v2": 0, "v1": 100}
    assert world.parsed().ready == "6/6"
    world.edit(rollout__promote=token(world))
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_without_strategy_weight_follows_readiness() -> None:
    world = healthy(replicas=4, strategy={})
    world.edit(model=model("v2"))
    world.reconcile()
    target = world.parsed().canary_revision or ""
    assert (world.state(), world.weights()) == ("Promoting", {"v2": 0, "v1": 100})
    world.pass_time(pods=False)
    world.pods[target].ready = 1
    world.reconcile()
    assert world.weights() == {"v2": 25, "v1": 75}
    world.run(20)
    assert world.parsed().stable_revision == target


def test_rollback_to_runs_a_former_revision_without_steps() -> None:
    world = canary_at_first_pause()
    first = world.parsed().stable_revision
    world.edit(rollout__promoteFull=world.parsed().canary_revision)
    world.run_until(None)
    second = world.parsed().stable_revision
    world.edit(rollout__rollbackTo=f"{second}/{first}")
    world.run_until("Promoting")
    world.run_until(None)
    assert world.parsed().stable_revision == first
    assert world.parsed().current_revision == second
    world.edit(model=model("v3"))
    world.run_until("Paused")
    assert world.weights() == {"v3": 10, "v1": 90}


def test_history_is_bounded() -> None:
    world = healthy(strategy={}, revisionHistoryLimit=2)
    for number in range(2, 8):
        world.edit(model=model(f"v{number}"))
        world.run(60)
    versions = sorted(item.inputs.model.version or "" for item in world.snapshots.values())
    assert versions == ["v4", "v5", "v6", "v7"], "stable, the one before, and two more"


def test_scale_changes_move_replicas_only() -> None:
    world = canary_at_first_pause(replicas=2)
    world.edit(replicas=6)
    world.run(5)
    assert sorted(item.desired for item in world.pods.values()) == [1, 6]
    assert (world.state(), world.weights()) == ("Paused", {"v2": 10, "v1": 90})


def test_scaled_to_zero_holds_the_rollout() -> None:
    world = canary_at_first_pause(replicas=2, steps=[{"setWeight": 10}, {"pause": {"duration": "5s"}}])
    world.edit(replicas=0)
    world.run(60)
    assert world.state() == "Paused"
    world.edit(replicas=2)
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_a_spec_that_cannot_be_read_stops_nothing() -> None:
    world = healthy()
    before = world.parsed()
    world.edit(strategy={"canary": {"steps": [{"pause": {"duration": "soon"}}]}})
    world.run(5)
    status = world.parsed()
    assert (status.phase, status.traffic) == ("Degraded", before.traffic)
    assert "'soon' is not a duration like 30s, 10m or 1h30m" in status.message
    assert status.conditions[0].status == "False"


def test_ignored_intents_have_one_event() -> None:
    world = canary_at_first_pause()
    world.edit(rollout__promote="aaaaaaaaaa/1/1")
    world.run(10)
    assert reasons(world).count("ControlIgnored") == 1


@pytest.mark.parametrize(("present", "waits_s"), [(True, 0.5), (False, 5.0)])
def test_gateways_are_read_often_and_rarely_while_there_is_none(present: bool, waits_s: float) -> None:
    world = ModelCluster({"model": model("v1"), "replicas": 2})
    world.gateways = [ModelGateway("a")] if present else []
    for _ in range(4):
        world.reconcile()
        world.pass_time(gateways=False)
    assert world.parsed().traffic is not None
    assert world.reconcile().requeue_after_s == waits_s


def test_a_settled_world_is_left_alone() -> None:
    world = healthy()
    world.run(60)
    before = world.calls
    decided = world.reconcile()
    assert (world.calls, decided.requeue_after_s) == (before, None)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_row_names_states_and_is_unique(row: object) -> None:
    names = [item.name for item in TABLE]
    assert names.count(row.name) == 1  # type: ignore[attr-defined]
    assert all(state is None or isinstance(state, State) for state in row.states)  # type: ignore[attr-defined]


def test_refused_workload_is_reported_and_exceeds_the_deadline() -> None:
    world = healthy()
    world.edit(model=model("v2"))
    for _ in range(100):
        seen = replace(world.observed(), refusal="ReplicaSet chat-x cannot be created: exceeded quota")
        decided = plan(world.obj(), world.parsed(), seen, SETTINGS, world.now)
        world.keep(decided.status, render(decided.status))
        world.pass_time()
    assert world.state() == "Aborted"
    assert "exceeded quota; raise that ResourceQuota" in world.parsed().message


def test_each_pause_has_one_event():
    world = healthy(steps=[{"pause": {"duration": "2s"}}, {"setWeight": 50}, {"pause": {"duration": "2s"}}])
    world.edit(model=model("v2"))
    world.run_until(None)
    pauses = [event.message.partition(" pauses ")[2] for event in world.events if event.reason == "RolloutPaused"]
    assert pauses == ["at step 1 of 3, attempt 1", "at step 3 of 3, attempt 1"]
