"""What the API server refuses of a plan stops no other part of it, and is in the status."""

from datetime import UTC, datetime

import pytest

from slipway_operator.kube.errors import ApiError, Refused
from slipway_operator.kube.resources import AUTOSCALERS, MODEL_DEPLOYMENTS, REPLICA_SETS
from testkit.until import until_async
from tests.support.reconciling import reconciler_of

from .conftest import MANIFEST

pytestmark = pytest.mark.integration


class Chat:
    """A ModelDeployment, and an operator that reconciles it when a test calls it."""

    def __init__(self, client, namespace):
        self.client, self.key = client, (namespace, "chat")
        self._reconcile = reconciler_of(client, lambda: datetime.now(UTC))

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


TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "another"}
SOURCE = {"configMapKeyRef": {"name": "a", "key": "b"}}


@pytest.mark.parametrize("variable", [{"name": "HOME", "value": "/x"}, {"name": "POD_NAME", "valueFrom": SOURCE}])
async def test_variables_of_the_user_replace_ours_of_the_same_name(chat, variable):
    """No pod, no status and no Event ever: the API server answered 500, which counted as unavailable."""
    await chat.create(engine={"env": [variable]})
    assert await chat.reconcile() == []
    [made] = await chat.replica_sets()
    [server] = made["spec"]["template"]["spec"]["containers"]
    assert [item for item in server["env"] if item["name"] == variable["name"]] == [variable]


@pytest.fixture
def no_autoscalers(api, namespace):
    """A policy of the namespace that denies HorizontalPodAutoscalers."""
    name, group = f"none-in-{namespace}", "/apis/admissionregistration.k8s.io/v1"
    rules = [{"operations": ["*"], "apiGroups": ["autoscaling"], "apiVersions": ["*"], "resources": ["*"]}]
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    denied = {"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": "false", "message": "no."}]}
    bound = {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": here}}
    made = {"validatingadmissionpolicies": denied, "validatingadmissionpolicybindings": bound}
    for plural, spec in made.items():
        answer = api.post(f"{group}/{plural}", {"metadata": {"name": name}, "spec": spec})
        assert answer.ok, answer.message
    yield name
    for plural in made:
        api.delete(f"{group}/{plural}/{name}")


async def test_a_refused_autoscaler_stops_nothing_else(chat, no_autoscalers):
    """Every reconcile ended before scaling, deletions and evictions, and the message blamed pods."""
    await chat.create()
    assert await chat.reconcile() == []
    metric = {"type": "External", "name": "lag", "target": "4"}
    probe = {"metadata": {"name": "probe", "namespace": chat.key[0]}, "spec": {"scaleTargetRef": TARGET}}
    probe["spec"]["maxReplicas"] = 2

    async def is_in_force():
        """The API server reads new policies within a second or so."""
        try:
            made = await chat.client.create(AUTOSCALERS, probe)
            await chat.client.delete(AUTOSCALERS, chat.key[0], "probe", made["metadata"]["uid"])
        except Refused:
            return True
        return False

    await until_async(is_in_force, "the policy is in force")
    await chat.edit(autoscaling={"maxReplicas": 4, "metrics": [metric]}, replicas=3)
    assert await chat.reconcile() == []
    assert (await chat.condition("Autoscaling"))["reason"] == "Refused"
    assert no_autoscalers in (await chat.condition("Autoscaling"))["message"]
    assert (await chat.condition("Available"))["reason"] != "Refused"
    [made] = await chat.replica_sets()
    assert made["spec"]["replicas"] == 3
    await chat.edit(model={"uri": "file:///opt/slipway/models/tiny-v2"})
    assert await chat.reconcile() == []
    assert len(await chat.replica_sets()) == 2


@pytest.mark.parametrize("what", ["long reason of an abort", "many revisions", "long words of a ReplicaSet"])
async def test_no_status_is_refused(chat, what):
    """The operator wrote a status that its own CRD refuses, at each reconcile, and did nothing else."""
    await chat.create()
    assert await chat.reconcile() == []
    [made] = await chat.replica_sets()
    if what == "long reason of an abort":
        await _forge_abort(chat, made["metadata"]["labels"]["slipway.dev/revision"])
    elif what == "many revisions":
        for number in range(70):
            await _copy(chat, made, f"old{number}")
    else:
        failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "y" * 700_000}
        await chat.client.put_status(REPLICA_SETS, {**made, "status": {"replicas": 0, "conditions": [failed]}})
    assert await chat.reconcile(6) == []
    assert len(await chat.replica_sets()) == 1


async def _forge_abort(chat, revision):
    now = "2026-01-01T00:00:00Z"
    abort = {"reason": "x" * 65, "message": "m", "at": now}
    times = {"startedAt": now, "stepStartedAt": now, "progressAt": now}
    await chat.forge(rollout={"state": "Aborted", "revision": revision, "attempt": 1, "abort": abort, **times})


async def _copy(chat, replica_set, revision):
    """An empty ReplicaSet of another revision."""
    former = replica_set["metadata"]
    labelled = former["labels"] | {"slipway.dev/revision": revision}
    metadata = {"name": f"chat-{revision}", "namespace": chat.key[0], "labels": labelled}
    metadata["ownerReferences"] = former["ownerReferences"]
    spec = replica_set["spec"] | {"replicas": 0, "selector": {"matchLabels": labelled}}
    spec["template"] = spec["template"] | {"metadata": {"labels": labelled}}
    await chat.client.create(REPLICA_SETS, {"metadata": metadata, "spec": spec})
