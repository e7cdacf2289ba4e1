"""Who keeps the release's keys: made once, kept over restarts, rotated, given to namespaces before their pods."""

import base64
import json

import pytest

from slipway_operator.kube.errors import Exists, Fenced, NotFound, Refused, Stale, Unavailable
from slipway_operator.kube.resources import SECRETS
from slipway_operator.kube.secrets.kept import AGAIN_AFTER_S
from slipway_operator.kube.secrets.keys import Keys
from slipway_operator.model.cluster import keys as model
from slipway_operator.model.cluster.keys import PROPAGATION_S

pytestmark = pytest.mark.attack_class(9, 19)

DAY_S = 86_400.0


class Server:
    """Keeps Secrets, or raises `failure`."""

    def __init__(self):
        self.objects, self.applied, self.failures, self.version = {}, [], {}, 0

    def _fail(self, verb):
        if verb in self.failures:
            raise self.failures[verb]

    async def get(self, resource, namespace, name):
        assert resource == SECRETS
        self._fail("get")
        if (namespace, name) not in self.objects:
            raise NotFound(name)
        return self.objects[namespace, name]

    def _keep(self, body):
        self.version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.version)}
        self.objects[metadata["namespace"], metadata["name"]] = {**body, "metadata": metadata}

    async def create(self, resource, body):
        self._fail("create")
        if (body["metadata"]["namespace"], body["metadata"]["name"]) in self.objects:
            raise Exists("there")
        self._keep(body)

    async def replace(self, resource, body):
        self._fail("replace")
        found = self.objects[body["metadata"]["namespace"], body["metadata"]["name"]]
        if found["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Stale("changed")
        self._keep(body)

    async def apply(self, resource, manifest):
        self.applied.append(manifest["metadata"]["namespace"])
        self._fail("apply")
        self._keep(manifest)

    def content(self):
        return model.parse(self.objects["sys", "slipway-keys"]["data"])

    def key_ids(self, namespace):
        text = base64.b64decode(self.objects[namespace, "slipway-tenant-key"]["data"]["keys.json"])
        return [one["id"] for one in json.loads(text)["keys"]]


class Clock:
    now = 1e9

    def __call__(self):
        return self.now


def keeper(server, clock, *namespaces, rotation_s=DAY_S):
    return Keys(server, "sys", "slipway-keys", rotation_s, lambda: [(name, "chat") for name in namespaces], clock)


async def test_a_namespace_has_its_key_before_its_pods_and_again_every_few_minutes():
    server, clock = Server(), Clock()
    kept = keeper(server, clock, "a")
    for _ in range(3):
        await kept.keep("a")
    assert server.applied == ["a"] and server.key_ids("a") == [server.content()[0].id]
    clock.now += AGAIN_AFTER_S
    await kept.keep("a")
    kept.forget(("a", "chat"))
    await kept.keep("a")
    assert server.applied == ["a"] * 3


async def test_a_second_start_keeps_the_keys_and_the_token():
    server, clock = Server(), Clock()
    first, second = keeper(server, clock), keeper(server, clock)
    assert first.token() == ""
    await first.look()
    content = server.content()
    await second.look()
    assert server.content() == content and len(content) == 1
    assert first.token() == second.token() == model.operator_token(content[0])


async def test_a_new_key_goes_to_all_namespaces_before_it_signs():
    server, clock = Server(), Clock()
    kept = keeper(server, clock, "a", "b")
    await kept.look()
    await kept._give_all()
    (old,) = server.content()
    clock.now += DAY_S
    await kept.look()
    await kept._give_all()
    assert server.key_ids("a") == server.key_ids("b") == [key.id for key in server.content()]
    assert len(server.key_ids("a")) == 2 and kept.token() == model.operator_token(old)
    clock.now += PROPAGATION_S
    await kept.look()
    assert kept.token() == model.operator_token(server.content()[0]) != model.operator_token(old)
    assert server.content()[1].id == old.id


@pytest.mark.parametrize("emptied", [False, True])
async def test_a_deleted_or_emptied_secret_is_written_as_it_was(emptied):
    """A new key would sign before any pod knows it."""
    server, clock = Server(), Clock()
    kept = keeper(server, clock)
    await kept.look()
    before = server.content()
    if emptied:
        server.objects["sys", "slipway-keys"]["data"] = {}
    else:
        del server.objects["sys", "slipway-keys"]
    await kept.look()
    assert server.content() == before


async def test_without_the_right_in_a_namespace_its_pods_go_on_with_a_log_line(caplog):
    server, clock = Server(), Clock()
    server.failures["apply"] = Refused(403, "secrets is forbidden")
    await keeper(server, clock).keep("a")
    assert "model pods in a honour no tenant" in caplog.text


async def test_without_the_right_at_home_pods_go_on_with_one_log_line(caplog):
    server, clock = Server(), Clock()
    server.failures["get"] = Refused(403, "secrets is forbidden")
    kept = keeper(server, clock)
    for _ in range(3):
        await kept.keep("a")
    assert kept.token() == "" and server.applied == []
    assert caplog.text.count("the keys cannot be kept") == 1


async def test_pods_wait_while_the_api_server_is_away():
    server, clock = Server(), Clock()
    server.failures["apply"] = Unavailable("away")
    kept = keeper(server, clock)
    with pytest.raises(Unavailable):
        await kept.keep("a")
    del server.failures["apply"]
    await kept.keep("a")
    assert server.applied == ["a", "a"]


@pytest.mark.parametrize("failure", [Fenced("lease"), Stale("changed"), Exists("there")])
async def test_operator_that_cannot_write_creates_no_keys(failure):
    server, clock = Server(), Clock()
    server.failures["create"] = failure
    kept = keeper(server, clock)
    with pytest.raises(type(failure)):
        await kept.look()
    assert kept.token() == ""
    # What another one wrote is read, and a step that is due is left to it.
    del server.failures["create"]
    await keeper(server, clock).look()
    server.failures["replace"] = failure
    clock.now += DAY_S
    await kept.look()
    assert kept.token() == model.operator_token(server.content()[0])


async def test_a_secret_with_nonsense_is_left_and_the_log_names_it(caplog):
    server, clock = Server(), Clock()
    server._keep({"metadata": {"namespace": "sys", "name": "slipway-keys"}, "data": {"tenant.json": "e30="}})
    kept = keeper(server, clock)
    await kept.look()
    assert "Secret sys/slipway-keys: tenant.json is not what the operator writes" in caplog.text
    assert kept.token() == "" and server.version == 1


async def test_one_namespace_that_goes_keeps_no_other_from_its_keys(caplog):
    server, clock = Server(), Clock()
    kept = keeper(server, clock, "a", "b")
    await kept.look()
    apply = server.apply

    async def leaving(resource, manifest):
        if manifest["metadata"]["namespace"] == "a":
            raise Unavailable("going")
        await apply(resource, manifest)

    server.apply = leaving
    await kept._give_all()
    assert server.applied == ["b"] and "namespace a has not the newest keys yet" in caplog.text
