"""The status of a ModelPool: what people see of its entries and of its pods."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from slipway_contracts.api.writing import to_json
from slipway_operator.api.fitting import fitted
from slipway_operator.api.pools.model_pool import ModelPoolSpec, ModelPoolStatus, PoolEntryStatus
from slipway_operator.manifests.pools.entries import PoolMemberRevision
from slipway_operator.model.cluster.observed import Observed, Snapshot, Workload
from slipway_operator.model.inputs.classic import PoolMember
from slipway_operator.model.inputs.pod_inputs import Model, PodInputs
from slipway_operator.model.pool_views import MAX_ENTRIES, EntryState, PoolPod, PoolView
from slipway_operator.planning import pools
from slipway_operator.pools.serving import served

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
LOADED, COLD = EntryState("READY", "", True), EntryState("UNAVAILABLE", "unloaded")
EVICTED, BROKEN = EntryState("UNAVAILABLE", "unloaded", True), EntryState("UNAVAILABLE", "The model is no ONNX file.")
FETCHING = EntryState("UNAVAILABLE", "The files of the model are not here yet: they are being downloaded.")


def member(revision: str, name: str = "iris") -> PoolMemberRevision:
    inputs = PodInputs(Model("file:///m", name, task="predict"), pool=PoolMember("shared"))
    return PoolMemberRevision(f"{name}-deployment", Snapshot(revision, 1, inputs, "", 600, 3), revision == "r1")


def status(
    *pods: PoolPod, replicas: int = 2, members: tuple[PoolMemberRevision, ...] = (member("r1"),)
) -> ModelPoolStatus:
    spec = ModelPoolSpec(replicas=replicas)
    return pools.status(1, spec, PoolView("set", len(pods), pods), (members, 0), ModelPoolStatus(), NOW)


def test_an_entry_shows_how_many_pods_have_it_in_memory_and_why_one_does_not_serve_it() -> None:
    first = PoolPod("shared-pool-0", {"r1": LOADED, "r2": LOADED, "r3": COLD}, loaded=2)
    second = PoolPod("shared-pool-1", {"r1": COLD, "r2": FETCHING}, loaded=0)
    silent = PoolPod("shared-pool-2")
    found = status(first, second, silent, members=(member("r1"), member("r2"), member("r3", "churn")))
    assert found.entries == (
        PoolEntryStatus("iris", "r1", "iris-deployment", True, 1, 1, 2, ""),
        PoolEntryStatus("iris", "r2", "iris-deployment", False, 1, 1, 2, f"pod shared-pool-1: {FETCHING.reason}"),
        PoolEntryStatus("churn", "r3", "churn-deployment", False, 0, 0, 1, f"pod shared-pool-1: {pools.NOT_THERE}"),
    )


SILENT = EntryState("silent")
READ_ALL = (LOADED, COLD, EVICTED, FETCHING, BROKEN, SILENT, None)


@pytest.mark.parametrize("states", [(), *itertools.product(READ_ALL, repeat=1), *itertools.product(READ_ALL, repeat=2)])
@pytest.mark.parametrize("stable", ["r1", ""])
def test_members_are_explained_by_the_status_as_they_are_reconciled_by_the_pods(
    states: tuple[EntryState | None, ...], stable: str
) -> None:
    entries = [None if one is SILENT else {"r1": one} if one else {} for one in states]
    pods = [PoolPod(f"p{index}", found) for index, found in enumerate(entries)]
    written = status(*pods)
    item = replace(Workload("r1", 0, 0, 1, ()), kind="ModelPool", desired=1)
    observed = Observed({"r1": member("r1").snapshot}, {"r1": item})
    direct, explained = (
        served(observed, "team", {("team", "shared"): view}, stable).workloads["r1"]
        for view in (PoolView("set", len(pods), tuple(pods)), pools.view_of(written, "set"))
    )
    assert (direct.ready, direct.uid) == (explained.ready, explained.uid)
    assert [one.reason for one in direct.troubles] == [one.reason for one in explained.troubles]


def test_a_refused_spec_keeps_the_entries_that_its_pods_still_have() -> None:
    former = status(PoolPod("shared-pool-0", {"r1": LOADED}))
    assert pools.refused(2, "spec.replicas: must be a number", former, NOW).entries == former.entries


def test_the_largest_status_is_written_and_bounded() -> None:
    long = EntryState("UNAVAILABLE", "x" * 512)
    members = tuple(member(f"r{number}", "n" * 253) for number in range(MAX_ENTRIES))
    pod = PoolPod("p" * 63, {one.snapshot.revision: long for one in members})
    written = fitted(ModelPoolStatus, to_json(status(pod, members=members)))
    assert len(written["entries"]) == MAX_ENTRIES
    assert len(str(written)) < 400_000, "etcd takes 1.5 MB"


@pytest.mark.parametrize(
    ("replicas", "members", "shown"),
    [
        (1, (member("r1"),), ("False", "SingleReplica")),
        (1, (), ("True", "NoModels")),
        (2, (member("r1"),), ("True", "SeveralReplicas")),
        (0, (member("r1"),), ("True", "NoReplicas")),
    ],
)
def test_models_in_a_single_pod_are_not_redundant(
    replicas: int, members: tuple[PoolMemberRevision, ...], shown: tuple[str, str]
) -> None:
    [found] = [one for one in status(replicas=replicas, members=members).conditions if one.type == "Redundant"]
    assert (found.status, found.reason) == shown
