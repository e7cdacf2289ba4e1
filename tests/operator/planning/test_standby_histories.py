"""Random histories with standby pods: the invariants hold, and in the end as many wait as the spec says."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.operator.planning.test_invariants import ACTS, FEW, HISTORIES, do, settle_at_rest
from tests.support.model_cluster import ModelCluster, healthy

KEPT = (
    "version",
    "replicas",
    "intent",
    "lose_pods",
    "inflight",
    "crash",
    "places",
    "restart",
    "time",
    "jump",
    "deafen",
)
STANDBY_ACTS = st.one_of(
    ACTS.filter(lambda act: act[0] in KEPT),
    st.tuples(st.just("replicas"), st.integers(0, 5)),
    st.tuples(st.just("standby"), st.integers(0, 3)),
    st.tuples(st.just("preempt"), st.integers(0, 2)),
    st.tuples(st.just("loads"), st.sampled_from((1, 5, 40))),
    st.tuples(st.just("time"), st.integers(1, 8)),
)


def act_on(world: ModelCluster, act: str, value: Any) -> None:
    if act == "standby":
        world.edit(standbyReplicas=value)
    elif act == "preempt":  # other pods take the nodes of these, waiting or not
        for item in world.standby.values():
            item.pods = item.pods[value:]
    elif act == "loads":
        world.standby_loads_s = value
    else:
        do(world, act, value)


@pytest.mark.timeout(0 if HISTORIES > FEW else 600)
@settings(
    max_examples=max(8, HISTORIES // 3),
    derandomize=HISTORIES == FEW,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(history=st.lists(STANDBY_ACTS, min_size=5, max_size=25))
def test_invariants_hold_with_standby_pods(history: list[tuple[str, Any]]) -> None:
    world = healthy(replicas=2, standbyReplicas=2)
    world.delays_changed = world.surge_changed = world.replicas_walk = True
    for act, value in history:
        act_on(world, act, value)
    world.inflight, world.places, world.standby_loads_s = {}, None, 1
    for gateway in world.gateways:
        gateway.reachable = True
    world.edit(paused=False, replicas=3, standbyReplicas=2, progressDeadlineSeconds=3600)
    world.run(150)
    settle_at_rest(world)
    status = world.parsed()
    if status.phase == "Paused":
        return
    assert status.standby and (status.standby.replicas, status.standby.ready) == (2, 2)
    stable = status.stable_revision or ""
    assert set(world.standby) == {stable}
    assert world.pods[stable].desired + len(world.serving(stable)) == 3
