"""Mirrors: in force from their step on, while canary has pods, and gone with the steps, a promotion or a rejection."""

from typing import Any

import pytest

from slipway_contracts.route_table import HeaderMatch
from slipway_operator.model.deployment.strategy import SetMirrorRoute, parse_strategy
from tests.support.model_cluster import ModelCluster, healthy, model

MATCH = [{"headerName": "X-Team", "headerValue": {"prefix": "qa-"}}]
TEAM = (HeaderMatch("x-team", prefix="qa-"),)


def mirror(**fields: Any) -> dict[str, Any]:
    return {"setMirrorRoute": fields}


def mirrored(world: ModelCluster) -> list[tuple[str, int]]:
    """Names and shares of the mirrors in the route table of the gateways; all of them lead to canary."""
    traffic, status = world.parsed().traffic, world.parsed()
    routes = traffic.mirror_routes if traffic else ()
    assert all(route.revision == status.canary_revision != status.stable_revision for route in routes)
    return [(route.name, route.percentage) for route in routes]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"name": "m", "percentage": 20}, SetMirrorRoute("m", 20)),
        ({"percentage": 20}, SetMirrorRoute("mirror", 20)),
        ({"name": "m", "percentage": 5, "match": MATCH}, SetMirrorRoute("m", 5, TEAM)),
        ({"name": "m", "match": MATCH}, SetMirrorRoute("m", 100, TEAM)),
        ({"name": "m"}, SetMirrorRoute("m")),
        ({"name": "m", "match": []}, SetMirrorRoute("m")),
    ],
)
def test_a_step_is_read_as_argo_writes_it(written: dict[str, Any], meant: SetMirrorRoute) -> None:
    assert parse_strategy({"canary": {"steps": [mirror(**written)]}}).steps == (meant,)


def test_mirror_starts_with_its_step_at_weight_0_and_ends_with_another() -> None:
    steps = [
        {"setCanaryScale": {"replicas": 2}},
        mirror(percentage=20),
        {"pause": {}},
        mirror(percentage=40),
        mirror(name="testers", match=MATCH),
        {"pause": {}},
        mirror(),
        {"pause": {}},
    ]
    world = healthy(steps=steps)
    world.edit(model=model("v2"))
    world.run_until("Paused")
    assert (mirrored(world), world.weights()) == ([("mirror", 20)], {"v2": 0, "v1": 100})
    assert "mirrored to it: 20 % of stable's requests" in world.parsed().message
    promote(world)
    assert mirrored(world) == [("mirror", 40), ("testers", 100)]
    assert "mirrored to it: 40 %, 100 % of some of stable's requests" in world.parsed().message
    promote(world)
    assert mirrored(world) == [("testers", 100)]


def promote(world: ModelCluster) -> None:
    world.edit(rollout__promote=world.parsed().rollout.token)  # type: ignore[union-attr]
    world.run(10)
    assert world.state() == "Paused"


@pytest.fixture
def paused() -> ModelCluster:
    """A rollout that pauses with a mirror at 10 percent."""
    world = healthy(steps=[mirror(percentage=50), {"setWeight": 10}, {"pause": {}}])
    world.edit(model=model("v2"))
    world.run_until("Paused")
    assert (mirrored(world), world.weights()) == ([("mirror", 50)], {"v2": 10, "v1": 90})
    return world


def test_mirror_ends_with_an_abort_at_once(paused: ModelCluster) -> None:
    paused.edit(rollout__abort="/".join(paused.parsed().rollout.token.split("/")[:2]))  # type: ignore[union-attr]
    paused.reconcile()
    assert paused.state() == "Aborting" and mirrored(paused) == []
    paused.run_until("Aborted")
    assert mirrored(paused) == [] and "mirrored" not in paused.parsed().message


def test_mirror_ends_before_a_promotion_changes_a_weight(paused: ModelCluster) -> None:
    paused.edit(rollout__promote=paused.parsed().rollout.token)  # type: ignore[union-attr]
    paused.run_until("Promoting")
    assert mirrored(paused) == []
    paused.run_until(None)
    assert mirrored(paused) == [] and paused.weights() == {"v2": 100}


def test_mirror_needs_a_ready_pod(paused: ModelCluster) -> None:
    canary = paused.parsed().canary_revision
    assert canary
    paused.pods[canary].ready = 0
    paused.reconcile()
    assert mirrored(paused) == []
    paused.run(5)
    assert mirrored(paused) == [("mirror", 50)]


def test_mirror_is_a_generation_of_the_route_table() -> None:
    """What is mirrored under one share is never counted with another one."""
    world = healthy(
        steps=[{"setCanaryScale": {"replicas": 1}}, {"pause": {"duration": "5s"}}, mirror(percentage=50), {"pause": {}}]
    )
    world.edit(model=model("v2"))
    world.run_until("Paused")
    before = world.parsed().traffic.generation  # type: ignore[union-attr]
    world.run(10)
    assert mirrored(world) and world.parsed().traffic.generation == before + 1  # type: ignore[union-attr]
