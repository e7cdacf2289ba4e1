"""Many cells of the matrix at once: one namespace, one operator, one gateway, and the controllers that are missing."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Exists, NotFound
from slipway_operator.kube.ownership import is_controlled_by
from slipway_operator.kube.resources import (
    ANALYSIS_RUNS,
    ANALYSIS_TEMPLATES,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    TENANTS,
    Resource,
)
from slipway_operator.model import labels
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.pods import MERGE, has_pod
from testkit.world.slipway import Cluster

from . import phases
from .cells import REPAIRED, Cell, Round
from .damages import Hands, is_whole, without_owners
from .phases import Roles
from .recorder import KINDS, Bounds, Recorder

Object = dict[str, Any]

AT_ONCE = 16  # cells that go into their phase together: the API server's watches stay close behind
ENTERS_S = 240.0
LOOKS_S, STAYS_S, SETTLES_S = 3.0, 1.5, 60.0
REPAIRED_S = 120.0  # the operator reads keys and names once or twice a minute
HOLDS_S = 10.0  # a condition stays for longer than pods need to come up


class World(Cluster):
    """The cells' ModelDeployments. Enter with `running`, then `prepare`; `strike` does the damage of cells."""

    def __init__(
        self, client: Client, namespace: str, kubeconfig: Path, limited: Path, folder: Path, provider: str
    ) -> None:
        flags = ("--keys-secret=slipway-keys", f"--allowed-private-cidrs={own_address()}/32", "--workers=16")
        super().__init__(client, namespace, kubeconfig, limited, folder, operator_flags=flags)
        self.recorder = Recorder(str(kubeconfig), namespace)
        self.roles: dict[str, Roles] = {}
        self._hands = Hands(client, namespace)
        self._provider = provider
        self.older: dict[str, Object] = {}  # of shared objects, by name
        self._before: dict[str, Object] = {}
        self._was_ill: dict[str, set[str]] = {}

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """The recorder follows the namespace, and holds what the gateway has against what may be."""
        tasks = [asyncio.create_task(reflector.run()) for reflector in self.recorder.reflectors]
        tasks.append(asyncio.create_task(self._read_routes()))
        try:
            yield
            await self._hands.remove(TENANTS, "matrix")  # it belongs to no namespace, and others have this API server
        finally:
            ended = [task.exception() for task in tasks if task.done() and not task.cancelled()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(reflector.close() for reflector in self.recorder.reflectors))
            assert not ended, ended

    # --- the controllers and the kubelet ---

    async def run_pods(self) -> None:
        """Every ReplicaSet has what it wants, ready at once; a pod of a deleted one goes."""
        while True:
            keys, self.recorder.unfollowed = self.recorder.unfollowed, set()
            await asyncio.gather(*(self._follow(key) for key in keys))
            await asyncio.sleep(0.05)

    async def _follow(self, key: str) -> None:
        name, item = key.partition("/")[2], self.recorder.objects[REPLICA_SETS].get(key)
        with contextlib.suppress(ApiError):  # it changed meanwhile: its watch reports that
            await self._clear(f"{name}-0", item)
        if item is None:
            return
        wanted = item["spec"].get("replicas", 1)
        status = {"replicas": wanted, "readyReplicas": wanted, "fullyLabeledReplicas": wanted}
        if {key: item.get("status", {}).get(key, 0) for key in status} == status and not wanted:
            return
        with contextlib.suppress(ApiError):
            if {key: item.get("status", {}).get(key, 0) for key in status} != status:
                path = REPLICA_SETS.path(self.namespace, name, "status")
                await self.client.request("PATCH", path, [], {"status": status}, MERGE)
                await has_pod(self.client, item, own_address())

    async def _clear(self, pod: str, owner: Object | None) -> None:
        """As the garbage collector: without its ReplicaSet a pod goes."""
        with contextlib.suppress(NotFound):
            live = await self.client.get(PODS, self.namespace, pod)
            if owner is None or not is_controlled_by(live, owner["metadata"]["uid"]):
                await self.client.delete(PODS, self.namespace, pod, live["metadata"]["uid"])

    # --- phases ---

    async def prepare(self, cells: Sequence[Cell]) -> None:
        """Each cell has a ModelDeployment in its phase, and nothing moves."""
        room = asyncio.Semaphore(AT_ONCE)

        async def enter(cell: Cell) -> None:
            async with room:
                await self._create(cell)
                self.roles[cell.name] = await phases.enter(self, cell.name, cell.phase)

        await self._make_tenant()
        await asyncio.gather(*map(enter, cells))
        assert all(reflector.synced for reflector in self.recorder.reflectors)
        await self._rests()

    async def _create(self, cell: Cell) -> None:
        template = cell.name if cell.kind in (ANALYSIS_TEMPLATES, ANALYSIS_RUNS) else ""
        if template:
            await self._make_template(template)
        metadata = {"name": cell.name, "namespace": self.namespace}
        body = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "metadata": metadata}
        await self.client.create(MODEL_DEPLOYMENTS, body | {"spec": phases.spec(cell.name, cell.phase, template)})

    async def _make_template(self, name: str) -> None:
        """One that was changed once: the first version is its older copy."""
        metadata = {"name": name, "namespace": self.namespace}
        metric: Object = {"name": "score", "interval": "5s", "count": 100_000, "successCondition": "result > 0.4"}
        metric["provider"] = {"web": {"url": self._provider, "jsonPath": "{$.score}"}}
        body = {"apiVersion": labels.API_VERSION, "kind": "AnalysisTemplate", "metadata": metadata}
        await self.client.create(ANALYSIS_TEMPLATES, body | {"spec": {"metrics": [metric]}})
        key = f"{self.namespace}/{name}"
        await until_async(lambda: key in self.recorder.first[ANALYSIS_TEMPLATES], f"{name} is seen")
        changed = {"spec": {"metrics": [metric | {"successCondition": "result > 0.5"}]}}
        await self.client.patch(ANALYSIS_TEMPLATES, self.namespace, name, changed)

    async def _make_tenant(self) -> None:
        body = {"apiVersion": labels.API_VERSION, "kind": "Tenant", "metadata": {"name": "matrix"}}
        with contextlib.suppress(Exists):
            await self.client.request("POST", TENANTS.path(), [], body | {"spec": {"models": ["*"]}})

    async def edit(self, name: str, spec: Object) -> None:  # type: ignore[override]
        await self.client.patch(MODEL_DEPLOYMENTS, self.namespace, name, {"spec": spec})

    async def reaches(self, name: str, what: str, condition: Callable[[Object], object]) -> Object:  # type: ignore[override]
        """Wait until the status fulfils a condition; the status then."""
        key = f"{self.namespace}/{name}"

        def status() -> Object:
            return dict((self.recorder.objects[MODEL_DEPLOYMENTS].get(key) or {}).get("status") or {})

        return await until_async(status, f"{name}: {what}", ENTERS_S, holds=lambda now: now and condition(now))

    async def has_pods(self, name: str, revision: str, number: int) -> None:
        def replicas() -> list[int]:
            return [item["spec"]["replicas"] for item in self.recorder.own(REPLICA_SETS, name, revision)]

        await until_async(replicas, f"{name} has {number} pods", holds=lambda found: found == [number])

    async def _rests(self) -> None:
        await until_async(
            lambda: time.monotonic() - self.recorder.changed_at, "nothing moves", holds=lambda quiet: quiet > STAYS_S
        )

    # --- what happens ---

    async def strike(self, cells: Sequence[Cell], *, restarts: bool) -> None:
        """The damage of these cells at once, and a restart of the operator where they have one."""
        for cell in cells:
            self._note(cell.name)
            roles = self.roles[cell.name]
            but = [getattr(roles, cell.role)] if cell.kind is REPLICA_SETS else []
            self.recorder.bind(cell.name, self.recorder.bounds(cell.name, roles, but))
        await asyncio.gather(*(self._damage(cell) for cell in cells))
        if restarts:
            await self.restart()
        await asyncio.gather(*(self._settles(cell.name, str(cell)) for cell in cells))

    async def strike_all(self, one: Round, cells: Sequence[Cell]) -> None:
        """The damage to an object that all share; then its owner repairs it, and all is as before."""
        for cell in cells:
            self._note(cell.name)
            self.recorder.bind(cell.name, self.recorder.bounds(cell.name, self.roles[cell.name]))
        namespace = None if one.kind is TENANTS else self.namespace
        found = await self.client.request("GET", one.kind.path(namespace, one.name), [])
        await self._hands.damage(one.kind, found, one.damage, self.older[one.name])
        if one.restarts:
            await self.restart()
        await asyncio.sleep(LOOKS_S)
        if one.name in REPAIRED:
            await self._is_repaired(one, found)
        await self._hands.put_back(one.kind, found)
        await asyncio.gather(*(self._settles(cell.name, f"{one}, at {cell.phase}") for cell in cells))

    async def _is_repaired(self, one: Round, before: Object) -> None:
        async def look() -> bool:
            with contextlib.suppress(NotFound):
                live = await self.client.request("GET", one.kind.path(self.namespace, one.name), [])
                return is_whole(one.kind, live, before)
            return False

        await until_async(look, f"the operator repairs it: {one}", REPAIRED_S)

    async def restore(self, cells: Sequence[Cell]) -> None:
        """All objects are lost, and come again as Velero restores them: without the status, and without a controller.

        Of each cell the objects of one kind are not in the backup.
        """
        await self.operator.kill()
        copies: list[tuple[Resource, Object]] = []
        bounds: dict[str, Bounds] = {}
        for cell in cells:
            self._note(cell.name)
            roles, found = self.roles[cell.name], {kind: self.recorder.all_of(kind, cell.name) for kind in KINDS}
            but = [roles.stable, roles.other] if cell.kind is REPLICA_SETS else []
            bounds[cell.name] = self.recorder.bounds(cell.name, roles, but, restored=True)
            self.recorder.bind(cell.name, None)
            # A run belongs to the status, which is not restored.
            kept = [kind for kind in KINDS if kind not in (cell.kind, ANALYSIS_RUNS)]
            copies += [(kind, item) for kind in kept for item in found[kind]]
            await asyncio.gather(*(self._hands.delete(kind, item) for kind in KINDS for item in found[kind]))
        names = [cell.name for cell in cells]
        await until_async(lambda: not any(map(self._is_there, names)), "all objects are gone")
        await asyncio.gather(*(self._hands.put_back(kind, without_owners(item)) for kind, item in copies))
        await until_async(lambda: all(map(self._is_there, names)), "the objects are back")
        for name in names:
            self.recorder.bind(name, bounds[name])
        await self.operator.start()
        await until_async(self._works, "the operator works again")
        await asyncio.gather(*(self._settles(cell.name, str(cell)) for cell in cells))

    def _is_there(self, name: str) -> bool:
        return bool(self.recorder.all_of(MODEL_DEPLOYMENTS, name))

    async def _works(self) -> bool:
        return (await self.admin("/readyz"))[0] == 200

    async def keep_older(self, shared: Sequence[tuple[Resource, str]]) -> None:
        """Older copies of what all share, from before the other cells were made."""
        for kind, name in shared:
            namespace = None if kind is TENANTS else self.namespace
            path = kind.path(namespace, name)

            async def look(path: str = path) -> Object | None:
                with contextlib.suppress(NotFound):
                    return dict(await self.client.request("GET", path, []))
                return None

            found = await until_async(look, path)
            assert found
            self.older[name] = found

    async def restart(self) -> None:
        """The operator is killed; the next one holds the lease at the end."""
        await self.operator.kill()
        await self.operator.start()
        await until_async(self._works, "the operator works again")

    async def _damage(self, cell: Cell) -> None:
        revision = getattr(self.roles[cell.name], cell.role)
        if cell.kind is ANALYSIS_TEMPLATES:
            item = self.recorder.objects[cell.kind][f"{self.namespace}/{cell.name}"]
        elif cell.kind is ANALYSIS_RUNS:
            run = self.recorder.status(cell.name)["rollout"]["analysis"]["run"]
            item = self.recorder.objects[cell.kind][f"{self.namespace}/{run}"]
        else:
            [item] = self.recorder.own(cell.kind, cell.name, revision)
        older = self.recorder.first[cell.kind][f"{self.namespace}/{item['metadata']['name']}"]
        await self._hands.damage(cell.kind, item, cell.damage, older)

    def _note(self, name: str) -> None:
        self._before[name], self._was_ill[name] = self.recorder.picture(name), self.recorder.ill(name)

    async def _settles(self, name: str, what: str) -> None:
        """The end is as before, or a condition says why; it stays so."""
        began_s, since_s = time.monotonic(), 0.0
        while True:
            await asyncio.sleep(0.2)
            now_s = time.monotonic()
            differs = self._differs(name)
            if differs and not self.recorder.ill(name) - self._was_ill[name]:
                since_s = 0.0
                if now_s > began_s + SETTLES_S:
                    message = self.recorder.status(name).get("message")
                    self.recorder.broken[name].append(f"{what}: (then, now) {differs}; no condition; {message}")
                    return
                continue
            since_s = since_s or now_s
            if now_s - since_s > (HOLDS_S if differs else STAYS_S) and now_s - began_s > LOOKS_S:
                return

    def _differs(self, name: str) -> Object:
        then, now = self._before[name], self.recorder.picture(name)
        return {key: (then[key], now[key]) for key in then if then[key] != now[key]}

    def shown(self, name: str) -> str:
        """How a cell ended: as before, or by which condition."""
        ended = f"differs in {', '.join(differs)}" if (differs := self._differs(name)) else "as before"
        conditions = ", ".join(sorted(self.recorder.ill(name) - self._was_ill[name]))
        return f"{ended}; {conditions}: {self.recorder.status(name).get('message')}" if conditions else ended

    async def _read_routes(self) -> None:
        """What the gateway routes, twice a second."""
        url = f"http://127.0.0.1:{self.gateway_admin_port}/internal/routes"
        async with aiohttp.ClientSession() as session:
            while True:
                await asyncio.sleep(0.5)
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(url) as answer:
                        routes = (await answer.json())["routes"]
                    for key, route in routes.items():
                        found = {
                            it: one.get("weight", 0) for it, one in route["revisions"].items() if one.get("weight")
                        }
                        self.recorder.check_routes(key.partition("/")[2], found, "a gateway's route")
