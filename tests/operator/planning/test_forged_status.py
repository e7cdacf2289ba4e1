"""A status that others wrote: the operator recovers within 30 s, and is never Healthy without service (S1)."""

from random import Random
from typing import Any

import pytest

from slipway_contracts.route_table import Traffic
from tests.support.forgery import Forged, forged
from tests.support.model_cluster import ModelCluster, ModelGateway, cluster, healthy, model

pytestmark = pytest.mark.finding("S1")

SEEDS = 150
SETTLES_S = 30


TWINS = {"revision": "y", "twin": "z", "percentage": 5, "maxPairsPerSecond": 1}


def world_of(seed: int) -> tuple[ModelCluster, list[dict[str, Any]]]:
    """One that is idle, or in the pause of a canary; and statuses that it had before."""
    world, former = healthy(), []
    world.__class__ = Forged
    world.edit(model=model("v2"))
    for _ in range(60):
        former.append(world.status)
        world.reconcile()
        world.pass_time()
    if seed % 2:
        world.edit(rollout__promoteFull=world.parsed().rollout.attempt_token)  # type: ignore[union-attr]
        world.run_until(None)
        world.run(40)
    return world, former


def serves(world: ModelCluster) -> bool:
    """Whether each gateway routes by one table, the operator's, to pods that are ready."""
    table: Traffic | None = world.parsed().traffic
    if table is None or any(gateway.digest != table.digest for gateway in world.gateways):
        return False
    return all(world.pods[item.revision].ready > 0 for item in table.backends if item.weight)


@pytest.mark.parametrize("lot", range(5))
def test_a_forged_status_converges(lot: int) -> None:
    for seed in range(lot, SEEDS, 5):
        random = Random(seed)
        world, former = world_of(seed)
        what, status = forged(world.status, former, random)
        world.forge(status)
        for second in range(SETTLES_S):
            world.reconcile()
            world.pass_time()
            healthy_now = world.parsed().phase == "Healthy"
            assert not healthy_now or serves(world) or second < 2, (seed, what, "Healthy without service")
        world.reconcile()
        now = world.parsed()
        assert serves(world), (seed, what, now.message)
        assert now.traffic and now.traffic.model == "chat"
        if world.state():
            world.edit(rollout__promoteFull=now.rollout.attempt_token)  # type: ignore[union-attr]
        world.run(60)
        assert world.state() is None and world.parsed().phase == "Healthy", (seed, what, world.parsed().message)
        assert serves(world) and world.weights() == {"v2": 100}, (seed, what)


@pytest.mark.parametrize("number", [1, 7])
def test_a_lost_table_is_published_above_what_gateways_know(number: int) -> None:
    """Story S1: the operator started again at 1, and treated gateways that stayed at 7 as up to date."""
    world = healthy()
    table = world.parsed().traffic
    assert table
    for gateway in world.gateways:
        gateway.generation = number
    world.patch_status(traffic=None)
    world.reconcile()
    renewed = world.parsed().traffic
    assert renewed and renewed.generation == number + 1
    assert renewed.acknowledged == "0/2"
    world.reconcile()
    assert "0 of 2 gateways acknowledged" in world.parsed().message, "a larger number acknowledges nothing"
    world.pass_time()
    world.reconcile()
    assert world.parsed().traffic.acknowledged == "2/2"  # type: ignore[union-attr]


def test_lost_status_in_a_canary_promotes_no_revision() -> None:
    """The gateways still route to stable; the canary starts again, at its first step."""
    world = healthy()
    stable = world.parsed().stable_revision
    world.edit(model=model("v2"))
    world.run_until("Paused")
    world.__class__ = Forged
    world.forge({})
    for _ in range(5):
        world.reconcile()
        assert world.parsed().stable_revision == stable
        assert (world.parsed().traffic or Traffic(0, "", "")).weight(stable) >= 90
        world.pass_time()
    assert world.parsed().rollout and world.parsed().rollout.attempt == 2
    assert "StatusRestored" in {event.reason for event in world.events}


