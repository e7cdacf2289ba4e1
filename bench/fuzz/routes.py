"""What the gateway does with drawn routes files, ModelDeployments, pods and claims: a table or a Problem."""

import json
from functools import cache
from typing import Any

import yaml
from hypothesis import strategies as st
from pydantic import TypeAdapter

from slipway_contracts.route_table import Traffic
from slipway_gateway.routing.pods import LABEL_DEPLOYMENT, LABEL_REVISION, parse_pod
from slipway_gateway.routing.routes_file import RoutesFile, parse
from slipway_gateway.routing.table import (
    OWNERS_KEY,
    Problem,
    RevisionEndpoints,
    Route,
    RouteTable,
    build,
    merge_route,
    parse_owners,
    parse_route,
)

from .crs import damaged, extreme, merged
from .schema import ANYTHING, strategy
from .tally import Tally

Json = dict[str, Any]
FILE: Json = {
    "models": {
        "chat": {
            "backends": [
                {"revision": "a", "weight": "90", "endpoints": ["http://10.0.0.1:8000"]},
                {"revision": "b", "weight": "10", "endpoints": ["http://[::1]:8000/"]},
            ],
            "salt": "s",
            "mirrorRoutes": [{"name": "m", "revision": "b", "percentage": "5", "match": []}],
        }
    }
}
TRAFFIC: Json = {
    "generation": 3,
    "model": "chat",
    "salt": "s",
    "backends": [{"revision": "a", "weight": 90}, {"revision": "b", "weight": 10, "version": "2"}],
    "headerRoutes": [{"name": "h", "revision": "b", "match": [{"name": "x-a", "exact": "1"}]}],
    "mirrorRoutes": [{"name": "m", "revision": "b", "percentage": 5}],
}
DEPLOYMENT: Json = {
    "metadata": {"name": "chat", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"replicas": 2, "model": {"name": "chat", "uri": "hf://org/model"}},
    "status": {"traffic": TRAFFIC, "revisions": [{"revision": "a", "replicaSetUid": "rs-a"}]},
}
POD: Json = {
    "metadata": {
        "name": "chat-a-1",
        "namespace": "team",
        "labels": {LABEL_DEPLOYMENT: "chat", LABEL_REVISION: "a"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "chat-a", "uid": "rs-a", "controller": True}],
    },
    "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
    "status": {"podIP": "10.0.0.1", "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}
ODD_YAML = (
    *(
        "",
        "\x00",
        "models: *a",
        "&a [*a]",
        "models: &a {chat: *a}",
        "? [a, b]\n: c",
        "!!python/object/apply:os.system ['id']",
    ),
    *(
        "[" * 3000,
        "{a: " * 3000,
        "models: " + "9" * 5000,
        "--- \n---\n",
        "%YAML 9.9\n---\n",
        "a:\n\tb",
        "\ud800",
        "models: {<<: 1}",
    ),
    *(
        "models: {chat: {backends: [{endpoints: [http://a:99999999999]}]}}",
        "models: {chat: {backends: [{endpoints: ['http://[']}]}}",
    ),
    *(f"models: {{chat: {{backends: [{{endpoints: [], weight: {'9' * 5000}}}]}}}}", "models: {chat: {backends: []}}"),
)


def check_file(text: str, tally: Tally) -> None:
    found = parse(text, 1)
    tally.ended(type(found).__name__)
    assert isinstance(found, RouteTable | Problem)
    if isinstance(found, RouteTable):
        _look_at(found)


def check_objects(drawn: tuple[Json, Json, Json], tally: Tally) -> None:
    """A deployment after the one of before, a pod, and the claims to names."""
    deployment, pod, claims = drawn
    route, owners, endpoint = parse_route(deployment), parse_owners(claims), parse_pod(pod)
    before = parse_route(DEPLOYMENT)
    assert isinstance(before, Route) and isinstance(route, Route | Problem)
    tally.ended(type(route).__name__)
    kept = merge_route(before, route) if isinstance(route, Route) else before
    found = build(
        [kept],
        [endpoint] if isinstance(endpoint, RevisionEndpoints) else [],
        owners if isinstance(owners, dict) else None,
    )
    _look_at(found)


def _look_at(table: RouteTable) -> None:
    """As requests do."""
    for route in table.routes.values():
        table.ready(route)
        for revision in table.revisions(route):
            assert all(isinstance(url, str) for url in table.urls(route, revision))
    json.dumps(sorted(table.models))


@cache
def files() -> st.SearchStrategy[str]:
    """Text of a routes file: sound, with something else in it, or with damaged characters."""
    schema, named = _schema(RoutesFile)

    @st.composite
    def text(draw: st.DrawFn) -> str:
        kind = draw(st.sampled_from(("drawn", "replaced", "replaced", "damaged", "odd")))
        if kind == "odd":
            return draw(st.sampled_from(ODD_YAML))
        value = draw(strategy(schema, named)) if kind == "drawn" else FILE
        if kind == "replaced":
            value = damaged(draw, FILE)
        made = json.dumps(value) if draw(st.booleans()) else yaml.safe_dump(value)
        if kind == "damaged":
            at, noise = draw(st.integers(0, len(made))), draw(st.text(min_size=1, max_size=4))
            made = made[:at] + noise + made[at + draw(st.integers(0, 4)) :]
        return made

    return text()


@cache
def objects() -> st.SearchStrategy[tuple[Json, Json, Json]]:
    """A ModelDeployment, a pod and the ConfigMap of names: the API's own fields hold what the API lets through."""
    schema, named = _schema(Traffic)

    @st.composite
    def one(draw: st.DrawFn) -> tuple[Json, Json, Json]:
        over = draw(st.one_of(strategy(schema, named), extreme, ANYTHING))
        traffic = merged(TRAFFIC, over) if draw(st.booleans()) else damaged(draw, TRAFFIC)
        status = {**DEPLOYMENT["status"], "traffic": traffic}
        if draw(st.booleans()):
            status = _inside(draw, DEPLOYMENT["status"])
        spec = _inside(draw, DEPLOYMENT["spec"]) if draw(st.booleans()) else DEPLOYMENT["spec"]
        part = draw(st.sampled_from(("metadata", "spec", "status")))
        pod = {**POD, part: _inside(draw, POD[part], typed=True)}
        pod = {**pod, "metadata": {**pod["metadata"], "namespace": "team", "name": "chat-a-1"}}
        text = draw(st.one_of(st.text(max_size=30), ANYTHING.map(json.dumps), extreme.map(json.dumps)))
        return {**DEPLOYMENT, "spec": spec, "status": status}, pod, {"data": {OWNERS_KEY: text}}

    return one()


def _inside(draw: st.DrawFn, value: Json, typed: bool = False) -> Json:
    """One of its fields lost or replaced; it stays an object."""
    name = draw(st.sampled_from(sorted(value)))
    return {**value, name: damaged(draw, value[name], typed)}


def _schema(kind: type) -> tuple[Json, dict[str, Json]]:
    schema = TypeAdapter(kind).json_schema()
    return schema, schema.pop("$defs", {})
