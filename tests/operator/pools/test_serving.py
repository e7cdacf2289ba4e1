"""Members of a pool as reconciles see them."""

from typing import Any

import pytest

from slipway_operator.kube.reading.observe import pool_entry
from slipway_operator.model.cluster.observed import Observed, Snapshot, Workload
from slipway_operator.model.inputs.classic import PoolMember
from slipway_operator.model.inputs.pod_inputs import Model, PodInputs
from slipway_operator.model.pool_views import EntryState, PoolPod, PoolView
from slipway_operator.planning.facts import causes
from slipway_operator.pools.serving import served

LOADED, COLD = EntryState("READY", "", True), EntryState("UNAVAILABLE", "unloaded")
EVICTED = EntryState("UNAVAILABLE", "unloaded", True)
BROKEN = EntryState("UNAVAILABLE", "The model is no ONNX file.")
FETCHING = EntryState("UNAVAILABLE", "The files of the model are not here yet: they are being downloaded.")


def entry(replicas: str = "1", **metadata: Any) -> Any:
    marks = {"labels": {"slipway.dev/revision": "r1"}, "annotations": {"slipway.dev/pool-replicas": replicas}}
    return {"metadata": {"name": "iris-r1", "namespace": "team"} | marks | metadata}


def seen(view: PoolView | None, replicas: str = "1", stable: str = "") -> Workload:
    """The revision r1 of a pool in this state."""
    member = PodInputs(Model("file:///m", "iris", task="predict"), pool=PoolMember("shared"))
    item = pool_entry(entry(replicas))
    assert item
    observed = Observed({"r1": Snapshot("r1", 1, member, "", 600, 3)}, {"r1": item})
    return served(observed, "team", {("team", "shared"): view} if view else {}, stable).workloads["r1"]


def pool(*states: EntryState | None, problem: str = "") -> PoolView:
    """With a ready pod for each state; None: its file lacks the entry."""
    pods = [PoolPod(f"shared-{index}", {} if one is None else {"r1": one}) for index, one in enumerate(states)]
    return PoolView("set", len(pods), tuple(pods), problem)


def test_a_replica_set_with_pods_is_no_entry() -> None:
    assert pool_entry(entry(annotations=None)) is None
    assert pool_entry(entry(annotations={"slipway.dev/weights": "1"})) is None


@pytest.mark.parametrize(
    ("states", "as_new", "as_stable"),
    [
        ([LOADED], 1, 1),
        ([LOADED, EVICTED], 1, 1),
        ([LOADED, COLD], 0, 1),
        ([LOADED, None], 0, 1),
        ([LOADED, BROKEN], 0, 1),
        ([FETCHING], 0, 1),
        ([COLD], 0, 1),
        ([BROKEN], 0, 0),
        ([None], 0, 0),
        ([], 0, 0),
    ],
)
def test_a_new_revision_is_proved_in_all_pods_and_stable_needs_one(
    states: list[EntryState | None], as_new: int, as_stable: int
) -> None:
    assert seen(pool(*states)).ready == as_new
    found = seen(pool(*states), stable="r1")
    assert (found.ready, found.desired, found.replicas, found.uid) == (as_stable, 1, 1, "set")


def test_a_pod_that_does_not_answer_proves_nothing() -> None:
    view = PoolView("set", 1, (PoolPod("shared-0", None),))
    assert seen(view).ready == seen(view, stable="r1").ready == 0


def test_a_revision_that_is_to_leave_is_not_ready_and_has_no_trouble() -> None:
    found = seen(pool(LOADED), replicas="0", stable="r1")
    assert (found.desired, found.replicas, found.ready, found.troubles) == (0, 0, 0, ())


@pytest.mark.parametrize(
    ("view", "reason", "words"),
    [
        (None, "PoolNotFound", "there is no ModelPool shared"),
        (pool(), "PoolNotReady", "no pod of the ModelPool shared is ready"),
        (pool(problem="pod shared-0: OOMKilled: too large"), "PoolNotReady", "OOMKilled: too large"),
        (pool(LOADED, BROKEN), "ModelNotLoaded", "pod shared-1: Error: The model is no ONNX file."),
    ],
)
def test_what_keeps_a_member_from_its_pool_is_a_cause(view: PoolView | None, reason: str, words: str) -> None:
    found = causes.of_workload(seen(view), PodInputs(Model("file:///m", "iris")).resources)
    assert found and found.reason == reason and words in found.message


@pytest.mark.parametrize("state", [COLD, FETCHING, EntryState("LOADING")])
def test_what_takes_its_time_is_no_cause(state: EntryState) -> None:
    assert seen(pool(state)).troubles == ()
