"""The gateway routes by the status.traffic that the operator writes, and reports it in /internal/routes."""

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from slipway_contracts.route_table import (
    Backend,
    HeaderMatch,
    HeaderRoute,
    MirrorRoute,
    Traffic,
)
from slipway_contracts.twin_shadow import (
    PredictionTolerance,
    TailThreshold,
    TwinLatency,
    TwinProbes,
    TwinScorer,
    TwinShadow,
)
from slipway_gateway.balancing.load_balancer import LoadBalancer
from slipway_gateway.routing import pods, table, twin_shadow
from slipway_gateway.routing.tolerance import ToleranceRule
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_operator.api.v1alpha1.status import RevisionStatus, Status
from slipway_operator.kube.reading import gateways
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model import labels, wire
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.deployment import status as status_room
from slipway_operator.model.inputs.pod_inputs import parse_inputs
from testkit.cluster.api import Api
from tests.contract.documented import TEXT, ports, routes, traffic
from tests.crds.objects import model_deployment, path
from tests.support.report import as_report

HEADERS = (HeaderRoute("testers", "abcdefgh22", (HeaderMatch("x-team", prefix="qa-"), HeaderMatch("host", "p.io"))),)
BACKENDS = (Backend("abcdefgh22", 25, "v2"), Backend("zyxwvuts76", 75))
MIRRORS = (MirrorRoute("mirror", "abcdefgh22", 20, (HeaderMatch("x-team", exact="qa"),)),)
LATENCIES = (TwinLatency("ttft", 15, (TailThreshold("b<4k,stream", 814_000),)), TwinLatency("itl", 10))
PROBES = TwinProbes("/v1/completions", ("one", "zwei"), 60, 3000, 64)
SCORER = TwinScorer("https://quality.example.com/score", 10, 100, 10)
TOLERANCE = PredictionTolerance(1000, 2000)
TWINS = TwinShadow("abcdefgh22", "zyxwvuts76", 25, 10, 2, LATENCIES, PROBES, True, "OnFailure", SCORER, TOLERANCE)
TRAFFIC = Traffic(41, "org/chat", "abcdefgh22.1", BACKENDS, HEADERS, 30, "1/2", MIRRORS, TWINS)


def _object() -> dict[str, Any]:
    metadata = {"namespace": "default", "name": "chat", "uid": "u-1", "creationTimestamp": "2026-11-21T00:00:00Z"}
    return {"metadata": metadata, "spec": {}, "status": status_room.render(Status(traffic=TRAFFIC))}


def test_gateway_reads_what_the_operator_writes() -> None:
    route = table.parse_route(_object())
    assert isinstance(route, table.Route), route
    assert (route.name, route.uid, route.model) == ("default/chat", "u-1", "org/chat")
    assert (route.generation, route.salt) == (41, "abcdefgh22.1")
    assert [(item.revision, item.weight, item.version) for item in route.backends] == [
        ("abcdefgh22", 25, "v2"),
        ("zyxwvuts76", 75, ""),
    ]
    (testers,) = route.header_routes
    assert (testers.revision, route.hold_s) == ("abcdefgh22", 30)
    assert [(match.name, match.exact, match.prefix) for match in testers.match] == [
        ("x-team", None, "qa-"),
        ("host", "p.io", None),
    ]


def test_gateway_reads_mirrors_as_the_operator_writes_them() -> None:
    route = table.parse_route(_object())
    assert isinstance(route, table.Route), route
    (mirror,) = route.mirror_routes
    assert (mirror.name, mirror.revision, mirror.percentage) == ("mirror", "abcdefgh22", 20)
    assert [(match.name, match.exact, match.prefix) for match in mirror.match] == [("x-team", "qa", None)]


def test_gateway_reads_a_twin_shadow_as_the_operator_writes_it() -> None:
    route = table.parse_route(_object())
    assert isinstance(route, table.Route), route
    tail = (twin_shadow.TailRule("b<4k,stream", 814_000),)
    latencies = (twin_shadow.TwinLatencyRule("ttft", 15, tail), twin_shadow.TwinLatencyRule("itl", 10))
    probes = twin_shadow.ProbeRule("/v1/completions", ("one", "zwei"), 60, 3000, 64)
    scorer = twin_shadow.ScorerRule("https://quality.example.com/score", 10, 100, 10)
    assert route.twin_shadow == twin_shadow.TwinShadowRule(
        "abcdefgh22", "zyxwvuts76", 25, 10, 2, latencies, probes, "OnFailure", True, scorer, ToleranceRule(1000, 2000)
    )


def test_both_sides_read_the_document_alike() -> None:
    written = traffic()
    assert status_room.render(status_room.parse({"traffic": written}))["traffic"]["twinShadow"] == written["twinShadow"]
    route = table.parse_route({**_object(), "status": {"traffic": written}})
    read = status_room.parse({"traffic": written}).traffic
    assert isinstance(route, table.Route)
    assert read is not None
    assert (route.generation, route.model, route.salt) == (read.generation, read.model, read.salt)
    assert [(b.revision, b.weight) for b in route.backends] == [(b.revision, b.weight) for b in read.backends]
    assert route.hold_s == read.hold_seconds
    assert [(m.name, m.revision, m.percentage) for m in route.mirror_routes] == [
        (m.name, m.revision, m.percentage) for m in read.mirror_routes
    ]
    assert status_room.render(Status(traffic=read))["traffic"]["headerRoutes"] == written["headerRoutes"]
    assert [item.revision for item in route.header_routes] == [item.revision for item in read.header_routes]


