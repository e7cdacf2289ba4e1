"""Pods of pools in the route table: each revision is an endpoint of its own at each of them."""

from dataclasses import replace
from typing import Any

from slipway_contracts.route_table import Backend
from slipway_gateway.balancing.outlier import OutlierDetection, OutlierDetector
from slipway_gateway.routing.pods import parse_pod
from slipway_gateway.routing.table import RevisionEndpoints, Route, build

POOL = RevisionEndpoints("", "", ("http://10.0.0.1:8000",), pool="team/set")
OTHER = replace(POOL, urls=("http://10.0.0.2:8000",))


def route(name: str = "team/iris", **replica_sets: str) -> Route:
    backends = (Backend("canary", 25), Backend("stable", 75))
    return Route(name, "u", name.partition("/")[2], backends=backends, replica_sets=replica_sets)


def pod(kind: str = "StatefulSet", **changes: Any) -> dict[str, Any]:
    labels = {"slipway.dev/modelpool": "shared", "slipway.dev/revision": "pool"}
    owner = {"kind": kind, "name": "shared-pool", "uid": "set", "controller": True}
    metadata = {"name": "shared-pool-0", "namespace": "team", "labels": labels, "ownerReferences": [owner]}
    return {
        "metadata": metadata | changes,
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def test_a_ready_pod_of_a_stateful_set_of_a_pool_is_an_endpoint() -> None:
    assert parse_pod(pod()) == POOL
    assert parse_pod(pod(deletionTimestamp="2026-01-01T00:00:00Z")) is None


def test_labels_alone_make_no_pod_one_of_a_pool() -> None:
    assert parse_pod(pod(ownerReferences=[])) is None
    assert parse_pod(pod(kind="ReplicaSet")) is None
    assert parse_pod(pod(labels={"slipway.dev/revision": "pool"})) is None


def test_two_revisions_are_two_endpoints_at_each_pod() -> None:
    found = build([route(canary="set", stable="set")], [POOL, OTHER]).endpoints
    assert found["team/iris", "stable"] == tuple(f"http://10.0.0.{n}:8000/revisions/stable" for n in (1, 2))
    assert found["team/iris", "canary"] == tuple(f"http://10.0.0.{n}:8000/revisions/canary" for n in (1, 2))


def test_a_pool_serves_only_revisions_of_its_namespace_that_name_it() -> None:
    elsewhere, unnamed = route("other/iris", stable="set"), route("team/alone", stable="another")
    assert build([elsewhere, unnamed], [POOL]).endpoints == {}


def test_a_revision_may_move_from_its_own_pods_to_a_pool() -> None:
    own = RevisionEndpoints("team/iris", "stable", ("http://10.0.1.1:8000",), "rs")
    found = build([route(canary="set", stable="rs")], [POOL, own]).endpoints
    assert found == {
        ("team/iris", "canary"): ("http://10.0.0.1:8000/revisions/canary",),
        ("team/iris", "stable"): ("http://10.0.1.1:8000",),
    }


def test_a_failing_entry_ejects_no_other_of_the_same_pod() -> None:
    table = build([route(canary="set", stable="set"), route("team/churn", one="set")], [POOL, OTHER])
    detector = OutlierDetector(OutlierDetection(consecutive_5xx=1), lambda: 0.0)
    broken = table.endpoints["team/iris", "canary"]
    assert detector.failed(broken[0], broken, gateway=True)
    assert detector.ejected() == {broken[0]}
    assert not {*table.endpoints["team/iris", "stable"], *table.endpoints["team/churn", "one"]} & detector.ejected()