def test_pods_stay_while_gateways_route_by_another_table() -> None:
    """D2, D6: a forged status lets all pods go; one gateway does not follow the operator's table."""
    world = healthy()
    first = world.parsed().stable_revision
    world.edit(model=model("v2"), rollout__promoteFull="aaaaaaaaaa")
    world.run_until("Paused")
    world.edit(rollout__promoteFull=world.parsed().rollout.attempt_token)  # type: ignore[union-attr]
    world.run_until(None)
    world.__class__ = Forged
    behind: ModelGateway = world.gateways[1]
    behind.digest = "of the table before"
    leaving = [
        item | {"scaleDownAt": "2001-01-01T00:00:00Z"} if item["revision"] == first else item
        for item in world.status["revisions"]
    ]
    world.patch_status(revisions=leaving)
    for _ in range(20):
        world.reconcile()
        world.pass_time(gateways=False)
    assert world.pods[str(first)].desired > 0
    world.pass_time()
    world.run(3)
    assert str(first) not in world.pods or world.pods[str(first)].desired == 0


def test_a_status_that_cannot_be_read_counts_as_lost() -> None:
    world = healthy()
    world.__class__ = Forged
    for forgery in (
        {"traffic": {}},
        {"rollout": {"state": "Nonsense"}},
        {"sleep": {"state": "Awake", "since": "0001-01-01T00:00:00+14:00"}},
    ):
        world.patch_status(**forgery)
        world.run(5)
        assert serves(world) and world.parsed().phase == "Healthy"


@pytest.mark.finding(26)
@pytest.mark.parametrize("tokens", [["abc"], ["/"], ["a/b/c"], ["a/x"], ["a/" + "9" * 40]])
def test_invalid_attempts_are_dropped_and_reported(tokens: list[str]) -> None:
    """Safety 26: fuzzing found a ValueError where the next attempt is counted, at each reconcile."""
    world = healthy()
    world.edit(model=model("v2"))
    world.patch_status(abortedRevisions=tokens)
    world.reconcile()
    assert "abortedRevisions" not in world.status
    assert any("status.abortedRevisions" in event.message for event in world.events)


@pytest.mark.finding(26)
@pytest.mark.parametrize(
    "route",
    [
        {"headerRoutes": [{"name": "x", "revision": "y", "match": []}]},
        {"mirrorRoutes": [{"name": "x", "revision": "y", "percentage": 101}]},
        {"mirrorRoutes": [{"name": "x", "revision": "y", "percentage": -1}]},
        {"twinShadow": TWINS | {"percentage": 101}},
        {"twinShadow": TWINS | {"maxPairsPerSecond": 0}},
        {"twinShadow": TWINS | {"epoch": -1}},
        {"twinShadow": TWINS | {"twin": "y"}},
        {"twinShadow": TWINS | {"latencies": [{"measure": "size", "maxSlowdown": 1}]}},
        {"twinShadow": TWINS | {"latencies": [{"measure": "ttft", "maxSlowdown": -1}]}},
    ],
)
def test_a_table_that_no_gateway_reads_is_not_kept(route: dict[str, Any]) -> None:
    """Safety 26: a header route without a match, and a share above 100 %, were written back as they were read."""
    world = cluster()
    world.__class__ = Forged
    world.broken = {"file:///models/v1"}
    world.run(3)
    table = {"generation": 1, "model": "chat", "salt": "s", "backends": [{"revision": "z", "weight": 100}]}
    world.patch_status(traffic=table | route)
    world.reconcile()
    assert "traffic" not in world.status, "while no pod is ready, a table stays as it is read"


@pytest.mark.parametrize(("written", "kept"), [(-1, None), (0, None), (7, 7), (9999, 9999), (10_000, None)])
def test_a_collision_count_has_room_in_a_name(written: int, kept: int | None) -> None:
    world = healthy()
    world.__class__ = Forged
    world.forge({**world.status, "collisionCount": written})
    world.reconcile()
    assert world.parsed().collision_count == kept


def test_children_keep_their_names_when_the_count_grows() -> None:
    """And those that are made later have it in theirs, on the way there and back."""
    world = healthy()
    world.__class__ = Forged
    before = {item.name for item in world.pods.values()}
    world.forge({**world.status, "collisionCount": 3})
    world.edit(model=model("v2"))
    world.run_until("Paused")
    world.edit(rollout__promoteFull=world.parsed().rollout.attempt_token)  # type: ignore[union-attr]
    world.run_until(None)
    added = {item.name for item in world.pods.values()} - before
    assert added == {f"chat-{world.parsed().stable_revision[:8]}-3"}  # type: ignore[index]
    assert before & {item.name for item in world.pods.values()}


def test_a_weight_is_not_reached_at_gateways_with_a_larger_number() -> None:
    """Story S1: a number that was as large as ours, or larger, counted for the same table."""
    world = healthy()
    world.edit(model=model("v2"))
    world.run_until("Shifting")
    for gateway in world.gateways:
        gateway.generation, gateway.digest = 1000, "of another table"
    world.reconcile()
    assert world.state() == "Shifting"
    world.run_until("Paused")


