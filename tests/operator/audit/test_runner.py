"""The looks of the audit log: what is new is recorded once, whatever fails meanwhile."""

import asyncio
import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from slipway_contracts.adapters import subject_name
from slipway_operator.audit import runner
from slipway_operator.audit.runner import AuditRunner
from slipway_operator.audit.trail import Trail
from slipway_operator.kube.errors import NotFound, Refused, Unavailable
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.resources import MODEL_ADAPTERS, MODEL_DEPLOYMENTS, TENANTS, Resource
from slipway_operator.kube.subjects import as_subject
from testkit.until import until_async

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)


class World:
    """An API server with ModelDeployments, ModelAdapters and Tenants, and its client."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.adapters: dict[str, dict[str, Any]] = {}
        self.tenants: list[dict[str, Any]] = []
        self.old_tenants: list[dict[str, Any]] | None = None  # what the cache of the API server has
        self.cache = ObjectCache()
        self.reads = 0
        self.trouble: Exception | None = None
        self._version = 0

    def write(
        self,
        name: str,
        generation: int,
        version: str,
        namespace: str = "ml",
        resource: Resource = MODEL_DEPLOYMENTS,
        **more: Any,
    ) -> None:
        self._version += 1
        meta = {
            "namespace": namespace,
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-25T11:00:00Z",
        }
        meta |= {"generation": generation, "resourceVersion": str(self._version)}
        meta |= {"uid": f"adapter-{name}"} if resource is MODEL_ADAPTERS else {}
        stored = self.adapters if resource is MODEL_ADAPTERS else self.objects
        stored[name] = {"metadata": meta, "spec": {"model": {"version": version}}} | more
        self.cache.update(resource, as_subject(resource, copy.deepcopy(stored[name])))

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        self.reads += 1
        if self.trouble:
            raise self.trouble
        stored = self.adapters if resource is MODEL_ADAPTERS else self.objects
        if name not in stored:
            raise NotFound(404, "gone")
        return copy.deepcopy(stored[name])

    async def list(self, resource: Resource, namespace: None, cached: bool = False) -> list[dict[str, Any]]:
        assert resource is TENANTS
        if self.trouble:
            raise self.trouble
        return copy.deepcopy(self.old_tenants if cached and self.old_tenants is not None else self.tenants)


def auditor(world: World, path: Path | str = "", leads: bool = True) -> tuple[AuditRunner, Trail]:
    trail = Trail(str(path), lambda: NOW)
    return AuditRunner(world, world.cache, trail, lambda: leads, lambda: NOW), trail  # type: ignore[arg-type]


def actions(path: Path) -> list[str]:
    return [f"{one['action']} {one.get('field', '')}".strip() for one in map(json.loads, path.read_text().splitlines())]


def tenant(name: str = "team-a") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": name, "generation": 1, "creationTimestamp": "x"},
        "spec": {"models": ["*"]},
    }


async def test_a_change_is_recorded_once_and_an_unchanged_object_is_not_read(tmp_path: Path) -> None:
    world = World()
    world.write("chat", 1, "1")
    found, _ = auditor(world, tmp_path / "log")
    await found.look()
    world.write("chat", 2, "2")
    for _ in range(3):
        await found.look()
    assert actions(tmp_path / "log") == ["begun", "found", "changed spec.model"]
    assert world.reads == 2


@pytest.mark.finding("F8")
async def test_a_namespace_whose_objects_change_all_the_time_delays_no_other_record(tmp_path: Path) -> None:
    """Its objects were read first in each look, and no other one's change was recorded."""
    world = World()
    for number in range(runner.MOST + 20):
        world.write(f"hog-{number}", 1, "1", namespace="hog")
    world.write("chat", 1, "1")
    for _ in range(4):
        found, trail = auditor(world, tmp_path / "log")
        await found.look()
    for generation in (2, 3):
        for number in range(runner.MOST + 20):
            world.write(f"hog-{number}", generation, str(generation), namespace="hog")
        if generation == 3:
            world.write("chat", 2, "2")
        await found.look()
    assert trail.known["uid-chat"].generation == 2


async def test_what_was_not_written_is_recorded_by_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.write("chat", 1, "1")
    found, trail = auditor(world, tmp_path / "log")
    await found.look()
    world.write("chat", 2, "2")

    def full(records: object) -> bool:
        raise OSError("full")

    with monkeypatch.context() as broken:
        broken.setattr(trail, "append", full)
        with pytest.raises(OSError, match="full"):
            await found.look()
    await found.look()
    assert actions(tmp_path / "log") == ["begun", "found", "changed spec.model"]


async def test_a_killed_operator_is_followed_by_one_that_records_what_it_missed(tmp_path: Path) -> None:
    world = World()
    world.write("chat", 1, "1")
    world.tenants = [tenant()]
    await auditor(world, tmp_path / "log")[0].look()
    world.write("chat", 2, "2", status={"decisions": ["2026-11-25T11:59:01Z new-revision: r2 goes out"]})
    world.tenants = []
    await auditor(world, tmp_path / "log")[0].look()
    await auditor(world, tmp_path / "log")[0].look()
    assert actions(tmp_path / "log") == ["begun", "found", "found", "deleted", "changed spec.model", "decided"]


