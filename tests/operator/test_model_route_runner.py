"""What the runner of ModelRoutes keeps between looks: specs that are not readable any more, and claims of names."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from slipway_operator.kube.client import Client
from slipway_operator.kube.resources import MODEL_ROUTES, Resource
from slipway_operator.model_routes.runner import ModelRouteRunner, NameAccess

NOW = datetime(2026, 11, 30, tzinfo=UTC)
GOOD = {"rules": [{"name": "all", "backendRefs": [{"name": "small"}]}]}


class Api:
    """The API server as the runner reads and writes it."""

    def __init__(self) -> None:
        self.objects: list[dict[str, Any]] = []
        self.written: list[dict[str, Any]] = []

    async def list(self, resource: Resource, namespace: str | None, cached: bool = False) -> list[dict[str, Any]]:
        return self.objects if resource == MODEL_ROUTES else []

    async def put_status(self, resource: Resource, obj: dict[str, Any]) -> None:
        self.written.append(obj["status"])

    async def create(self, *_: Any, **__: Any) -> None:
        """Of Events."""


def obj(generation: int, spec: Any, uid: str = "u", **status: Any) -> dict[str, Any]:
    metadata = {"namespace": "prod", "name": "chat", "uid": uid, "generation": generation}
    return {"metadata": metadata | {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec, "status": status}


def runner(api: Api) -> tuple[ModelRouteRunner, list[None]]:
    made = ModelRouteRunner(cast(Client, api), (), lambda: [("prod", "small")], lambda: True, lambda: NOW)
    changes: list[None] = []
    made.joins(NameAccess(lambda owner, name: None, lambda: changes.append(None)))
    return made, changes


def wanted(made: ModelRouteRunner) -> list[str] | None:
    wishes = made.wishes()
    return None if wishes is None else [wish.name for wish in wishes]


@pytest.mark.parametrize("spec", [{}, {"rules": 1}, {"rules": [{"name": "x"}]}, "text"])
async def test_a_spec_that_cannot_be_read_keeps_its_names_and_says_so(spec: Any) -> None:
    api = Api()
    made, changes = runner(api)
    assert wanted(made) is None, "claims of ModelRoutes stay until they are read"
    api.objects = [obj(1, GOOD)]
    await made.look()
    api.objects = [obj(2, spec)]
    await made.look()
    assert wanted(made) == ["chat"] and len(changes) == 1
    conditions = {one["type"]: one["reason"] for one in api.written[-1]["conditions"]}
    assert conditions["Accepted"] == "Invalid"
    # An operator that never read a good version keeps the names in the status; another object has none of them.
    later, _ = runner(api)
    api.objects = [obj(2, spec, names=["chat", "gpt"])]
    await later.look()
    assert wanted(later) == ["chat", "gpt"]
    api.objects = [obj(1, spec, uid="another")]
    await made.look()
    assert wanted(made) == []


async def test_a_route_that_is_gone_wants_nothing() -> None:
    api = Api()
    made, changes = runner(api)
    api.objects = [obj(1, GOOD | {"aliases": ["gpt"]})]
    await made.look()
    await made.look()
    assert wanted(made) == ["chat", "gpt"] and len(changes) == 1
    api.objects = []
    await made.look()
    assert wanted(made) == [] and len(changes) == 2
