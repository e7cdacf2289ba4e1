"""Random histories of a deployment that sleeps: each request is answered, and in the end it sleeps again."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.operator.planning.test_invariants import FEW, HISTORIES, crash, deafen, intend
from tests.operator.planning.test_sleep import IDLE_S, SCALED, pods, state
from tests.support.model_cluster import ModelCluster, ModelGateway, healthy, model

STRATEGIES: tuple[dict[str, Any], ...] = (
    {"canary": {"steps": [{"setWeight": 50}, {"pause": {"duration": "3s"}}], "scaleDownDelaySeconds": 2}},
    {"blueGreen": {"scaleDownDelaySeconds": 2}},
    {"canary": {"steps": [{"setWeight": 50}, {"pause": {}}]}},
)
ACTS = st.one_of(
    st.tuples(st.just("visit"), st.integers(0, 1)),
    st.tuples(st.just("visit"), st.integers(0, 1)),
    st.tuples(st.just("live"), st.integers(1, IDLE_S + 5)),
    st.tuples(st.just("follow"), st.integers(1, 3)),
    st.tuples(st.just("crash"), st.integers(0, 3)),
    st.tuples(st.just("reconcile"), st.just(0)),
    st.tuples(st.just("version"), st.sampled_from(("v1", "v2"))),
    st.tuples(st.just("replicas"), st.integers(1, 3)),
    st.tuples(st.just("intent"), st.sampled_from(("promoteFull", "abort", "retry", "rollbackTo"))),
    st.tuples(st.just("deafen"), st.tuples(st.integers(0, 1), st.booleans())),
    st.tuples(st.just("replace"), st.integers(0, 1)),
    st.tuples(st.just("idle"), st.booleans()),
)


def replace_gateway(world: ModelCluster, index: int) -> None:
    """A rolling update: a gateway leaves when its requests are answered, and another begins to know the route."""
    former = world.gateways[index]
    if not former.held:
        new = ModelGateway("new", None, since=world.now)
        new.served, new.refused = former.served, former.refused
        world.gateways[index] = new


def follow_late(world: ModelCluster, seconds: int) -> None:
    """Gateways follow written tables late."""
    for _ in range(seconds):
        world.reconcile()
        world.pass_time(gateways=False)


def live(world: ModelCluster, seconds: int) -> None:
    for _ in range(seconds):
        world.reconcile()
        world.pass_time()


DEEDS: dict[str, Callable[[ModelCluster, Any], Any]] = {
    "visit": lambda world, value: world.gateways[value].visit(world),
    "live": live,
    "follow": follow_late,
    "crash": crash,
    "reconcile": lambda world, value: world.reconcile(),
    "version": lambda world, value: world.edit(model=model(value)),
    "replicas": lambda world, value: world.edit(replicas=value),
    "intent": intend,
    "deafen": deafen,
    "replace": replace_gateway,
    "idle": lambda world, value: world.edit(autoscaling=dict(SCALED) if value else None),
}


@pytest.mark.timeout(0 if HISTORIES > FEW else 600)
@settings(
    max_examples=HISTORIES // 3, derandomize=HISTORIES == FEW, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(st.sampled_from(STRATEGIES), st.lists(ACTS, min_size=5, max_size=25))
def test_no_request_is_refused(strategy: dict[str, Any], history: list[tuple[str, Any]]) -> None:
    world = healthy(replicas=2, autoscaling=dict(SCALED), strategy=strategy, progressDeadlineSeconds=3600)
    world.delays_changed = world.surge_changed = world.replicas_walk = True
    requests = 0
    for act, value in history:
        requests += act == "visit" and world.gateways[value].generation is not None
        DEEDS[act](world, value)
        assert not any(gateway.refused for gateway in world.gateways)
    for gateway in world.gateways:
        gateway.reachable = True
    world.edit(autoscaling=dict(SCALED), strategy={"canary": {"steps": [{"setWeight": 50}]}})
    world.run(150)
    assert [gateway.held for gateway in world.gateways] == [0, 0]
    assert sum(gateway.served for gateway in world.gateways) == requests
    assert (state(world), pods(world)) == ("Asleep", 0)
