"""Each version of the objects of a namespace, held against what may be while an object is missing."""

import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from slipway_gateway.routing.reflector import KubernetesClient, Reflector, ResourceCallbacks, key_of
from slipway_operator.kube.ownership import is_controlled_by, is_leaving
from slipway_operator.kube.resources import (
    ANALYSIS_RUNS,
    ANALYSIS_TEMPLATES,
    CONTROLLER_REVISIONS,
    MODEL_DEPLOYMENTS,
    REPLICA_SETS,
    SERVICES,
    Resource,
)
from slipway_operator.model import labels
from slipway_operator.model.deployment import status as statuses
from slipway_operator.planning.conditions.table import is_problem

from .phases import Roles, state, weights

Object = dict[str, Any]

KINDS = (MODEL_DEPLOYMENTS, REPLICA_SETS, SERVICES, CONTROLLER_REVISIONS, ANALYSIS_TEMPLATES, ANALYSIS_RUNS)
SHOWN = {"ResolvedRefs", "Ready", "Available", "StableHealthy", "ForeignObjects", "Progressing"}


@dataclass(frozen=True)
class Bounds:
    """What may be of one ModelDeployment from now on."""

    roles: Roles
    least: dict[str, int]  # replicas by revision, of those that serve
    restored: bool = False  # without its status: it has no table yet