def forge(world: ModelCluster, **rollout: Any) -> None:
    """Write parts of status.rollout as a stranger."""
    world.__class__ = Forged
    world.patch_status(rollout=world.status["rollout"] | rollout)


@pytest.mark.parametrize("state", ["Paused", "Analyzing", "Provisioning", "Shifting", "CapacityWait"])
@pytest.mark.parametrize("place", [{"stepIndex": 4}, {"stepIndex": 900, "steps": 1000}, {"steps": 0}])
def test_step_index_beyond_the_steps_does_not_stop_the_rollout(state: str, place: dict[str, int]) -> None:
    """An IndexError at each reconcile: a hold at a step beyond the list, with the hash of the current list."""
    world = healthy()
    world.edit(model=model("v2"))
    world.run_until("Paused")
    forge(world, state=state, **place)
    world.run(SETTLES_S)
    rollout = world.parsed().rollout
    assert rollout is None or rollout.steps == 4
    if rollout:
        world.edit(rollout__promoteFull=rollout.attempt_token)
    world.run(60)
    assert world.state() is None and world.weights() == {"v2": 100}


def test_steps_that_are_edited_away_under_a_pause_are_no_forgery() -> None:
    world = healthy()
    world.edit(model=model("v2"))
    world.run_until("Paused")
    world.edit(strategy={"canary": {"steps": [{"setWeight": 10}]}})
    world.run(20)
    assert "StatusRestored" not in {event.reason for event in world.events}
    assert world.state() is None and world.weights() == {"v2": 100}


def test_sleep_without_a_decision_to_count_from() -> None:
    """A TypeError at each reconcile: the decisions were lost, and the deployment may sleep."""
    world = healthy()
    world.__class__ = Forged
    scaled = {"minReplicas": 0, "maxReplicas": 4, "idleSeconds": 8, "metrics": [{"type": "InFlight", "target": "4"}]}
    world.edit(autoscaling=scaled)
    world.patch_status(decisions=None)
    world.run(30)
    assert world.parsed().phase == "Asleep"


@pytest.mark.parametrize("number", [2**53 - 1, 2**53 - 2, 2**40])
@pytest.mark.parametrize("edit", [{}, {"salt": "z", "model": "q"}])
def test_generation_without_a_next_one_counts_as_lost(number: int, edit: dict[str, str]) -> None:
    """The next one was 2^53, which each plan dropped again: never synced, and two Events per second."""
    world = healthy()
    world.edit(model=model("v2"))
    world.run_until("Paused")
    world.__class__ = Forged
    world.patch_status(traffic=world.status["traffic"] | edit | {"generation": number})
    world.pass_time()  # gateways load it, and report its generation
    before = len(world.events)
    world.run(SETTLES_S)
    assert serves(world)
    assert world.parsed().traffic.generation < 2**30  # type: ignore[union-attr]
    assert [event.reason for event in world.events[before:]].count("StatusRestored") <= 2
    world.edit(rollout__promoteFull=world.parsed().rollout.attempt_token)  # type: ignore[union-attr]
    world.run(60)
    assert world.state() is None and world.weights() == {"v2": 100}


@pytest.mark.parametrize("backend", [None, {"revision": "elsewhere00", "weight": 100}])
def test_route_is_repaired_with_an_invalid_spec(backend: dict[str, Any] | None) -> None:
    """The route stayed lost or wrong as long as the spec stayed invalid, and Ready was True."""
    world = healthy()
    world.__class__ = Forged
    before = world.weights()
    world.edit(resources__accelerator={"count": 2})
    world.reconcile()
    world.patch_status(traffic=world.status["traffic"] | {"backends": [backend]} if backend else None)
    world.run(5)
    assert serves(world) and world.weights() == before
    assert world.parsed().reason == "InvalidSpec" and world.parsed().phase == "Degraded"
    conditions = {item.type: item.status for item in world.parsed().conditions}
    assert (conditions["Accepted"], conditions["Ready"], conditions["TrafficSynced"]) == ("False", "True", "True")


def test_an_invalid_spec_does_not_hide_that_nothing_serves() -> None:
    world = healthy()
    world.__class__ = Forged
    world.edit(resources__accelerator={"count": 2})
    world.crashed = {"file:///models/v1"}
    world.run(3)
    conditions = {item.type: (item.status, item.reason) for item in world.parsed().conditions}
    assert conditions["Ready"] == ("False", "NoReadyPods") and conditions["Available"][0] == "False"
