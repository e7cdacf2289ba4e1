"""Jobs when the API server does not do its part; the good paths run against a real one."""

import pytest

from slipway_operator.kube.errors import Exists, NotFound, Refused, Unavailable
from slipway_operator.kube.resources import SECRETS
from slipway_operator.manifests.pods.tenant_key import release_secret
from slipway_operator.providers.answers import Unanswered
from slipway_operator.providers.jobs import Jobs, verdict

MANIFEST = {
    "metadata": {"name": "chat-a", "namespace": "default", "ownerReferences": [{"uid": "u1"}]},
    "spec": {
        "activeDeadlineSeconds": 60,
        "template": {"spec": {"containers": [{"name": "a", "image": "b"}]}},
    },
}


def job(*conditions, owner="u1"):
    return {
        "metadata": {"name": "chat-a", "uid": "j1", "ownerReferences": [{"uid": owner}]},
        "status": {"conditions": [{"type": kind, "status": status} for kind, status in conditions]},
    }


class Server:
    """An API server with fixed answers, used in turn; an exception among them is raised."""

    def __init__(self, *gets, create=None, secrets=()):
        self.gets, self.creation, self.calls, self.secrets = list(gets), create, [], secrets
        self.labels = {}

    async def may(self, verb, resource, namespace, name):
        assert (verb, resource, namespace) == ("get", SECRETS, "default")
        return name in self.secrets

    async def create(self, resource, body):
        self.calls.append("create")
        if self.creation:
            raise self.creation

    async def get(self, resource, namespace, name):
        if resource is SECRETS:
            return {"metadata": {"name": name, "labels": self.labels}}
        self.calls.append("get")
        answer = self.gets.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def delete(self, resource, namespace, name, uid):
        self.calls.append(f"delete {uid}")

    async def sleep(self, seconds):
        self.calls.append("sleep")


async def run(server, manifest=MANIFEST):
    return await Jobs(server, server.sleep).run(manifest)


def manifest_with(**container):
    pod = {"containers": [{"name": "a", "image": "b", **container}]}
    return {**MANIFEST, "spec": {"activeDeadlineSeconds": 60, "template": {"spec": pod}}}


@pytest.mark.finding(16)
@pytest.mark.attack_class(2, 22)
async def test_a_secret_is_used_only_where_the_operator_was_given_it():
    """Safety 16: a user who may write templates and not read Secrets must not read them through a Job."""
    secret = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "prod-key", "key": "k"}}}
    server = Server()
    with pytest.raises(Unanswered, match="'prod-key' may not be used: allow the operator to get it by a Role"):
        await run(server, manifest_with(env=[secret]))
    assert server.calls == [], "no Job is made"
    server = Server(job(("Complete", "True")), secrets=["prod-key"])
    assert (await run(server, manifest_with(env=[secret]))).value is True


@pytest.mark.attack_class(2, 22)
async def test_the_keys_of_the_release_are_for_no_job():
    secret = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "slipway-keys", "key": "keys.json"}}}
    server = Server(secrets=["slipway-keys"])
    server.labels = release_secret("default", "slipway-keys", ())["metadata"]["labels"]
    with pytest.raises(Unanswered, match="'slipway-keys' may not be used: it holds keys of Slipway"):
        await run(server, manifest_with(env=[secret]))
    assert server.calls == [], "no Job is made"


@pytest.mark.attack_class(2)
async def test_job_that_is_not_closed_is_never_run():
    server = Server()
    with pytest.raises(Unanswered, match=r"is not run: job\.spec\.template\.spec\.containers\[0\]\.ports: is not"):
        await run(server, manifest_with(ports=[{"hostPort": 1}]))
    assert server.calls == []


async def test_job_is_watched_until_it_ends():
    server = Server(job(), Unavailable("away"), job(("Suspended", "False"), ("Complete", "True")))
    assert (await run(server)).value is True
    assert server.calls == ["create", "get", "sleep", "get", "sleep", "get"]


async def test_job_of_the_former_operator_process_is_adopted():
    server = Server(job(), job(("Failed", "True")), create=Exists("there"))
    answer = await run(server)
    assert (answer.value, answer.message) == (False, "Job chat-a failed")


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Server(job(owner="u2"), create=Exists("there")), "there is a Job chat-a already, and it is not ours"),
        (Server(create=Refused(422, "spec.template: Required value")), "cannot be run: spec.template: Required value"),
        (Server(job(), NotFound("gone")), "was deleted before it ended"),
    ],
)
async def test_failure_of_a_job_is_reported_with_the_reason(server, message):
    with pytest.raises(Unanswered, match=message):
        await run(server)


def test_only_complete_or_failed_ends_a_job():
    assert verdict(job()) is None
    assert verdict({"metadata": {"name": "a"}}) is None
    assert verdict(job(("FailureTarget", "True"), ("Complete", "False"))) is None
    failed = job(("Failed", "True"))
    failed["status"]["conditions"][0] |= {"reason": "BackoffLimitExceeded", "message": "too often"}
    assert verdict(failed).message == "Job chat-a failed: BackoffLimitExceeded: too often"


@pytest.mark.parametrize(
    ("found", "calls"),
    [
        (job(), ["get", "delete j1"]),
        (job(owner="u2"), ["get"]),
        (NotFound("gone"), ["get"]),
        (Unavailable("away"), ["get"]),
    ],
)
async def test_only_a_job_of_the_operator_is_deleted(found, calls):
    server = Server(found)
    await Jobs(server).delete(MANIFEST)
    assert server.calls == calls
