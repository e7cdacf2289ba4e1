"""What the API server refuses of a plan stops no other part of it, and is in the status."""

from datetime import UTC, datetime

import pytest

from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS, REPLICA_SETS
from slipway_operator.planning.plan import PlanSettings
from slipway_operator.reconcile import Askers, Reconciler, Sight
from slipway_operator.telemetry.metrics import Metrics

from .conftest import MANIFEST

pytestmark = pytest.mark.integration


class NoGateways:
    async def answers(self):
        return ()


class NoQuestions:
    def answers(self, key):
        return {}

    def follow(self, key, calls):
        return True

    def tell(self, key, calls):
        pass

    def forget(self, key):
        pass


class Chat:
    """A ModelDeployment, and an operator that reconciles it when a test says so."""

    def __init__(self, client, namespace):
        self.client, self.key = client, (namespace, "chat")
        settings = PlanSettings("slipway-server:test", "http://gateway/v1")
        askers = Askers(NoQuestions(), NoQuestions())
        self._reconcile = Reconciler(
            Sight(client, NoGateways()), settings, Metrics("test"), lambda: datetime.now(UTC), askers
        )

    async def create(self, **spec):
        manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": self.key[0]}}
        await self.client.create(MODEL_DEPLOYMENTS, manifest | {"spec": manifest["spec"] | spec})

    async def edit(self, **spec):
        await self.client.patch(MODEL_DEPLOYMENTS, *self.key, {"spec": spec})

    async def reconcile(self, times=4):
        """Reconcile so often; the failures on the way."""
        failures = []
        for _ in range(times):
            try:
                await self._reconcile(self.key, len(failures))
            except ApiError as error:
                failures.append(error)
        return failures

    async def status(self):
        return (await self.client.get(MODEL_DEPLOYMENTS, *self.key)).get("status") or {}

    async def forge(self, **status):
        obj = await self.client.get(MODEL_DEPLOYMENTS, *self.key)
        await self.client.put_status(MODEL_DEPLOYMENTS, {**obj, "status": obj["status"] | status})

    async def replica_sets(self):
        return await self.client.list(REPLICA_SETS, self.key[0])

    async def condition(self, kind):
        found = (item for item in (await self.status()).get("conditions", ()) if item["type"] == kind)
        return next(found, {})


@pytest.fixture
async def chat(client, namespace):
    return Chat(client, namespace)


SOURCE = {"configMapKeyRef": {"name": "a", "key": "b"}}


@pytest.mark.parametrize("variable", [{"name": "HOME", "value": "/x"}, {"name": "POD_NAME", "valueFrom": SOURCE}])
async def test_variables_of_the_user_replace_ours_of_the_same_name(chat, variable):
    """No pod, no status and no Event for good: the API server answered 500, which counted as unavailable."""
    await chat.create(engine={"env": [variable]})
    assert await chat.reconcile() == []
    [made] = await chat.replica_sets()
    [server] = made["spec"]["template"]["spec"]["containers"]
    assert [item for item in server["env"] if item["name"] == variable["name"]] == [variable]
