"""Cells of the matrix "what is missing is never guessed": phases of a rollout, and what happens to objects."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from slipway_operator.model.cluster.history import UNKNOWN
from slipway_operator.model.cluster.observed import Child
from tests.support.forgery import Forged
from tests.support.model_cluster import ModelCluster, ModelGateway, healthy, model

STEPS = [{"setWeight": 10}, {"pause": {}}, {"setWeight": 50}, {"pause": {}}]
GREEN = {"blueGreen": {"autoPromotionEnabled": False, "scaleDownDelaySeconds": 600}}
SCALED = {"minReplicas": 0, "maxReplicas": 4, "idleSeconds": 8, "metrics": [{"type": "InFlight", "target": "4"}]}


@dataclass(frozen=True)
class Roles:
    """The revisions of a phase; `other`: the one under test, rejected, rolled back from, or former."""

    stable: str
    other: str
    tested: int = 0  # percent that the other one may have


# --- phases -----------------------------------------------------------------------------------------------------------


def _started(**options: object) -> ModelCluster:
    world = healthy(steps=STEPS, **options)
    world.edit(model=model("v2"))
    return world


def _promoted(**options: object) -> ModelCluster:
    world = _started(**options)
    world.run_until("Paused")
    rollout = world.parsed().rollout
    assert rollout
    world.edit(rollout__promoteFull=rollout.attempt_token)
    world.run_until(None)
    return world


def _stepping() -> ModelCluster:
    world = _started()
    world.run_until("Shifting")
    return world


def _paused() -> ModelCluster:
    world = _started()
    world.run_until("Paused")
    return world


def _aborted() -> ModelCluster:
    world = _paused()
    rollout = world.parsed().rollout
    assert rollout
    world.edit(rollout__abort=rollout.attempt_token)
    world.run_until("Aborted")
    return world


def _rolled_back() -> ModelCluster:
    world = _promoted()
    status = world.parsed()
    world.edit(rollout__rollbackTo=f"{status.stable_revision}/{status.previous_revision}")
    world.run_until("Promoting")
    world.run_until(None)
    return world


def _preview() -> ModelCluster:
    world = _started(strategy=GREEN)
    world.run_until("Paused")
    return world


def _switched() -> ModelCluster:
    return _promoted(strategy=GREEN)


def _asleep() -> ModelCluster:
    world = _promoted()
    world.run(40)
    world.edit(autoscaling=SCALED)
    world.run(40)
    assert world.parsed().phase == "Asleep"
    return world


def _settled() -> ModelCluster:
    world = _promoted()
    world.run(60)
    return world


PHASES: dict[str, Callable[[], ModelCluster]] = {
    "canary in a step": _stepping,
    "canary paused": _paused,
    "rollback held": _rolled_back,
    "aborted": _aborted,
    "blue-green preview": _preview,
    "blue-green after the switch": _switched,
    "asleep": _asleep,
    "promoted": _settled,
}


@cache
def _built(phase: str) -> ModelCluster:
    world = PHASES[phase]()
    world.run(3)
    return world


def world_in(phase: str) -> tuple[ModelCluster, Roles]:
    """A world of its own in this phase, with what is recorded beside its status; and its revisions."""
    world = copy.deepcopy(_built(phase))
    stable = str(world.parsed().stable_revision)
    [other] = world.snapshots.keys() - {stable}
    tested = 10 if phase.startswith("canary") else 0
    return world, Roles(stable, other, tested)


# --- what happens -----------------------------------------------------------------------------------------------------

Damage = Callable[[ModelCluster, str], None]


def _record_deleted(world: ModelCluster, revision: str) -> None:
    world.snapshots.pop(revision, None)


def _record_deleted_without_a_copy(world: ModelCluster, revision: str) -> None:
    _record_deleted(world, revision)
    _copy_emptied(world, revision)


def _record_of_other(world: ModelCluster, revision: str) -> None:
    name = world.snapshots.pop(revision).name
    world.foreign = (*world.foreign, Child("apps/v1", "ControllerRevision", name, revision, "Other other"))


def _history_lost(world: ModelCluster, revision: str) -> None:
    """A former copy of the record, from before its rollout."""
    world.snapshots[revision] = replace(world.snapshots[revision], history=UNKNOWN, weights=None)


def _copy_emptied(world: ModelCluster, revision: str) -> None:
    if revision in world.pods:
        world.pods[revision].record = ""


def _copy_of_nothing(world: ModelCluster, revision: str) -> None:
    _record_deleted(world, revision)
    if revision in world.pods:
        world.pods[revision].record = '{"annotations": {}, "data": {}, "revision": 1}'


def _workload_deleted(world: ModelCluster, revision: str) -> None:
    world.pods.pop(revision, None)


def _workload_of_other(world: ModelCluster, revision: str) -> None:
    if revision in world.pods:
        name = world.pods.pop(revision).name
        world.foreign = (*world.foreign, Child("apps/v1", "ReplicaSet", name, revision, "Other other"))


def _workload_scaled_to_zero(world: ModelCluster, revision: str) -> None:
    if revision in world.pods:
        world.pods[revision].desired = 0


def _service_deleted(world: ModelCluster, revision: str) -> None:
    world.services.pop(revision, None)


def _everything_deleted(world: ModelCluster, revision: str) -> None:
    _record_deleted(world, revision)
    _workload_deleted(world, revision)
    _service_deleted(world, revision)


OF_A_REVISION: dict[str, Damage] = {
    "ControllerRevision deleted": _record_deleted,
    "ControllerRevision deleted, no copy": _record_deleted_without_a_copy,
    "ControllerRevision deleted, the copy emptied": _copy_of_nothing,
    "ControllerRevision of another owner": _record_of_other,
    "ControllerRevision, an older copy": _history_lost,
    "ReplicaSet deleted": _workload_deleted,
    "ReplicaSet of another owner": _workload_of_other,
    "ReplicaSet emptied": _workload_scaled_to_zero,
    "ReplicaSet without its copy of the record": _copy_emptied,
    "Service deleted": _service_deleted,
    "ControllerRevision, ReplicaSet and Service deleted": _everything_deleted,
}


def _each(damage: Damage) -> Callable[[ModelCluster], None]:
    def happens(world: ModelCluster) -> None:
        for revision in sorted(world.snapshots):
            damage(world, revision)

    return happens


def _status_lost(world: ModelCluster) -> None:
    world.__class__ = Forged
    world.forge({})


def _status_of_before(world: ModelCluster) -> None:
    """The status from before the second revision."""
    world.__class__ = Forged
    strategy = {"strategy": world.spec["strategy"]} if "blueGreen" in world.spec["strategy"] else {}
    world.forge(healthy(steps=STEPS, **strategy).status)


def _gateways_restarted(world: ModelCluster) -> None:
    world.gateways = [ModelGateway("c"), ModelGateway("d")]


def _together(*damages: Callable[[ModelCluster], None]) -> Callable[[ModelCluster], None]:
    def happens(world: ModelCluster) -> None:
        for damage in damages:
            damage(world)

    return happens


_no_records, _no_workloads = _each(_record_deleted), _each(_workload_deleted)
OF_A_NAMESPACE: dict[str, Callable[[ModelCluster], None]] = {
    "the status is lost": _status_lost,
    "the status is an older copy": _status_of_before,
    "gateways restarted": _gateways_restarted,
    "the status is lost and gateways restarted": _together(_status_lost, _gateways_restarted),
    "the status is an older copy and gateways restarted": _together(_status_of_before, _gateways_restarted),
    "no ControllerRevisions": _no_records,
    "no ControllerRevisions and no copies": _each(_record_deleted_without_a_copy),
    "no ReplicaSets": _no_workloads,
    "no Services": _each(_service_deleted),
    "no ControllerRevisions and no status": _together(_no_records, _status_lost),
    "no ControllerRevisions, no copies and no status": _together(_each(_record_deleted_without_a_copy), _status_lost),
    "no ControllerRevisions, no status, gateways restarted": _together(_no_records, _status_lost, _gateways_restarted),
    "no ReplicaSets and no status": _together(_no_workloads, _status_lost),
    "no ReplicaSets, no status, gateways restarted": _together(_no_workloads, _status_lost, _gateways_restarted),
    "only the ModelDeployment": _together(_each(_everything_deleted), _gateways_restarted),
}
