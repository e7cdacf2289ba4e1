"""What the status shows of the nodes of a revision: where its model is, and how far it is on its way."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.status import NodeModel, Status
from slipway_operator.model.cluster import downloads as cluster_downloads
from slipway_operator.model.cluster.observed import Observed, Pod, PodDownload, Snapshot, Workload
from slipway_operator.model.cluster.weights import Weights, reported_bytes
from slipway_operator.model.deployment.spec import Invalid, parse
from slipway_operator.model.inputs.pod_inputs import Model, PodInputs
from slipway_operator.planning.facts import downloads
from slipway_operator.planning.facts.situation import Situation

NOW = datetime(2026, 11, 24, tzinfo=UTC)
WEIGHTS = Weights("sha256:" + "1" * 64)
REVISION, OTHER = "aaaaaaaaaa", "bbbbbbbbbb"
GB = 10**9


def pod(name: str, node: str, **more: Any) -> Pod:
    return Pod(name, NOW, ready=False, node=node, address="10.0.0.1", **more)


def cached(name: str, node: str, size: int | None = GB) -> Pod:
    return pod(name, node, weights=WEIGHTS, model_bytes=size)


def fetching(name: str, node: str) -> Pod:
    return pod(name, node, fetching=True)


def nodes(*pods: Pod, cache: str = "node", workers: tuple[Pod, ...] = (), **observed: Any) -> list[NodeModel]:
    inputs = PodInputs(Model("hf://org/m", "chat", cache=cache))
    snapshot = Snapshot(REVISION, 1, inputs, "server:1", 600, cluster_downloads.FIRST_TEMPLATE)
    workload = Workload(REVISION, len(pods), len(pods), 0, pods=pods, workers=workers)
    seen = Observed(snapshots={REVISION: snapshot}, workloads={REVISION: workload}, **observed)
    spec = parse({"metadata": {"name": "chat"}, "spec": {"model": {"uri": "hf://org/m"}}})
    assert not isinstance(spec, Invalid)
    return list(downloads.nodes(Situation(spec, REVISION, REVISION, Status(), seen, NOW), REVISION))


def test_a_node_has_the_model_when_a_pod_there_reported_it() -> None:
    assert nodes(cached("p1", "b"), cached("p2", "a"), cached("p3", "b"), pod("p4", "c"), pod("p5", "")) == [
        NodeModel("a", "Cached", GB),
        NodeModel("b", "Cached", GB),
    ]
    assert nodes(cached("p1", "a"), workers=(cached("p2", "b"),)) == [
        NodeModel("a", "Cached", GB),
        NodeModel("b", "Cached", GB),
    ]


def test_a_node_that_downloads_has_the_numbers_of_the_pod_that_does() -> None:
    read = {
        "p1": PodDownload(0, None, 0, waiting=True),
        "p2": PodDownload(43 * GB // 100, GB, 10**7, waiting=False),
        "p3": None,
    }
    assert nodes(fetching("p1", "a"), fetching("p2", "a"), fetching("p3", "b"), downloads=read) == [
        NodeModel("a", "Fetching", GB, 43, 10**7, 57),
        NodeModel("b", "Fetching"),
    ]


def test_a_pod_that_checks_what_its_node_has_does_not_hide_it() -> None:
    for pods in ((cached("p1", "a"), fetching("p2", "a")), (fetching("p2", "a"), cached("p1", "a"))):
        assert nodes(*pods) == [NodeModel("a", "Cached", GB)]


def test_jobs_count_until_a_pod_is_on_their_node() -> None:
    jobs = {(REVISION, "a"): "Fetching", (REVISION, "b"): "Cached", (REVISION, "c"): "Failed", (OTHER, "d"): "Cached"}
    assert nodes(prefetches=jobs) == [NodeModel("a", "Fetching"), NodeModel("b", "Cached"), NodeModel("c", "Failed")]
    assert nodes(cached("p1", "a"), fetching("p2", "c"), prefetches=jobs) == [
        NodeModel("a", "Cached", GB),
        NodeModel("b", "Cached"),
        NodeModel("c", "Fetching"),
    ]


def test_of_many_nodes_those_without_the_model_are_shown() -> None:
    many = [cached(f"p{number}", f"n{number:02}") for number in range(40)]
    late = [replace(item, weights=None, fetching=True) for item in many[30:]]
    found = nodes(*many[:30], *late)
    assert len(found) == downloads.MOST_NODES
    assert [item.node for item in found if item.state == "Fetching"] == [f"n{number}" for number in range(30, 40)]


@pytest.mark.parametrize("cache", ["none", "claim"])
def test_without_a_cache_on_nodes_there_are_none(cache: str) -> None:
    assert nodes(cached("p1", "a"), fetching("p2", "b"), cache=cache) == []


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ('{"weights": {"bytes": 7}}', 7),
        ('{"weights": {"bytes": -1}}', None),
        ('{"weights": {"bytes": 1e99}}', None),
        ('{"weights": {"bytes": "7"}}', None),
        ('{"weights": {"bytes": 99999999999999999999}}', None),
        ("{", None),
        ("", None),
    ],
)
def test_the_size_that_a_pod_reports_is_within_bounds(message: str, size: int | None) -> None:
    assert reported_bytes(message) == size
