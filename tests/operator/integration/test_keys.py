"""The release's keys on a real API server: the operator makes, publishes and keeps them with the rights it is given."""

import base64
import contextlib
import json

import pytest

from slipway_operator.kube import auth
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound, Refused, Unavailable
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS, REPLICA_SETS, SECRETS
from slipway_operator.manifests.pods.tenant_key import NAME, namespace_secret
from slipway_operator.model.cluster import keys
from testkit.until import until_async
from testkit.world.rights import limited_kubeconfig, operator_rules

from .conftest import MANIFEST

pytestmark = [pytest.mark.integration, pytest.mark.attack_class(2, 9, 19)]

RELEASE = "slipway-keys"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def operator_flags():
    return (f"--keys-secret={RELEASE}",)


async def found(client, namespace, name):
    async def ask():
        try:
            return await client.get(SECRETS, namespace, name)
        except NotFound:
            return None

    return await until_async(ask, f"the Secret {name}")


async def test_operator_creates_publishes_and_keeps_keys(cluster, chat):
    release = await found(cluster.client, cluster.namespace, RELEASE)
    (key,) = keys.parse(release["data"])
    given = await found(cluster.client, cluster.namespace, NAME)
    (derived,) = keys.derive((key,), cluster.namespace)
    published = json.loads(base64.b64decode(given["data"]["keys.json"]))["keys"]
    assert [(one["id"], base64.urlsafe_b64decode(one["key"])) for one in published] == [(key.id, derived.key)]
    assert (given["metadata"]["labels"]["app.kubernetes.io/managed-by"], given["type"]) == ("slipway", "Opaque")
    assert base64.b64decode(release["data"]["operator-token"]).decode() == keys.operator_token(key)

    # The Secret was there before the pods that mount it.
    await cluster.reaches("healthy", lambda status: status.get("phase") == "Healthy")
    (replica_set,) = await cluster.client.list(REPLICA_SETS, cluster.namespace)
    assert replica_set["metadata"]["creationTimestamp"] >= given["metadata"]["creationTimestamp"]
    assert key.key not in cluster.operator.log() and keys.operator_token(key) not in cluster.operator.log()

    await cluster.operator.kill()
    await cluster.client.delete(SECRETS, cluster.namespace, NAME, given["metadata"]["uid"])
    await cluster.operator.start()
    again = await found(cluster.client, cluster.namespace, NAME)
    assert again["data"] == given["data"]
    assert (await found(cluster.client, cluster.namespace, RELEASE))["data"] == release["data"]


async def test_a_webhook_that_lets_no_key_be_written_is_shown_in_the_status(cluster, client, chat):
    await cluster.reaches("healthy", lambda status: status.get("phase") == "Healthy")
    await cluster.operator.kill()
    given = await client.get(SECRETS, cluster.namespace, NAME)
    async with broken_webhook(client, cluster.namespace):
        await client.delete(SECRETS, cluster.namespace, NAME, given["metadata"]["uid"])
        await cluster.operator.start()
        await client.patch(MODEL_DEPLOYMENTS, cluster.namespace, "chat", {"spec": {"model": {"version": "v2"}}})
        wanted = "what pods need cannot be written: "
        status = await cluster.reaches("the status has it", lambda status: wanted in status.get("message", ""))
        assert "secrets.broken.test" in status["message"], "the webhook is named"
    await found(client, cluster.namespace, NAME)
    await cluster.reaches("healthy again", lambda status: wanted not in status.get("message", ""))


@contextlib.asynccontextmanager
async def broken_webhook(client, namespace):
    """An admission webhook of Secrets of the namespace that does not answer."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    webhook = {
        "name": "secrets.broken.test", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1/"}, "timeoutSeconds": 1, "failurePolicy": "Fail",
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["CREATE"]}],
    }  # fmt: skip
    await client.request("POST", path, [], {"metadata": {"name": f"broken-{namespace}"}, "webhooks": [webhook]})
    try:

        async def is_in_force():
            try:
                await client.create(SECRETS, {"metadata": {"generateName": "probe-", "namespace": namespace}})
            except Unavailable:
                return True
            return False

        await until_async(is_in_force, "the webhook is in force")
        yield
    finally:
        await client.request("DELETE", f"{path}/broken-{namespace}", [])


async def test_the_rights_are_for_these_secrets_alone(client, namespace, api_server, tmp_path, monkeypatch):
    """With the documented rights no other Secret is read, made by apply or changed; a namespace's one is never read."""
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    served = f"{namespace}-served"
    await client.request("POST", "/api/v1/namespaces", [], {"metadata": {"name": served}})
    # `create` by name allows server-side apply, whose request has a name, and no POST.
    rules = [rule for rule in operator_rules() if NAME in (rule.get("resourceNames") or ())]
    metadata = {"name": "operator", "namespace": served}
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"}
    await client.request("POST", f"{RBAC}/namespaces/{served}/roles", [], {"metadata": metadata, "rules": rules})
    binding = {"metadata": metadata, "roleRef": role, "subjects": [subject]}
    await client.request("POST", f"{RBAC}/namespaces/{served}/rolebindings", [], binding)
    async with Client(await auth.load(str(limited))) as operator:
        for key in (keys.new_key(b"1" * 36, 1.0), keys.new_key(b"2" * 36, 2.0)):
            wanted = namespace_secret(served, (key,))
            await operator.apply(SECRETS, wanted)
            assert (await client.get(SECRETS, served, NAME))["data"] == wanted["data"]
        other = {**wanted, "metadata": {**wanted["metadata"], "name": "others"}}
        for call in (
            operator.get(SECRETS, served, NAME),
            operator.list(SECRETS, served),
            operator.get(SECRETS, namespace, "others"),
            operator.patch(SECRETS, namespace, "others", {"data": {}}),
            operator.apply(SECRETS, other),
            operator.create(SECRETS, other),
        ):
            with pytest.raises(Refused):
                await call


async def test_foreign_secret_of_that_name_is_overwritten(cluster, client, namespace):
    """Without this, a user who may write Secrets there could choose the keys of that namespace's servers."""
    await client.create(
        SECRETS, {"metadata": {"name": NAME, "namespace": namespace}, "data": {"keys.json": "e30=", "more": "e30="}}
    )
    await client.create(MODEL_DEPLOYMENTS, MANIFEST | {"metadata": {"name": "chat", "namespace": namespace}})

    async def ours():
        data = (await client.get(SECRETS, namespace, NAME))["data"]
        return data["keys.json"] != "e30="

    await until_async(ours, "the keys are ours")
