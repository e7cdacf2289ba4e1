"""One history: a user, a ModelDeployment of its own, and an operator that is restarted whenever it ends."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from devcluster.ports import reserve_port
from slipway_operator.kube.resources import CHILDREN, EVENTS, LEADER_WORKER_SETS, MODEL_DEPLOYMENTS
from testkit.world.pods import announce_gateway
from tests.crash.calls import Fault, Point, is_write
from tests.crash.end_state import differences, end_state
from tests.crash.proxy import Tap
from tests.crash.scenarios import SCENARIOS, Condition, Status
from tests.crash.world import Operator, World, at_most

Object = dict[str, Any]

PATIENCE_S = 120.0  # there for failures alone; a held call lasts 10 s
_LOOK_S = 0.1

_numbers = itertools.count(1)

PRESENT = tuple(kind for kind in CHILDREN if kind != LEADER_WORKER_SETS)  # this API server does not serve those


class Seat:
    """Where one operator runs: killed or ended, the next one is started, as a kubelet does."""

    def __init__(self, world: World, namespace: str, name: str, *arguments: str) -> None:
        self._world, self.name = world, name
        self.tap = world.proxy.taps[name] = Tap(self.kill)
        self._arguments = ["run", f"--namespaces={namespace}", f"--own-namespace={namespace}"]
        self._admin_port = reserve_port()
        self._arguments += [f"--admin-port={self._admin_port}", *arguments]
        self._log = world.folder / f"{name}.log"
        self._kubeconfig = world.operator_kubeconfig(name)
        self.operator: Operator | None = None
        self.starts = True
        self.kills = 0
        self.exits: list[int] = []  # codes of operators that ended by themselves

    async def run(self) -> None:
        """Keep an operator running until cancelled."""
        environment = {"KUBECONFIG": str(self._kubeconfig), "POD_ID": self.name, "POD_NAMESPACE": ""}
        while self.starts:
            self.operator = await self._world.nursery.start(self._arguments, environment, self._log)
            try:
                await self.operator.ended.wait()
            except asyncio.CancelledError:
                await self.operator.kill()
                raise
            if self.operator.code != -9:
                self.exits.append(self.operator.code or 0)

    async def leave(self) -> None:
        """Kill the operator, and start no other: a node is lost."""
        self.starts = False
        await self.kill()

    async def kill(self) -> None:
        """Kill the operator that runs now."""
        self.kills += 1
        if self.operator:
            await self.operator.kill()

    def writes(self) -> Counter[str]:
        """Calls of its operators so far that change something, the lease's apart."""
        found = {kind: count for kind, count in self.tap.counts.items() if is_write(kind) and "leases" not in kind}
        return Counter(found)

    async def readiness(self) -> tuple[int, str]:
        """The answer of /readyz now; 0 without a server."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self._admin_port}/readyz") as answer,
            ):
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""

    def log(self) -> str:
        """What all its operators wrote."""
        return self._log.read_text() if self._log.exists() else ""


class Astray(AssertionError):
    """A history that did not end as it should: how, the faults that were injected, and the logs of its operators."""

    def __init__(self, message: str, seat: Seat) -> None:
        super().__init__(message)
        self.seat = seat


class History:
    """A namespace with chat in it."""

    def __init__(self, world: World, namespace: str) -> None:
        self._world, self.namespace = world, namespace

    async def create(self, spec: dict[str, Any]) -> None:
        """The user's `kubectl create`."""
        manifest = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", "spec": spec}
        manifest["metadata"] = {"name": "chat", "namespace": self.namespace}
        await self._world.client.create(MODEL_DEPLOYMENTS, manifest)

    async def edit(self, spec: dict[str, Any]) -> None:
        """The user's `kubectl patch`."""
        await self._world.client.patch(MODEL_DEPLOYMENTS, self.namespace, "chat", {"spec": spec})

    async def sees(self, what: str, condition: Condition) -> Status:
        """Wait for a status; the status then."""
        async with at_most(PATIENCE_S, what), self._world.changed:
            while not ((status := self._status()) and condition(status)):
                await self._world.changed.wait()
        return status

    def _status(self) -> Status:
        return self._world.objects.get(self.namespace, {}).get("status") or {}

    async def state(self) -> Object:
        """The end state, if this is the end."""
        client = self._world.client
        obj = await client.get(MODEL_DEPLOYMENTS, self.namespace, "chat")
        children = {resource.kind: await client.list(resource, self.namespace) for resource in PRESENT}
        return end_state(obj, children, await client.list(EVENTS, self.namespace))

    async def ends_like(self, expected: Object | None) -> Object:
        """Wait until the end state is the expected one (None: until two reads a second apart are equal)."""
        found: Object = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    before, found = found, await self.state()
                    if found == (expected or before):
                        return found
                    await asyncio.sleep(_LOOK_S if expected else 1.0)
        except TimeoutError:
            raise AssertionError("another end state: " + "; ".join(differences(expected, found))) from None

    async def forget(self) -> None:
        """Delete all of it, so that the next histories are not slowed by it."""
        client = self._world.client
        for resource in (MODEL_DEPLOYMENTS, *PRESENT):
            for item in await client.list(resource, self.namespace):
                metadata = item["metadata"]
                await client.delete(resource, self.namespace, metadata["name"], metadata["uid"])
        self._world.objects.pop(self.namespace, None)


@contextlib.asynccontextmanager
async def history(world: World) -> AsyncIterator[History]:
    """A new namespace."""
    body = {"metadata": {"generateName": f"h{next(_numbers)}-"}}
    made = History(world, (await world.post("/api/v1/namespaces", body))["metadata"]["name"])
    await announce_gateway(world.client, made.namespace, world.gateway_port)
    yield made
    await made.forget()


@contextlib.asynccontextmanager
async def seated(seat: Seat) -> AsyncIterator[Seat]:
    """An operator runs there."""
    task = asyncio.create_task(seat.run())
    try:
        yield seat
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def play(
    world: World, scenario: str, targets: Mapping[Point, Fault] | None = None, expected: Object | None = None
) -> tuple[Object, Seat]:
    """Play a scenario while faults happen; its end state, and the seat, which knows what was hit.

    Raises:
        Astray: when it does not reach the expected end.
    """
    async with history(world) as chat:
        seat = Seat(world, chat.namespace, chat.namespace)
        seat.tap.targets = dict(targets or {})
        async with seated(seat):
            try:
                await SCENARIOS[scenario](chat)
                state = await chat.ends_like(expected)
            except AssertionError as error:
                hit = ", ".join(f"{fault} at {point}" for point, fault in seat.tap.hit)
                log = "\n".join(seat.log().splitlines()[-60:])
                last = world.objects.get(chat.namespace, {}).get("status")
                raise Astray(f"{scenario}: {error}; hit: {hit}; status {last}\n{log}", seat) from None
    return state, seat