async def test_only_what_is_gone_counts_as_deleted(tmp_path: Path) -> None:
    """Not an object that this operator may not read, nor a Tenant that the API server's cache lacks."""
    world = World()
    world.write("chat", 1, "1")
    world.tenants = [tenant()]
    found, _ = auditor(world, tmp_path / "log")
    await found.look()
    world.cache = ObjectCache()
    world.old_tenants = []
    narrow, _ = auditor(world, tmp_path / "log")
    await narrow.look()
    reads = world.reads
    await narrow.look()
    assert actions(tmp_path / "log") == ["begun", "found", "found"] and world.reads == reads
    # It is watched again, and deleted then.
    world.write("chat", 1, "1")
    await narrow.look()
    world.cache.remove(MODEL_DEPLOYMENTS, world.objects.pop("chat"))
    await narrow.look()
    assert actions(tmp_path / "log")[3:] == ["deleted"]


async def test_an_adapter_is_recorded_by_its_own_name_beside_a_deployment_of_that_name(tmp_path: Path) -> None:
    world = World()
    world.write("chat", 1, "1")
    world.write("chat", 1, "1", resource=MODEL_ADAPTERS)
    found, _ = auditor(world, tmp_path / "log")
    await found.look()
    decision = {"decisions": ["2026-11-25T11:59:01Z new-revision: r2 goes out"]}
    world.write("chat", 2, "2", resource=MODEL_ADAPTERS, status=decision)
    await found.look()
    adapter = world.cache.get(("ml", subject_name("chat")))
    assert adapter
    world.cache.remove(MODEL_ADAPTERS, adapter)
    del world.adapters["chat"]
    await found.look()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()[1:]]
    assert [(line["kind"], line["action"], line["name"]) for line in lines] == [
        ("ModelDeployment", "found", "chat"),
        ("ModelAdapter", "found", "chat"),
        ("ModelAdapter", "changed", "chat"),
        ("ModelAdapter", "decided", "chat"),
        ("ModelAdapter", "deleted", "chat"),
    ]


async def test_without_tenants_deployments_are_recorded_all_the_same(tmp_path: Path) -> None:
    world = World()
    world.write("chat", 1, "1")
    found, _ = auditor(world, tmp_path / "log")

    async def refused(*_: Any, **__: Any) -> list[dict[str, Any]]:
        raise Refused(403, "forbidden")

    world.list = refused  # type: ignore[method-assign]
    await found.look()
    assert actions(tmp_path / "log") == ["begun", "found"]


@pytest.mark.parametrize("trouble", [Unavailable("away"), OSError("no room")])
async def test_trouble_ends_no_operator_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: Exception, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "LOOK_S", 0.001)
    world = World()
    world.write("chat", 1, "1")
    world.trouble = trouble
    looks = 0

    def leads() -> bool:
        nonlocal looks
        looks += 1
        return True

    trail = Trail(str(tmp_path / "log"), lambda: NOW)
    running = asyncio.create_task(AuditRunner(world, world.cache, trail, leads, lambda: NOW).run())  # type: ignore[arg-type]
    await until_async(lambda: looks > 3)
    assert len([entry for entry in caplog.records if "is not written" in entry.message]) == 1
    world.trouble = None
    await until_async(lambda: "uid-chat" in trail.known)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_operator_without_the_lease_records_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "LOOK_S", 0.001)
    world = World()
    world.write("chat", 1, "1")
    found, _ = auditor(world, tmp_path / "log", leads=False)
    running = asyncio.create_task(found.run())
    for _ in range(5):
        await asyncio.sleep(0.002)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not (tmp_path / "log").exists() and world.reads == 0


@pytest.mark.finding("F4")
async def test_an_object_at_which_a_bug_is_met_keeps_no_other_out_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No change of any object was recorded any more."""
    world, real = World(), runner.audit.records

    def records(kind: str, obj: dict[str, Any], *given: Any) -> list[dict[str, Any]]:
        if obj["metadata"]["name"] == "bad":
            raise AttributeError("a bug")
        return real(kind, obj, *given)

    monkeypatch.setattr(runner.audit, "records", records)
    for name in ("bad", "good"):
        world.write(name, 1, "v1")
    auditor_, trail = auditor(world, tmp_path / "audit")
    await auditor_.look()
    assert [one.name for one in trail.known.values()] == ["good"]


@pytest.mark.finding("F4")
async def test_a_record_that_is_too_long_for_a_line_is_shortened(tmp_path: Path) -> None:
    """A Tenant with very many keys was one, and no line was written any more."""
    path = tmp_path / "audit"
    trail = Trail(str(path), lambda: NOW)
    trail.open()
    about = {"kind": "Tenant", "namespace": "", "name": "team-a", "uid": "u1", "generation": 3, "action": "found"}
    long = about | {"fields": {f"spec.auth.keys[{n}]": "0" * 64 for n in range(2000)}}
    assert trail.append([long, about | {"uid": "u2", "name": "team-b"}])
    shown = [json.loads(line) for line in path.read_text().splitlines()][1:]
    assert [(one["name"], one.get("whole", True)) for one in shown] == [("team-a", False), ("team-b", True)]
    again = Trail(str(path), lambda: NOW)
    again.open()
    assert {one.name for one in again.known.values()} == {"team-a", "team-b"}
