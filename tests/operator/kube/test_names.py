"""Claims of model names at an API server that refuses, conflicts, forgets, or holds edits by others."""

import asyncio
import contextlib
import json
from datetime import UTC, datetime

import pytest

from slipway_operator.kube.errors import Exists, NotFound, Refused, Stale, Unavailable
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.resources import CONFIG_MAPS, MODEL_DEPLOYMENTS, NAMESPACES
from slipway_operator.kube.writing import names
from slipway_operator.kube.writing.names import Names, NameTerms
from testkit.until import until_async

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def deployment(namespace, name="chat", model=None, created="2025-01-01T00:00:00Z", status=None):
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}", "resourceVersion": "1"}
    spec = {"model": {"name": model} if model else {}}
    return {"metadata": metadata | {"creationTimestamp": created}, "spec": spec, "status": status or {}}


class Server:
    """One ConfigMap with versions, Namespaces, and failures to come, by verb."""

    def __init__(self):
        self.text, self.version, self.there = None, 1, True
        self.annotations = {}
        self.failures = {"get": [], "replace": [], "create": [], "namespaces": []}
        self.calls = []

    def _fails(self, verb):
        self.calls.append(verb)
        if self.failures[verb]:
            raise self.failures[verb].pop(0)

    def _object(self):
        metadata = {"name": "slipway-model-names", "namespace": "home", "resourceVersion": str(self.version)}
        return {"metadata": metadata, **({"data": {"names.json": self.text}} if self.text is not None else {})}

    async def get(self, resource, namespace, name):
        if resource is NAMESPACES:
            self._fails("namespaces")
            if name not in self.annotations:
                raise NotFound(name)
            return self._namespace(name)
        assert (resource, namespace, name) == (CONFIG_MAPS, "home", "slipway-model-names")
        self._fails("get")
        if not self.there:
            raise NotFound("gone")
        return self._object()

    async def metadata(self, resource, namespace):
        assert (resource, namespace) == (NAMESPACES, None)
        self._fails("namespaces")
        return [self._namespace(name) for name in self.annotations]

    def _namespace(self, name):
        grants = self.annotations.get(name)
        return {"metadata": {"name": name, **({"annotations": {"slipway.dev/model-names": grants}} if grants else {})}}

    async def replace(self, resource, body):
        self._fails("replace")
        if body["metadata"]["resourceVersion"] != str(self.version) or not self.there:
            raise Stale("another version")
        return self._write(body)

    async def create(self, resource, body):
        self._fails("create")
        if self.there:
            raise Exists("there")
        return self._write(body)

    def _write(self, body):
        self.there, self.text, self.version = True, body["data"]["names.json"], self.version + 1
        return self._object()

    def writes(self):
        return sum(call in ("replace", "create") for call in self.calls)

    def owners(self):
        return {name: one["owner"] for name, one in json.loads(self.text or "{}").items()}


class World:
    """Names over a server, with the keys that were added."""

    def __init__(self, *deployments, **terms):
        self.server, self.cache, self.added, self.leads = Server(), ObjectCache(), [], True
        for one in deployments:
            self.cache.update(MODEL_DEPLOYMENTS, one)
        settings = NameTerms("home", "slipway-model-names", 60.0, **terms)
        self.names = Names(self.server, self.cache, settings, self.added.append, lambda: self.leads, lambda: NOW)

    def of(self, namespace, name="chat"):
        return self.names.of(self.cache.get((namespace, name)))


