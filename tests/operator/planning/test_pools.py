"""A member of a pool in plans: an entry in place of pods."""

import pytest

from slipway_operator.model.inputs.pod_inputs import inputs_to_dict, parse_inputs
from slipway_operator.planning.facts.revision import revision_hash
from tests.support.model_cluster import ModelCluster, cluster
from tests.support.planned import plan

CLASSIC = {"uri": "file:///m", "task": "predict"}


def planned(world: ModelCluster):
    return plan(world.obj(), world.parsed(), world.observed(), world.settings, world.now)


def test_a_member_gets_a_record_and_an_empty_workload_and_no_service() -> None:
    [record, workload] = planned(cluster(model=CLASSIC, pool={"name": "shared"}, replicas=1)).create
    assert (record.manifest["kind"], workload.manifest["kind"]) == ("ControllerRevision", "ReplicaSet")
    assert workload.manifest["spec"]["replicas"] == 0, "a pool has the pods"
    annotations = workload.manifest["metadata"]["annotations"]
    assert annotations == {"slipway.dev/pool-replicas": "1", "slipway.dev/record": annotations["slipway.dev/record"]}
    assert record.manifest["data"]["inputs"]["pool"] == {"name": "shared"}


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "other"},
        {"name": "shared", "pinned": True},
        {"name": "shared", "maxInFlight": 8},
        {"name": "shared", "maxMemory": "1Gi"},
        {"name": "shared", "threads": 2},
    ],
)
def test_another_pool_or_other_limits_there_are_another_revision(changed: dict) -> None:
    first = parse_inputs({"model": CLASSIC, "pool": {"name": "shared"}}, "iris")
    second = parse_inputs({"model": CLASSIC, "pool": changed}, "iris")
    alone = parse_inputs({"model": CLASSIC}, "iris")
    assert len({revision_hash(one) for one in (first, second, alone)}) == 3
    assert parse_inputs(inputs_to_dict(second), "iris") == second, "the record is read as it was written"


def test_defaults_of_a_membership_change_no_identity() -> None:
    short = parse_inputs({"model": CLASSIC, "pool": {"name": "shared"}}, "iris")
    long = parse_inputs({"model": CLASSIC, "pool": {"name": "shared", "pinned": False}}, "iris")
    assert revision_hash(short) == revision_hash(long)
