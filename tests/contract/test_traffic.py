"""The gateway routes by the status.traffic that the operator writes, and reports it in /internal/routes."""

import json
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from slipway_contracts.accuracy import AccuracyCounting, AccuracyCounts, PublishedBins
from slipway_contracts.api.writing import to_json
from slipway_contracts.gateway_report import encoded
from slipway_contracts.route_table import (
    Backend,
    GenerationLogSample,
    HeaderMatch,
    HeaderRoute,
    InferenceLogSample,
    MirrorRoute,
    ResponseCache,
    Traffic,
    digest,
    refusal,
)
from slipway_contracts.service_levels import ServiceLevels
from slipway_contracts.twin_shadow import (
    PredictionTolerance,
    TailThreshold,
    TwinLatency,
    TwinProbes,
    TwinScorer,
    TwinShadow,
    shadow_refusal,
)
from slipway_gateway.balancing.load_balancer import LoadBalancer
from slipway_gateway.routing import pods, table
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_operator.api.v1alpha1.status import RevisionStatus, Status
from slipway_operator.kube.reading import gateways
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.deployment import status as status_room
from slipway_operator.model.inputs.pod_inputs import parse_inputs
from slipway_operator.planning.facts import restore
from testkit import ROOT
from testkit.cluster.api import Api
from tests.contract.documented import TEXT, ports, routes, traffic
from tests.crds.objects import model_deployment, path
from tests.support.report import route_reports

HEADERS = (HeaderRoute("testers", "abcdefgh22", (HeaderMatch("x-team", prefix="qa-"), HeaderMatch("host", "p.io"))),)
BACKENDS = (Backend("abcdefgh22", 25, "v2", "vllm"), Backend("zyxwvuts76", 75))
TOLERANCE = PredictionTolerance(1000, 2000)
MIRRORS = (MirrorRoute("mirror", "abcdefgh22", 20, (HeaderMatch("x-team", exact="qa"),), TOLERANCE),)
LATENCIES = (TwinLatency("ttft", 15, (TailThreshold("b<4k,stream", 814_000),)), TwinLatency("itl", 10))
PROBES = TwinProbes("/v1/completions", ("one", "zwei"), 60, 3000, 64)
SCORER = TwinScorer("https://quality.example.com/score", 10, 100, 10)
TWINS = TwinShadow("abcdefgh22", "zyxwvuts76", 25, 10, 2, LATENCIES, PROBES, True, "OnFailure", SCORER, TOLERANCE)
WATCHED = AccuracyCounting(True, 2_592_000, "zyxwvuts76", PublishedBins(cuts=("1.5", "2.5")))
RECORDED = ROOT / "tests/contract/recorded/traffic.json"
RECORDED_DIGEST = "7dcddf8e897069ceadf5a7fd95e8bd6b21632c0b564558145120e86e8d50e0c4"
# What that release had no field for.
UNKNOWN: dict[str, Any] = {
    "slo": None,
    "prefix_affinity": None,
    "fallback": (),
    "first_byte_seconds": None,
    "accuracy": None,
    "cache": None,
    "generation_log": None,
}
# Of a table and of a route: what is read is used as it is.
SAME = (
    *("generation", "model", "salt", "backends", "header_routes", "mirror_routes", "twin_shadow", "forward_headers"),
    *("feedback", "predictions", "inference_log", "slo", "prefix_affinity", "fallback", "accuracy", "cache"),
    "generation_log",
)
TRAFFIC = Traffic(
    41,
    "org/chat",
    "abcdefgh22.1",
    BACKENDS,
    HEADERS,
    30,
    "1/2",
    MIRRORS,
    TWINS,
    wake_seconds=8,
    forward_headers=("cookie",),
    feedback=True,
    predictions=True,
    inference_log=InferenceLogSample(10, True),
    slo=ServiceLevels(800, 60, 2000, True),
    prefix_affinity=True,
    fallback=("chat-small",),
    first_byte_seconds=20,
    accuracy=WATCHED,
    cache=ResponseCache(3600, True),
    generation_log=GenerationLogSample(10, True),
)


def _object() -> dict[str, Any]:
    metadata = {"namespace": "default", "name": "chat", "uid": "u-1", "creationTimestamp": "2026-11-21T00:00:00Z"}
    return {"metadata": metadata, "spec": {}, "status": status_room.render(Status(traffic=TRAFFIC))}


