"""Experiments at a real API server: an operator accepts them and adds up, and a gateway gives units their arms."""

import contextlib

import aiohttp
import pytest

from slipway_contracts.experiments.assignment import AssignedArm, Assignment, place, unit_key
from slipway_operator.kube.resources import EVENTS, EXPERIMENTS
from testkit.until import until_async
from testkit.world.pods import MERGE
from testkit.world.rights import limited_kubeconfig

from .test_model_routes import RoutedTown, rest
from .test_names import allow, servers

pytestmark = pytest.mark.integration

ARMS = [
    {"name": "control", "weight": 50, "deploymentRef": {"name": "chat"}},
    {"name": "small", "weight": 50, "deploymentRef": {"name": "small"}},
]


class Laboratory(RoutedTown):
    """A town with Experiments."""

    async def experiment(self, namespace, name, **fields):
        spec = {"model": "front", "unit": {"type": "Header", "header": "X-Person"}, "arms": ARMS} | fields
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Experiment", "metadata": metadata, "spec": spec}
        await self.client.create(EXPERIMENTS, body)

    async def edit(self, namespace, name, **fields):
        await self.client.request("PATCH", EXPERIMENTS.path(namespace, name), [], {"spec": fields}, MERGE)

    async def settles(self, namespace, name, what, holds):
        async def found():
            assert self.operator.runs(), self.operator.log()
            status = (await self.client.get(EXPERIMENTS, namespace, name)).get("status") or {}
            listed = {one["type"]: one["reason"] for one in status.get("conditions") or ()}
            return status | {"reasons": listed}

        return await until_async(found, f"{name}: {what}", holds=holds)

    async def served_by(self, person):
        before = len(self.received)
        headers = {"X-Person": person} if person else {}
        body = {"model": "front", "messages": [{"role": "user", "content": "hi"}]}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body, headers=headers) as answer,
        ):
            assert answer.status == 200, await answer.text()
        return self.received[before][1]["model"]


@pytest.fixture
async def town(client, namespace, api_server, tmp_path):
    tenants = (f"{namespace}-prod", f"{namespace}-other")
    for tenant in tenants:
        await client.request("POST", "/api/v1/namespaces", [], {"metadata": {"name": tenant}})
        await allow(client, namespace, tenant)
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    made = Laboratory(client, namespace, api_server, limited, tmp_path, tenants)
    async with servers(made), made.running():
        yield made


async def test_units_get_arms_are_counted_and_a_mistake_changes_no_traffic(town):
    prod, _ = town.tenants
    for name in ("chat", "small"):
        await town.deploy(prod, name, model=name)
    await town.route(prod, "front", rest("chat"))
    await town.reaches("front", (200, [(prod, "chat")], "rest"))
    await town.experiment(prod, "size", layer="ui", allocation={"end": 60})
    await town.settles(prod, "size", "is accepted", lambda seen: seen["reasons"].get("Accepted") == "Accepted")

    placed = Assignment(layer=f"{prod}/ui", end=60, arms=tuple(AssignedArm(one["name"], 50, "") for one in ARMS))
    people = [f"person-{n}" for n in range(30)]
    arms = {one: place(f"{prod}/size", placed, unit_key("", one)).name for one in people}
    models = {"": "chat", "control": "chat", "small": "small"}
    small = next(one for one in people if arms[one] == "small")

    async def follows():
        with contextlib.suppress(aiohttp.ClientError):
            return await town.served_by(small)

    await until_async(follows, "the gateway follows the experiment", holds=lambda model: model == "small")
    for one in people:
        assert await town.served_by(one) == models[arms[one]]
    assert await town.served_by("") == "chat"
    expected = {name: sum(arm == name for arm in arms.values()) for name in ("control", "small")}

    def counted(seen):
        return {one["name"]: one["units"] for one in seen.get("arms") or ()} == expected

    status = await town.settles(prod, "size", f"counts {expected}", counted)
    assert status["phase"] == "Running" and status["verdict"].startswith("no verdict")
    # Another one wants the same units, and a mistake names a deployment that is not there.
    await town.experiment(prod, "late", layer="ui", allocation={"start": 50})
    await town.settles(prod, "late", "overlaps", lambda seen: seen["reasons"].get("Accepted") == "AllocationOverlap")
    await town.edit(prod, "size", arms=[ARMS[0], {**ARMS[1], "deploymentRef": {"name": "gone"}}])
    seen = await town.settles(
        prod, "size", "arm is gone", lambda one: one["reasons"].get("ResolvedRefs") == "ArmNotFound"
    )
    assert seen["assignment"]["arms"][1]["deployment"] == f"{prod}/small"
    assert await town.served_by(small) == "small"

    async def events():
        return {one["reason"] for one in await town.client.list(EVENTS, prod)}

    expected_events = {"ExperimentRunning", "AllocationOverlap", "ArmNotFound"}
    await until_async(events, "Events about both", holds=lambda seen: expected_events <= seen)
    await town.edit(prod, "size", arms=ARMS, paused=True)

    async def stops():
        return await town.served_by(small)

    await until_async(stops, "a paused experiment gives no arms", holds=lambda model: model == "chat")
