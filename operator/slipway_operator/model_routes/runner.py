"""Looks at all ModelRoutes: passes on the names that they want, and writes their status where it changed."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_contracts.api.writing import to_json
from slipway_contracts.model_routes.spec import ModelRouteSpec, names_of
from slipway_operator.api.fitting import fitted
from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.api.v1alpha1.model_route import ModelRouteStatus
from slipway_operator.component import Component
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Fenced, NotFound, Refused, Stale
from slipway_operator.kube.resources import MODEL_ROUTES, REFERENCE_GRANTS
from slipway_operator.kube.writing import events
from slipway_operator.model.cluster import names
from slipway_operator.model.cluster.names import Standing, Wish
from slipway_operator.planning import model_routes
from slipway_operator.planning.model_routes import ReferenceGrants, RouteWorld
from slipway_process.supervisor import OnFailure

LOOK_S, ABSENT_S = 2.0, 60.0
PAUSE_SHARE = 9  # pause, in multiples of the time that a look took: many large ModelRoutes are looked at less often
TURN = 16  # ModelRoutes after which other tasks have their turn
WRITES = 50  # of a status in one look; the others wait for the next one

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NameAccess:
    """How the runner learns who has a name. `changed`: it is called when ModelRoutes want other names."""

    standing: Callable[[str, str], Standing | None]
    changed: Callable[[], None]


class ModelRouteRunner(Component):
    """Keeps the status of all ModelRoutes up to date. `may_write`: whether this operator has the lease."""

    task, on_failure = "model-routes", OnFailure.SHOW

    def __init__(
        self,
        client: Client,
        namespaces: Sequence[str],
        deployments: Callable[[], Iterable[ObjectKey]],
        may_write: Callable[[], bool],
        now: Callable[[], datetime],
    ) -> None:
        """`namespaces`: those that are served; empty: all. `deployments`: keys of the ModelDeployments there."""
        self._client, self._namespaces, self._deployments = client, tuple(namespaces) or (None,), deployments
        self._may_write, self._now = may_write, now
        self._names = NameAccess(lambda owner, name: None, lambda: None)
        self._wishes: tuple[Wish, ...] | None = None
        self._specs: dict[str, ModelRouteSpec] = {}  # the last good ones: gateways follow these, too
        self._problems: dict[str, str] = {}  # why others cannot be read
        self._versions: dict[str, tuple[str, int]] = {}  # uid and generation of what was read
        self._trouble = ""

    def joins(self, access: NameAccess) -> None:
        """Names are claimed there. Must come before `run`."""
        self._names = access

    def wishes(self) -> tuple[Wish, ...] | None:
        """The names that ModelRoutes want; None while ModelRoutes have not been read."""
        return self._wishes

    async def run(self) -> None:
        """Look every LOOK_S until cancelled."""
        while True:
            pause_s, began_s = LOOK_S, time.monotonic()
            try:
                if self._may_write():
                    await self.look()
                self._trouble = ""
            except NotFound as error:  # without their CRD there are none, and none has a name
                pause_s = ABSENT_S
                self._want(())
                self._warn(error)
            except Refused as error:
                pause_s = ABSENT_S
                self._warn(error)
            except Fenced:
                pass  # another operator has the lease and does this
            except ApiError as error:
                self._warn(error)
            await asyncio.sleep(max(pause_s, PAUSE_SHARE * (time.monotonic() - began_s)))

    async def look(self) -> None:
        """Read all ModelRoutes; write each status that changed, with an Event for each change.

        Raises:
            ApiError: ModelRoutes cannot be read, or no status can be written.
        """
        lists = [await self._client.list(MODEL_ROUTES, namespace, cached=True) for namespace in self._namespaces]
        found = {_name(obj): obj for objects in lists for obj in objects}
        await self._read(found)
        self._want(_wishes_of(found, self._specs))
        if not found:
            return
        deployments = {"/".join(key) for key in self._deployments()}
        world = RouteWorld(deployments, self._specs, await self._grants())
        written = 0
        for number, (name, obj) in enumerate(found.items()):
            if number % TURN == 0:
                await asyncio.sleep(0)
            former, fresh = self._status(name, obj, world, self._problems.get(name, ""))
            if fresh != former and written < WRITES:
                written += 1
                await self._write(obj, former, fresh)

    async def _read(self, found: Mapping[str, Object]) -> None:
        """Read the specs that changed, and forget those that are gone."""
        for kept in (self._specs, self._problems, self._versions):
            for name in kept.keys() - found.keys():
                del kept[name]
        changed = [name for name, obj in found.items() if self._versions.get(name) != _version(obj)]
        for number, name in enumerate(changed):
            if number % TURN == 0:
                await asyncio.sleep(0)
            self._problems.pop(name, None)
            if self._versions.get(name, ("", 0))[0] != _version(found[name])[0]:
                self._specs.pop(name, None)  # of another object with this name
            try:
                self._specs[name] = read(ModelRouteSpec, encoded(found[name].get("spec") or {}), "spec")
            except UnreadableObject as error:
                self._problems[name] = str(error)
            self._versions[name] = _version(found[name])

    def _status(
        self, name: str, obj: Object, world: RouteWorld, problem: str
    ) -> tuple[ModelRouteStatus, ModelRouteStatus]:
        """The former status and the present one."""
        former, generation = _former(obj), obj["metadata"].get("generation", 0)
        if problem:
            return former, model_routes.unreadable(generation, problem, former, self._now())
        owner = names.owner_of_route(name)
        wanted = names_of(obj["metadata"]["name"], world.routes[name])
        standings = {one: self._names.standing(owner, one) for one in wanted}
        return former, model_routes.status(name, generation, standings, world, former, self._now())

    async def _grants(self) -> ReferenceGrants:
        """What namespaces allow; it is read only while a ModelRoute needs it."""
        if not any(model_routes.crosses(name, spec) for name, spec in self._specs.items()):
            return ReferenceGrants()
        try:
            lists = [await self._client.list(REFERENCE_GRANTS, one, cached=True) for one in self._namespaces]
        except NotFound:
            return ReferenceGrants(problem="this cluster has no ReferenceGrants: install the CRDs of the Gateway API")
        except Refused as error:
            return ReferenceGrants(problem=f"the operator may not list ReferenceGrants: {error}")
        return model_routes.grants_of(obj for objects in lists for obj in objects)

    def _want(self, wishes: tuple[Wish, ...]) -> None:
        if wishes != self._wishes:
            self._wishes = wishes
            self._names.changed()

    async def _write(self, listed: Object, former: ModelRouteStatus, fresh: ModelRouteStatus) -> None:
        obj = {"apiVersion": MODEL_ROUTES.api_version, "kind": MODEL_ROUTES.kind, **listed}
        try:
            await self._client.put_status(MODEL_ROUTES, {**obj, "status": fitted(ModelRouteStatus, to_json(fresh))})
        except (Stale, NotFound):
            return  # the next look reads it again
        await events.post_all(self._client, obj, model_routes.events(former, fresh), self._now())

    def _warn(self, error: Exception) -> None:
        if str(error) != self._trouble:
            log.warning("the status of ModelRoutes is not written: %s", error)
        self._trouble = str(error)


def _name(obj: Object) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _version(obj: Object) -> tuple[str, int]:
    return obj["metadata"].get("uid", ""), obj["metadata"].get("generation", 0)


def _wishes_of(found: Mapping[str, Object], specs: Mapping[str, ModelRouteSpec]) -> tuple[Wish, ...]:
    return tuple(
        Wish(names.owner_of_route(name), wanted, obj["metadata"].get("creationTimestamp") or "")
        for name, obj in sorted(found.items())
        for wanted in _wanted(obj, specs.get(name))
    )


def _wanted(obj: Object, spec: ModelRouteSpec | None) -> tuple[str, ...]:
    """The names that a ModelRoute wants; of one that was never readable, those that it has."""
    return names_of(obj["metadata"]["name"], spec) if spec else _former(obj).names


def _former(obj: Object) -> ModelRouteStatus:
    """The status in the object; an empty one where it cannot be read."""
    try:
        return read(ModelRouteStatus, encoded(obj.get("status") or {}))
    except UnreadableObject:
        return ModelRouteStatus()