def test_gateway_reads_what_the_operator_writes() -> None:
    route = table.parse_route(_object())
    assert isinstance(route, table.Route), route
    assert (route.name, route.uid, route.hold_s) == ("default/chat", "u-1", TRAFFIC.hold_seconds)
    assert (route.asleep, route.wake_s) == (False, TRAFFIC.wake_seconds)
    for part in SAME:
        assert getattr(route, part) == getattr(TRAFFIC, part), part


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"backends": (Backend("a", 101), Backend("b", -1))}, "backends.weight must be from 0 to 100, and is 101"),
        ({"backends": (Backend("a", 50),)}, "the weights sum to 50, not to 100"),
        ({"backends": (Backend("a", 50), Backend("a", 50))}, "a revision is listed twice"),
        ({"inference_log": InferenceLogSample(101)}, "inferenceLog.percentage must be from 0 to 100, and is 101"),
        ({"generation_log": GenerationLogSample(-1)}, "generationLog.percentage must be from 0 to 100, and is -1"),
        ({"slo": ServiceLevels(0)}, "slo.ttftMilliseconds must be from 1 to 3600000, and is 0"),
        (
            {"accuracy": AccuracyCounting(True, 0)},
            "accuracy.maxAgeSeconds must be from 1 to 15552000, and is 0",
        ),
        (
            {"accuracy": replace(WATCHED, bins=PublishedBins(cuts=("2", "1")))},
            "accuracy.bins has cuts that do not ascend, labels that are no CRC-32, or neither or both of them",
        ),
        ({"first_byte_seconds": 0}, "firstByteSeconds must be from 1 to 3600, and is 0"),
        ({"cache": ResponseCache(0)}, "cache.ttlSeconds must be from 1 to 2592000, and is 0"),
        ({"mirror_routes": (MirrorRoute("m", "a", -1),)}, "mirrorRoutes.percentage must be from 0 to 100, and is -1"),
        (
            {"mirror_routes": (MirrorRoute("m", "a", 1, (), PredictionTolerance(0, -1)),)},
            "mirrorRoutes.tolerance.absoluteBillionths must be at least 0, and is -1",
        ),
    ],
)
def test_neither_side_uses_a_table_that_makes_no_sense(changed: dict[str, Any], refused: str) -> None:
    wrong = replace(TRAFFIC, **changed)
    assert refusal(TRAFFIC) == "" and refusal(wrong) == refused
    problem = table.parse_route({**_object(), "status": status_room.render(Status(traffic=wrong))})
    assert problem == table.Problem(f"status.traffic of default/chat: {refused}")


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"percentage": 101}, "percentage must be from 0 to 100, and is 101"),
        ({"max_pairs_per_second": 0}, "maxPairsPerSecond must be at least 1, and is 0"),
        ({"epoch": -1}, "epoch must be at least 0, and is -1"),
        ({"reference": "Stable"}, "reference must be one of OnFailure, and is 'Stable'"),
        (
            {"latencies": (replace(LATENCIES[0], measure="tps"),)},
            "latencies.measure must be one of ttft, itl, e2e, and is 'tps'",
        ),
        (
            {"latencies": (replace(LATENCIES[0], max_slowdown=-1),)},
            "latencies.maxSlowdown must be at least 0, and is -1",
        ),
        (
            {"latencies": (TwinLatency("itl", 1, (TailThreshold("s", 0),)),)},
            "latencies.tail.microseconds must be at least 1, and is 0",
        ),
        (
            {"probes": replace(PROBES, path="/v1/x")},
            "probes.path must be one of /v1/chat/completions, /v1/completions, and is '/v1/x'",
        ),
        (
            {"probes": replace(PROBES, prompts=("a" * 4097,))},
            "probes.prompts: the length must be from 1 to 4096, and is 4097",
        ),
        ({"probes": replace(PROBES, prompts=("",))}, "probes.prompts: the length must be from 1 to 4096, and is 0"),
        ({"probes": replace(PROBES, pairs_per_minute=0)}, "probes.pairsPerMinute must be from 1 to 600, and is 0"),
        ({"probes": replace(PROBES, max_pairs=0)}, "probes.maxPairs must be at least 1, and is 0"),
        ({"probes": replace(PROBES, max_tokens=0)}, "probes.maxTokens must be at least 1, and is 0"),
        ({"scorer": replace(SCORER, url="")}, "scorer.url: the length must be from 1 to 2048, and is 0"),
        ({"scorer": replace(SCORER, percentage=0)}, "scorer.percentage must be from 1 to 100, and is 0"),
        (
            {"scorer": replace(SCORER, margin_thousandths=1001)},
            "scorer.marginThousandths must be from 0 to 1000, and is 1001",
        ),
        ({"scorer": replace(SCORER, timeout_seconds=61)}, "scorer.timeoutSeconds must be from 1 to 60, and is 61"),
        (
            {"tolerance": PredictionTolerance(1_000_001, 0)},
            "tolerance.relativeMillionths must be from 0 to 1000000, and is 1000001",
        ),
    ],
)
def test_neither_side_uses_a_twin_shadow_that_makes_no_sense(changed: dict[str, Any], refused: str) -> None:
    shadow = replace(TWINS, **changed)
    assert shadow_refusal(TWINS) == "" and shadow_refusal(shadow) == f"twinShadow.{refused}"
    assert restore.is_shadow(TWINS) and not restore.is_shadow(shadow)
    problem = table.parse_route(
        {**_object(), "status": status_room.render(Status(traffic=replace(TRAFFIC, twin_shadow=shadow)))}
    )
    assert problem == table.Problem(f"status.traffic of default/chat: twinShadow.{refused}")


