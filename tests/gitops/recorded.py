"""Objects of every kind in every phase, as the operator's own functions write them: nothing here is typed by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from slipway_contracts.api.writing import to_json
from slipway_contracts.tenants import TenantReport
from slipway_operator.api.pools.model_pool import ModelPoolSpec, ModelPoolStatus
from slipway_operator.api.v1alpha1.experiment import ExperimentStatus
from slipway_operator.api.v1alpha1.model_route import ModelRouteStatus
from slipway_operator.model.cluster.names import Standing
from slipway_operator.model.pool_views import PoolPod, PoolView
from slipway_operator.planning import experiments, model_routes, pools
from slipway_operator.planning.experiment_counts import Counted
from tests.gitops.kstatus import Result
from tests.operator.planning import test_experiments, test_model_routes, test_tenants
from tests.operator.planning.test_analysis import analyzing
from tests.operator.planning.test_rollout import attempt, canary_at_first_pause
from tests.operator.pools import test_status as pool_status
from tests.support.model_cluster import ModelCluster, cluster, healthy, model

WAITS, FAILS, GOES_ON = Result.IN_PROGRESS, Result.FAILED, Result.CURRENT


@dataclass(frozen=True)
class Recorded:
    """An object, and what tools make of it: by kstatus, and by the health of Argo CD."""

    name: str
    kind: str
    obj: dict[str, Any]
    result: Result
    health: str


Scene = Callable[[], ModelCluster]


def _first() -> ModelCluster:
    world = cluster()
    world.reconcile()
    return world


def _first_too_late() -> ModelCluster:
    world = cluster()
    world.broken = {"file:///models/v1"}
    world.run(70)
    return world


def _state(state: str, **options: Any) -> ModelCluster:
    world = healthy(**options)
    world.edit(model=model("v2"))
    world.run_until(state)
    return world


def _no_node() -> ModelCluster:
    world = healthy()
    world.places = 2
    world.edit(model=model("v2"))
    world.run_until("CapacityWait")
    return world


def _analyzing() -> ModelCluster:
    world = analyzing()
    world.run_until("Analyzing")
    return world


def _promoting() -> ModelCluster:
    world = canary_at_first_pause()
    world.edit(rollout__promoteFull=attempt(world))
    world.run_until("Promoting")
    return world


def _promoted() -> ModelCluster:
    world = _promoting()
    world.run_until(None)
    return world


def _aborting() -> ModelCluster:
    world = canary_at_first_pause()
    world.edit(rollout__abort=attempt(world))
    world.reconcile()
    return world


def _aborted() -> ModelCluster:
    world = _aborting()
    world.run_until("Aborted")
    return world


def _broken() -> ModelCluster:
    world = healthy()
    world.broken = {"file:///models/v2"}
    world.edit(model=model("v2"))
    world.run(70)
    return world


def _retried() -> ModelCluster:
    world = _aborted()
    revision, _, number = attempt(world).partition("/")
    world.edit(rollout__retry=f"{revision}/{int(number) + 1}")
    world.run_until("Paused")
    return world


def _superseding() -> ModelCluster:
    world = canary_at_first_pause()
    world.edit(model=model("v3"))
    world.reconcile()
    return world


def _reverting() -> ModelCluster:
    world = canary_at_first_pause()
    world.edit(model=model("v1"))
    world.reconcile()
    return world


def _reverted_in_git() -> ModelCluster:
    world = _aborted()
    world.edit(model=model("v1"))
    world.run_until(None)
    return world


def _undone() -> ModelCluster:
    world = _promoted()
    status = world.parsed()
    world.edit(rollout__rollbackTo=f"{status.stable_revision}/{status.previous_revision}")
    world.run_until(None)
    world.run(5)
    return world


def _undoing() -> ModelCluster:
    world = _promoted()
    status = world.parsed()
    world.edit(rollout__rollbackTo=f"{status.stable_revision}/{status.previous_revision}")
    world.reconcile()
    return world


def _held() -> ModelCluster:
    world = healthy()
    world.edit(model=model("v2"), paused=True)
    world.run(3)
    return world


def _pod_lost() -> ModelCluster:
    world = healthy()
    next(iter(world.pods.values())).ready = 1
    world.reconcile()
    return world


def _all_pods_lost() -> ModelCluster:
    world = healthy()
    next(iter(world.pods.values())).ready = 0
    world.reconcile()
    return world


def _scaled_up() -> ModelCluster:
    world = healthy()
    world.edit(replicas=4)
    world.reconcile()
    return world


def _refused() -> ModelCluster:
    world = canary_at_first_pause()
    world.edit(drain={"timeoutSeconds": "soon"})
    world.reconcile()
    return world


def _mended() -> ModelCluster:
    world = _refused()
    world.edit(drain=None)
    world.reconcile()
    return world


def _not_read() -> ModelCluster:
    world = healthy()
    world.edit(model=model("v2"))
    return world


def _adapter() -> ModelCluster:
    world = cluster()
    world.adapter = True
    world.spec = {"deploymentRef": {"name": "absent"}, "model": {"uri": "file:///adapter"}}
    world.reconcile()
    return world


SCENES: dict[str, tuple[Scene, Result, str]] = {
    "first revision starts": (_first, WAITS, "Progressing"),
    "first revision is too late": (_first_too_late, FAILS, "Degraded"),
    "healthy": (healthy, GOES_ON, "Healthy"),
    "spec not read yet": (_not_read, WAITS, "Progressing"),
    "provisioning": (lambda: _state("Provisioning"), WAITS, "Progressing"),
    "no node": (_no_node, WAITS, "Progressing"),
    "shifting": (lambda: _state("Shifting"), WAITS, "Progressing"),
    "pause step": (canary_at_first_pause, WAITS, "Suspended"),
    "analysis": (_analyzing, WAITS, "Progressing"),
    "promoting": (_promoting, WAITS, "Progressing"),
    "promoted": (_promoted, GOES_ON, "Healthy"),
    "aborting": (_aborting, FAILS, "Degraded"),
    "aborted": (_aborted, FAILS, "Degraded"),
    "broken": (_broken, FAILS, "Degraded"),
    "retried": (_retried, WAITS, "Suspended"),
    "superseding": (_superseding, WAITS, "Progressing"),
    "reverting": (_reverting, WAITS, "Progressing"),
    "reverted in git": (_reverted_in_git, GOES_ON, "Healthy"),
    "undone": (_undone, FAILS, "Degraded"),
    "undoing": (_undoing, FAILS, "Degraded"),
    "held by spec.paused": (_held, WAITS, "Suspended"),
    "a pod is lost": (_pod_lost, WAITS, "Progressing"),
    "all pods are lost": (_all_pods_lost, WAITS, "Progressing"),
    "scaled up": (_scaled_up, WAITS, "Progressing"),
    "refused": (_refused, FAILS, "Degraded"),
    "mended after a refusal": (_mended, WAITS, "Suspended"),
}


@cache
def deployments() -> tuple[Recorded, ...]:
    """A ModelDeployment in each scene."""
    made = ((name, scene(), result, health) for name, (scene, result, health) in SCENES.items())
    return tuple(Recorded(name, "ModelDeployment", world.obj(), result, health) for name, world, result, health in made)


@cache
def others() -> tuple[Recorded, ...]:
    """Objects of all kinds but ModelDeployments."""
    return (
        Recorded("no deployment", "ModelAdapter", _adapter().obj(), WAITS, "Progressing"),
        *_pools(),
        *_tenants(),
        *_routes(),
        *_experiments(),
    )


def _object(status: Any, generation: int) -> dict[str, Any]:
    return {"metadata": {"name": "one", "generation": generation}, "spec": {}, "status": to_json(status)}


def _pools() -> tuple[Recorded, ...]:
    pods = [PoolPod(f"p{n}", {"r1": pool_status.LOADED}) for n in range(2)]
    full = pools.status(
        1,
        ModelPoolSpec(replicas=2),
        PoolView("set", 2, tuple(pods)),
        ((), 3),
        ModelPoolStatus(),
        pool_status.NOW,
    )
    some, all_of_them = pool_status.status(pods[0]), pool_status.status(*pods)
    refused = pools.refused(2, "spec.replicas: must be a number", some, pool_status.NOW)
    return (
        Recorded("no pod", "ModelPool", _object(pool_status.status(), 1), WAITS, "Progressing"),
        Recorded("one of two pods", "ModelPool", _object(some, 1), WAITS, "Progressing"),
        Recorded("all pods", "ModelPool", _object(all_of_them, 1), GOES_ON, "Healthy"),
        Recorded("full", "ModelPool", _object(full, 1), FAILS, "Degraded"),
        Recorded("refused", "ModelPool", _object(refused, 2), FAILS, "Degraded"),
        Recorded("not read", "ModelPool", _object(all_of_them, 2), WAITS, "Progressing"),
    )


def _tenants() -> tuple[Recorded, ...]:
    given, spec, well = test_tenants.gateways, test_tenants.spec, test_tenants.WELL
    behind = given(well, TenantReport(generation=2))

    def of(name: str, status: Any, result: Result, health: str) -> Recorded:
        return Recorded(name, "Tenant", _object(status, 3), result, health)

    return (
        of("accepted", test_tenants.status(given(well)), GOES_ON, "Healthy"),
        of("gateways behind", test_tenants.status(behind), WAITS, "Progressing"),
        of("no gateway", test_tenants.status(given()), WAITS, "Progressing"),
        of("disabled", test_tenants.status(given(well), spec(disabled=True)), WAITS, "Suspended"),
        of("no credentials", test_tenants.status(given(well), spec(auth={})), FAILS, "Degraded"),
        of(
            "not accepted",
            test_tenants.status(given(TenantReport(generation=2, problem="bad price"))),
            FAILS,
            "Degraded",
        ),
    )


def _routes() -> tuple[Recorded, ...]:
    spec, world, of = test_model_routes.spec, test_model_routes.world, test_model_routes.of
    there, absent = world(spec({"name": "small"})), world(spec({"name": "nothing"}))
    taken: dict[str, Standing | None] = {"chat": test_model_routes.TAKEN}
    unread = model_routes.unreadable(3, "spec.rules: missing", ModelRouteStatus(), test_model_routes.NOW)

    def route(name: str, status: Any, result: Result, health: str) -> Recorded:
        return Recorded(name, "ModelRoute", _object(status, 3), result, health)

    return (
        route("in order", of(there), GOES_ON, "Healthy"),
        route("target absent", of(absent), WAITS, "Progressing"),
        route("name awaited", of(there, {"chat": None}), WAITS, "Progressing"),
        route("name taken", of(there, taken), FAILS, "Degraded"),
        route("unreadable", unread, FAILS, "Degraded"),
    )


def _experiments() -> tuple[Recorded, ...]:
    now, empty = test_experiments.NOW, ExperimentStatus()

    def of(name: str, result: Result, health: str, given: Any = None, **spec: Any) -> Recorded:
        found = experiments.propose("prod/e", 1, test_experiments.spec(**spec), given or test_experiments.world(), now)
        status = experiments.status(1, found, Counted(), empty, now)
        return Recorded(name, "Experiment", _object(status, 1), result, health)

    taken = {"prod/one": test_experiments.proposed("prod/one", layer="ui")}
    return (
        of("running", GOES_ON, "Healthy"),
        of("paused", GOES_ON, "Suspended", paused=True),
        of("model absent", WAITS, "Progressing", model="nothing"),
        of("units taken", FAILS, "Degraded", test_experiments.world(taken), layer="ui"),
    )