class Recorder:
    """Watches a namespace. `broken` has what should not have been, by ModelDeployment."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        self.objects: dict[Resource, dict[str, Object]] = {kind: {} for kind in KINDS}
        self.first: dict[Resource, dict[str, Object]] = {kind: {} for kind in KINDS}  # the first version of each name
        self.broken: dict[str, list[str]] = defaultdict(list)
        self.changed_at = time.monotonic()
        self.unfollowed: set[str] = set()  # ReplicaSets that changed since the played controllers looked
        self._bounds: dict[str, Bounds] = {}
        self.reflectors = [self._reflector(kubeconfig, namespace, kind) for kind in KINDS]

    def _reflector(self, kubeconfig: str, namespace: str, kind: Resource) -> Reflector:
        root = "/api/v1" if kind.api_version == "v1" else f"/apis/{kind.api_version}"
        calls = ResourceCallbacks(
            lambda item: self._seen(kind, item), lambda key: self._gone(kind, key), lambda _: None
        )
        return Reflector(KubernetesClient(kubeconfig), (kind.plural, root, {}), namespace, calls)

    def bounds(self, name: str, roles: Roles, but: Collection[str] = (), *, restored: bool = False) -> Bounds:
        """What may be from now on: what serves stays, except ReplicaSets that are damaged themselves, of `but`."""
        serving = weights(self.status(name))
        asleep = self.status(name).get("phase") == "Asleep"
        served = {} if asleep else {revision: self._replicas(name, revision) for revision in serving}
        least = {revision: sum(found) for revision, found in served.items() if revision not in but}
        return Bounds(roles, least, restored)

    def bind(self, name: str, bounds: Bounds | None) -> None:
        """Hold each version from now on against these bounds, or against none."""
        if bounds:
            self._bounds[name] = bounds
        else:
            self._bounds.pop(name, None)

    def status(self, name: str) -> Object:
        [found] = [item for item in self.objects[MODEL_DEPLOYMENTS].values() if item["metadata"]["name"] == name]
        return dict(found.get("status") or {})

    def all_of(self, kind: Resource, name: str) -> list[Object]:
        """All objects with the label of a ModelDeployment, or with its name."""
        return [
            item
            for item in self.objects[kind].values()
            if name in (item["metadata"]["name"], (item["metadata"].get("labels") or {}).get(labels.MODEL_DEPLOYMENT))
        ]

    def own(self, kind: Resource, name: str, revision: str) -> list[Object]:
        """Objects of a revision that its ModelDeployment controls and that are not being deleted."""
        [deployment] = [it for it in self.objects[MODEL_DEPLOYMENTS].values() if it["metadata"]["name"] == name]
        uid = deployment["metadata"]["uid"]
        return [
            item
            for item in self.objects[kind].values()
            if _revision(item) == revision and is_controlled_by(item, uid) and not is_leaving(item)
        ]

    def picture(self, name: str) -> Object:
        """What has to be as before at the end."""
        status = self.status(name)
        rollout = status.get("rollout") or {}
        live = {status.get("stableRevision"), status.get("canaryRevision")} - {None}
        named = live | {status.get("currentRevision"), status.get("previousRevision")} - {None}
        return {
            "phase": status.get("phase"),
            "stable": status.get("stableRevision"),
            "rollout": (state(status), rollout.get("revision")),
            "step": None if state(status) == "Aborted" else rollout.get("stepIndex"),
            "weights": weights(status),
            "sleep": (status.get("sleep") or {}).get("state"),
            "pods": {revision: self._replicas(name, revision) for revision in sorted(live)},
            "services": sorted(revision for revision in live if any(map(_selects, self.own(SERVICES, name, revision)))),
            "lost records": sorted(
                it for it in named if not any(one.get("data") for one in self.own(CONTROLLER_REVISIONS, name, it))
            ),
        }

    def ill(self, name: str) -> set[str]:
        """Types of the conditions that report a problem."""
        return {item.type for item in statuses.parse(self.status(name)).conditions if is_problem(item)} & SHOWN

    def _replicas(self, name: str, revision: str) -> list[int]:
        return sorted(item["spec"].get("replicas", 1) for item in self.own(REPLICA_SETS, name, revision))

    def _seen(self, kind: Resource, item: Object) -> None:
        key, self.changed_at = key_of(item), time.monotonic()
        self.first[kind].setdefault(key, item)
        self.objects[kind][key] = item
        if kind is MODEL_DEPLOYMENTS:
            self._check_weights(item)
        if kind is REPLICA_SETS:
            self.unfollowed.add(key)
            self._check_replicas(item)

    def _gone(self, kind: Resource, key: str) -> None:
        self.changed_at = time.monotonic()
        gone = self.objects[kind].pop(key, None)
        if gone and kind is REPLICA_SETS:
            self.unfollowed.add(key)
            self._check_replicas({**gone, "spec": {"replicas": 0}})

    def _check_weights(self, item: Object) -> None:
        name = item["metadata"]["name"]
        if bounds := self._bounds.get(name):
            found = weights(item.get("status") or {})
            self.check(name, found, "status.traffic", bounds)

    def check_routes(self, name: str, found: dict[str, int], where: str) -> None:
        """Hold weights that a gateway has against what may be."""
        if bounds := self._bounds.get(name):
            self.check(name, found, where, bounds)

    def check(self, name: str, found: dict[str, int], where: str, bounds: Bounds) -> None:
        most = {bounds.roles.stable: 100, bounds.roles.other: bounds.roles.tested}
        if (not found and not bounds.restored) or any(
            weight > most.get(revision, 0) for revision, weight in found.items()
        ):
            message = self.status(name).get("message")
            self.broken[name].append(f"{where} is {found}, at most {most} may be: {message}")

    def _check_replicas(self, item: Object) -> None:
        name, revision = (item["metadata"].get("labels") or {}).get(labels.MODEL_DEPLOYMENT), _revision(item)
        bounds = self._bounds.get(name or "")
        if bounds is None or revision not in bounds.least:
            return
        replicas = item["spec"].get("replicas", 1)
        if replicas < bounds.least[revision]:
            self.broken[name].append(f"{item['metadata']['name']} has {replicas} replicas of {bounds.least[revision]}")


def _revision(item: Object) -> str:
    return str((item["metadata"].get("labels") or {}).get(labels.REVISION) or "")


def _selects(service: Object) -> bool:
    """Whether a Service selects the pods of its revision."""
    return bool((service["spec"].get("selector") or {}).get(labels.REVISION) == _revision(service))