def test_both_sides_read_what_the_last_release_wrote() -> None:
    """A rolling update has both versions."""
    written = json.loads(RECORDED.read_bytes())
    read = status_room.parse({"traffic": written}).traffic
    assert read == replace(TRAFFIC, **UNKNOWN) and read.digest == digest(written) == RECORDED_DIGEST
    route = table.parse_route({**_object(), "status": {"traffic": written}})
    known = status_room.render(Status(traffic=replace(TRAFFIC, **UNKNOWN)))
    assert route == table.parse_route({**_object(), "status": known})


def test_a_field_of_a_later_release_is_ignored_and_changes_the_digest() -> None:
    written = json.loads(RECORDED.read_bytes())
    later = {**written, "canaryHints": [1], "backends": [{**one, "zone": "a"} for one in written["backends"]]}
    assert status_room.parse({"traffic": later}).traffic == replace(TRAFFIC, **UNKNOWN)
    route = table.parse_route({**_object(), "status": {"traffic": later}})
    assert isinstance(route, table.Route) and route.backends == TRAFFIC.backends
    assert route.digest == digest(later) != TRAFFIC.digest


def test_what_the_operator_writes_is_what_the_last_release_wrote() -> None:
    written = replace(TRAFFIC, **UNKNOWN)
    assert status_room.render(Status(traffic=written))["traffic"] == json.loads(RECORDED.read_bytes())


def test_both_sides_read_the_document_alike() -> None:
    written = traffic()
    read = status_room.parse({"traffic": written}).traffic
    assert read is not None
    shown = status_room.render(Status(traffic=read))["traffic"]
    assert shown["twinShadow"] == written["twinShadow"] and shown["headerRoutes"] == written["headerRoutes"]
    route = table.parse_route({**_object(), "status": {"traffic": written}})
    assert isinstance(route, table.Route)
    for part in SAME:
        assert getattr(route, part) == getattr(read, part), part


def test_operator_reads_what_the_gateway_reports() -> None:
    balancer = LoadBalancer(GatewayMetrics(CollectorRegistry()))
    route = table.parse_route(_object())
    assert isinstance(route, table.Route)
    here = table.RevisionEndpoints("default/chat", "abcdefgh22", ("http://10.0.0.1:8000",))
    balancer.publish(table.build([route], [here]))
    endpoint = balancer.pick("org/chat", "key", ())
    assert endpoint
    balancer.start_attempt(endpoint, first=True)
    about = gateways.Answer("gw", True, True, encoded(balancer.report())).about("default", "chat", "u-1")
    assert (about.generation, about.inflight["abcdefgh22"]) == (41, 1)
    assert about.at_pods["abcdefgh22"] == {"10.0.0.1": 1}
    assert (about.digest, about.weights["abcdefgh22"]) == (TRAFFIC.digest, 25)
    assert (about.service.answered, about.service.refused, about.service.unserved_s) == (0, 0, None)
    assert about.accuracy == AccuracyCounts()
    assert TRAFFIC.slo and about.objectives == dict.fromkeys(TRAFFIC.slo.by_key(), (0, 0))


def test_report_has_the_documented_shape() -> None:
    balancer = LoadBalancer(GatewayMetrics(CollectorRegistry()))
    route = table.parse_route(_object())
    assert isinstance(route, table.Route)
    balancer.publish(
        table.build([route], [table.RevisionEndpoints("default/chat", "abcdefgh22", ("http://10.0.0.1:8000",))])
    )
    (documented,) = routes()["routes"].values()
    reported = route_reports(balancer)["default/chat"]
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
    status = {"revisions": [to_json(RevisionStatus("abcdefgh22", "stable", 1, 1, 100, replica_set_uid="rs-1"))]}
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
    assert read is not None and digest(written) != read.digest, "the document leaves version out of no backend"
    again = status_room.render(Status(traffic=read))["traffic"]
    assert digest(again) == read.digest
    rendered = status_room.render(Status(traffic=TRAFFIC))["traffic"]
    assert digest(rendered) == TRAFFIC.digest == replace(TRAFFIC, acknowledged="2/2").digest
    assert TRAFFIC.digest != replace(TRAFFIC, generation=42).digest


@pytest.mark.integration
def test_status_of_the_operator_is_accepted_whole(api: Api, namespace: str) -> None:
    made = api.post(path(namespace), model_deployment()).body
    written = {**made, "status": status_room.render(Status(traffic=TRAFFIC))}
    answer = api.put(path(namespace, "chat", "status"), written, fieldValidation="Strict")
    assert answer.ok, answer.message
    assert answer.body["status"] == written["status"]