@contextlib.asynccontextmanager
async def running(world):
    task = asyncio.create_task(world.names.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    for pause in ("GATHER_S", "RETRY_S"):
        monkeypatch.setattr(names, pause, 0.01)


async def test_thousand_names_are_one_write_and_no_deployment_is_queued_twice():
    world = World(*(deployment("a", f"m{n}") for n in range(1000)), deployment("b", "x", "m7", "2025-02-01T00:00:00Z"))
    async with running(world):
        await until_async(world.server.writes)
        await until_async(lambda: world.of("a", "m7") is not None)
        assert world.server.writes() == 1 and len(world.server.owners()) == 1000
        assert world.added == [("b", "x")]
        assert not world.of("a", "m999").lost and world.of("b", "x").lost


async def test_an_edit_by_an_admin_between_read_and_write_is_kept():
    world = World(deployment("a"))
    world.server.failures["replace"] = [Stale("another writer was faster")]
    world.server.text = '{"chat": {"owner": "z/chat", "since": "2025-01-01T00:00:00Z"}}'
    async with running(world):
        await until_async(lambda: world.of("a"))
        assert world.of("a").reason == "ModelNameReserved"
        assert world.server.owners() == {"chat": "z/chat"}


async def test_without_the_lease_nothing_is_requested_and_claims_are_read_again():
    world = World(deployment("a"))
    world.leads = False
    async with running(world):
        assert world.of("a") is None
        await asyncio.sleep(0.05)
        assert world.server.calls == []
        world.leads = True
        await until_async(lambda: world.of("a"))
        world.leads = False
        await asyncio.sleep(0.05)
        # Another operator wrote meanwhile.
        world.server.text, world.server.version = world.server.text.replace("a/chat", "z/chat"), 99
        world.cache.update(MODEL_DEPLOYMENTS, deployment("b", "other"))
        world.leads = True
        await until_async(lambda: world.of("b", "other"))
        assert world.server.owners() == {"chat": "z/chat", "other": "b/other"}
        assert world.of("a").reason == "ModelNameReserved"


@pytest.mark.parametrize("text", ["chat: a/chat", '{"chat": {"owner": "z/chat"}}', "[]"])
async def test_unreadable_claims_are_reported_and_never_overwritten(text):
    world = World(deployment("a"))
    world.server.text = text
    async with running(world):
        await until_async(lambda: world.of("a"))
        standing = world.of("a")
        assert (standing.reason, standing.known) == ("ModelNameNotClaimed", False)
        assert (
            "cannot be read" in standing.message
            and "clients reach this model as a/chat; whether also as" in standing.message
        )
        assert world.added == [("a", "chat")]
        assert world.server.text == text and world.server.writes() == 0
        world.server.text = '{"chat": {"owner": "a/chat", "since": "2025-01-01T00:00:00Z"}}'
        await until_async(lambda: not world.of("a").lost)
        assert world.added == [("a", "chat")] * 2  # so that the condition goes


@pytest.mark.parametrize("verb", ["get", "replace"])
async def test_refusal_is_logged_once_and_retried(verb):
    world = World(deployment("a"))
    world.server.failures[verb] = [Refused(403, "configmaps is forbidden")] * 3
    async with running(world):
        await until_async(lambda: world.of("a"))
        assert "configmaps is forbidden" in world.of("a").message
        await until_async(lambda: not world.of("a").lost)
        assert world.added == [("a", "chat")] * 2 and world.server.owners() == {"chat": "a/chat"}


async def test_deleted_or_emptied_object_is_restored():
    world = World(deployment("a"))
    async with running(world):
        await until_async(lambda: world.of("a"))
        for lose in ({"there": False}, {"text": None}):
            for name, value in lose.items():
                setattr(world.server, name, value)
            world.server.version += 1
            world.cache.remove(MODEL_DEPLOYMENTS, deployment("a"))
            key = f"new-{world.server.version}"
            world.cache.update(MODEL_DEPLOYMENTS, deployment("b", key))
            world.names.forget(("a", "chat"))
            world.of("b", key)
            await until_async(lambda key=key: world.of("b", key))
            assert world.server.owners() | {key: f"b/{key}"} == world.server.owners()
            assert world.server.owners()["chat"] == "a/chat"


async def test_edit_is_repaired_without_a_change_of_any_deployment(monkeypatch):
    monkeypatch.setattr(names, "LOOK_S", 0.05)
    world = World(deployment("a"))
    async with running(world):
        await until_async(lambda: world.of("a"))
        world.server.there = False
        await until_async(lambda: world.server.there)
        world.server.text, world.server.version = world.server.text.replace("a/chat", "z/chat"), 99
        await until_async(lambda: world.of("a").lost)
        assert world.added == [("a", "chat")]


async def test_no_name_is_given_before_grants_could_be_read():
    """A name that is granted to one namespace must not go to another while the API server is busy."""
    world = World(deployment("b", created="2020-01-01T00:00:00Z"), deployment("a"))
    world.server.annotations = {"a": "chat", "b": ""}
    world.server.failures["namespaces"] = [Unavailable("busy")] * 3
    async with running(world):
        await until_async(lambda: world.server.calls.count("namespaces") == 3)
        assert world.server.writes() == 0
        await until_async(world.server.owners)
        assert world.server.owners() == {"chat": "a/chat"}
        await until_async(lambda: world.of("b"))
        assert world.of("b").reason == "ModelNameGranted"


async def test_without_the_right_to_read_namespaces_the_installations_grants_count(caplog):
    world = World(deployment("a", created="2020-01-01T00:00:00Z"), deployment("b"), granted=(("b", "chat"),))
    world.server.failures["namespaces"] = [Refused(403, "namespaces is forbidden")] * 99
    async with running(world):
        await until_async(world.server.owners)
        assert world.server.owners() == {"chat": "b/chat"}
    assert caplog.text.count("annotations slipway.dev/model-names of Namespaces do not count") == 1


async def test_annotations_can_be_turned_off_and_only_served_namespaces_are_read():
    off = World(deployment("a"), annotations=False)
    off.server.annotations = {"b": "chat"}
    async with running(off):
        await until_async(off.server.owners)
        assert off.server.owners() == {"chat": "a/chat"} and "namespaces" not in off.server.calls
    some = World(deployment("a"), namespaces=("a", "later"))
    some.server.annotations = {"a": "", "b": "chat"}
    async with running(some):
        await until_async(some.server.owners)
        assert some.server.owners() == {"chat": "a/chat"}
