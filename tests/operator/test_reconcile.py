"""What a reconcile does when the API server does not do its part; the good paths run against a real one."""

from datetime import UTC, datetime

import pytest

from slipway_operator.kube.errors import NotFound, Refused, Stale, Unavailable
from slipway_operator.kube.resources import EVENTS, MODEL_DEPLOYMENTS
from slipway_operator.planning.plan import PlanSettings
from slipway_operator.reconcile import Reconciler
from slipway_operator.telemetry.metrics import Metrics

KEY = ("default", "chat")
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def chat(**metadata):
    return {
        "metadata": {"name": "chat", "namespace": "default", "uid": "u1", "generation": 1, **metadata},
        "spec": {"model": {"uri": "file:///m"}},
    }


class FailingClient:
    """Raises what it was told where it was told."""

    def __init__(self, obj=None, **failures):
        self.obj, self.failures, self.calls = obj, failures, []

    def _call(self, name, answer):
        self.calls.append(name)
        if name in self.failures:
            raise self.failures[name]
        return answer

    async def get(self, resource, namespace, name):
        assert resource is MODEL_DEPLOYMENTS
        return self._call("get", self.obj)

    async def list(self, resource, namespace, selector="", cached=False):
        return self._call("list", [])

    async def apply(self, resource, manifest):
        return self._call("apply", manifest)

    async def put_status(self, resource, body):
        return self._call("put_status", body)

    async def create(self, resource, body):
        assert resource is EVENTS
        self.event = body
        return self._call("create", body)


class NoGateways:
    async def answers(self):
        return ()


async def reconcile(client, failures=0):
    metrics = Metrics("test")
    reconciler = Reconciler(client, NoGateways(), PlanSettings("image", "url"), metrics, lambda: NOW)
    try:
        return await reconciler(KEY, failures)
    finally:
        results = [
            sample.labels["result"]
            for family in metrics.registry.collect()
            for sample in family.samples
            if sample.name == "slipway_operator_reconcile_total"
        ]
        client.result = results[0]


async def test_a_new_model_deployment_gets_its_children_before_its_status():
    client = FailingClient(chat())
    await reconcile(client)
    kinds = [call for call in client.calls if call != "list"]
    assert kinds == ["get", "apply", "apply", "apply", "put_status", "create"]
    assert client.result == "ok"


@pytest.mark.parametrize("obj", [None, chat(deletionTimestamp="2026-01-01T00:00:00Z")], ids=["gone", "leaving"])
async def test_what_is_gone_or_leaving_is_left_alone(obj):
    client = FailingClient(obj) if obj else FailingClient(get=NotFound("no"))
    assert await reconcile(client) is None
    assert client.calls == ["get"]


async def test_stale_means_again_at_once():
    client = FailingClient(chat(), put_status=Stale("newer"))
    assert await reconcile(client) <= 0.1
    assert client.result == "stale"


async def test_an_api_server_that_is_away_means_backoff():
    client = FailingClient(chat(), list=Unavailable("503"))
    with pytest.raises(Unavailable):
        await reconcile(client)
    assert client.result == "unavailable"


@pytest.mark.parametrize(("failures", "told"), [(0, False), (1, False), (2, True), (7, True)])
async def test_a_refusal_that_lasts_becomes_a_warning(failures, told):
    client = FailingClient(chat(), apply=Refused(403, "exceeded quota: gpus"))
    with pytest.raises(Refused):
        await reconcile(client, failures)
    assert ("create" in client.calls) is told
    assert ("put_status" in client.calls) is told
    if told:
        assert (client.event["type"], client.event["reason"]) == ("Warning", "CreateFailed")
        assert client.event["message"].endswith("cannot be created: exceeded quota: gpus")


async def test_a_bug_is_counted_and_raised():
    client = FailingClient({"metadata": {}})
    with pytest.raises(KeyError):
        await reconcile(client)
    assert client.result == "error"