def test_operator_reads_what_the_gateway_reports() -> None:
    balancer = LoadBalancer(GatewayMetrics(CollectorRegistry()))
    route = table.parse_route(_object())
    assert isinstance(route, table.Route)
    here = table.RevisionEndpoints("default/chat", "abcdefgh22", ("http://10.0.0.1:8000",))
    balancer.publish(table.build([route], [here]))
    endpoint = balancer.pick("org/chat", "key", ())
    assert endpoint
    balancer.start_attempt(endpoint, first=True)
    about = gateways.Answer("gw", True, True, as_report(balancer.report())).about("default", "chat", "u-1")
    assert (about.generation, about.inflight["abcdefgh22"]) == (41, 1)
    assert about.at_pods["abcdefgh22"] == {"10.0.0.1": 1}
    assert (about.digest, about.weights["abcdefgh22"]) == (TRAFFIC.digest, 25)
    assert (about.service.answered, about.service.refused, about.service.unserved_s) == (0, 0, None)


def test_report_has_the_documented_shape() -> None:
    balancer = LoadBalancer(GatewayMetrics(CollectorRegistry()))
    route = table.parse_route(_object())
    assert isinstance(route, table.Route)
    balancer.publish(
        table.build([route], [table.RevisionEndpoints("default/chat", "abcdefgh22", ("http://10.0.0.1:8000",))])
    )
    (documented,) = routes()["routes"].values()
    reported = balancer.report()["default/chat"]
    assert set(reported) == set(documented)
    assert set(reported["failsafe"]) == set(documented["failsafe"])
    assert set(reported["service"]) == set(documented["service"])
    (counts,) = documented["revisions"].values()
    assert all(set(found) == set(counts) for found in reported["revisions"].values())


def test_labels_are_the_same_word_on_both_sides() -> None:
    assert pods.LABEL_DEPLOYMENT == labels.MODEL_DEPLOYMENT
    assert pods.LABEL_REVISION == labels.REVISION


def test_a_baseline_is_the_same_word_on_both_sides() -> None:
    baseline = labels.baseline_of("abcdefgh22")
    assert f"`<hash10>{table.BASELINE}`" in TEXT and baseline == f"abcdefgh22{table.BASELINE}"
    assert table.equivalent_revisions(baseline) == (baseline, "abcdefgh22")
    assert [labels.what_runs(name) for name in table.equivalent_revisions("abcdefgh22")] == ["abcdefgh22", "abcdefgh22"]


def test_gateway_sends_requests_to_the_pods_that_the_operator_makes() -> None:
    snapshot = Snapshot("abcdefgh22", 1, parse_inputs({"model": {"uri": "file:///m"}}, "chat"), "image", 600, 1)
    made = replica_set(Owner("chat", "default", "u-1"), snapshot, 1)
    template = made["spec"]["template"]
    (port,) = [one for one in template["spec"]["containers"][0]["ports"] if one["name"] == pods.PORT_NAME]
    assert port["containerPort"] == pods.DEFAULT_PORT == ports()["server", "http"]
    # What the ReplicaSet controller and the kubelet add.
    owner = {"kind": made["kind"], "name": made["metadata"]["name"], "uid": "rs-1", "controller": True}
    item = {
        "metadata": {**template["metadata"], "namespace": "default", "ownerReferences": [owner]},
        "spec": template["spec"],
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    expected = table.RevisionEndpoints("default/chat", "abcdefgh22", ("http://10.0.0.1:8000",), "rs-1")
    assert pods.parse_pod(item) == expected
    status = {"revisions": [wire.to_json(RevisionStatus("abcdefgh22", "stable", 1, 1, 100, replica_set_uid="rs-1"))]}
    route = table.parse_route({**_object(), "status": status_room.render(Status(traffic=TRAFFIC)) | status})
    assert isinstance(route, table.Route) and route.replica_sets == {"abcdefgh22": "rs-1"}


@pytest.mark.parametrize("revision", ["abcdefgh22", labels.baseline_of("abcdefgh22")])
@pytest.mark.parametrize("collisions", [0, 1, 12, 9999])
def test_gateway_knows_the_names_that_the_operator_takes(revision: str, collisions: int) -> None:
    name = labels.child_name("chat", revision, collisions)
    assert len(name) == len(f"chat-{revision}")
    for owner, expected in ((name, True), (f"x-{name}", False), (name.replace("abc", "abx"), False)):
        controller = {"kind": "ReplicaSet", "name": owner, "uid": "rs-1", "controller": True}
        metadata = {"namespace": "default", "ownerReferences": [controller]}
        ready = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        item = {"metadata": metadata | {"labels": labels.child_labels("chat", revision)}, "status": ready}
        assert (pods.parse_pod(item) is not None) == expected, owner


def test_both_sides_compute_the_same_digest() -> None:
    written = traffic()
    read = status_room.parse({"traffic": written}).traffic
    assert read is not None and table.digest_traffic(written) != read.digest, (
        "the document leaves version out of no backend"
    )
    again = status_room.render(Status(traffic=read))["traffic"]
    assert table.digest_traffic(again) == read.digest
    rendered = status_room.render(Status(traffic=TRAFFIC))["traffic"]
    assert table.digest_traffic(rendered) == TRAFFIC.digest == replace(TRAFFIC, acknowledged="2/2").digest
    assert TRAFFIC.digest != replace(TRAFFIC, generation=42).digest


@pytest.mark.integration
def test_status_of_the_operator_is_accepted_whole(api: Api, namespace: str) -> None:
    made = api.post(path(namespace), model_deployment()).body
    written = {**made, "status": status_room.render(Status(traffic=TRAFFIC))}
    answer = api.put(path(namespace, "chat", "status"), written, fieldValidation="Strict")
    assert answer.ok, answer.message
    assert answer.body["status"] == written["status"]
