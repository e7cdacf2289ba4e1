"""The metrics API over HTTP: documents of k8s.io/metrics, and a Status without a value."""

from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from slipway_operator.metrics_api.app import Api
from slipway_operator.metrics_api.exposition import ExposedSample
from slipway_operator.metrics_api.release_loads import OF_RELEASE
from slipway_operator.metrics_api.sampler import MetricsSampler
from slipway_operator.metrics_api.series import OF_DEPLOYMENT, OF_POD, STALE_S, Followed, PodTarget

NOW = datetime(2026, 11, 22, 12, 0, 30, tzinfo=UTC)
CUSTOM, EXTERNAL = "/apis/custom.metrics.k8s.io", "/apis/external.metrics.k8s.io/v1beta1"
OBJECT = f"{CUSTOM}/v1beta2/namespaces/default/modeldeployments.slipway.dev"
PODS = f"{CUSTOM}/v1beta2/namespaces/default/pods"


class Clock:
    """A number of seconds that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class NoGateways:
    async def answers(self) -> tuple[()]:
        return ()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sampler(clock: Clock) -> MetricsSampler:
    """Two deployments of one namespace with two pods and one, and one of another namespace without readings yet."""
    sampler = MetricsSampler(NoGateways(), None, clock)  # type: ignore[arg-type]
    for key, pods in {("default", "chat"): "ab", ("default", "code"): "c", ("other", "new"): "d"}.items():
        targets = tuple(PodTarget(name, "10.0.0.1", "r1") for name in pods)
        sampler.follow(key, Followed("u1", targets, 2, scaled=True))
    for key, name, waiting in (
        (("default", "chat"), "a", 1),
        (("default", "chat"), "b", 2),
        (("default", "code"), "c", 4),
    ):
        series = sampler.peek(key)
        assert series
        series.add_reading(name, ExposedSample(waiting, 0, 0, 0.0123), clock() - 10)
    return sampler


@pytest.fixture
async def client(sampler: MetricsSampler) -> Any:
    async with TestClient(TestServer(Api(sampler, now=lambda: NOW).application(frozenset))) as client:
        yield client


async def get(client: TestClient[Any, Any], path: str, **query: str) -> tuple[int, dict[str, Any]]:
    answer = await client.get(path, params=query)
    return answer.status, await answer.json()


async def test_discovery_names_every_metric(client: Any) -> None:
    status, group = await get(client, CUSTOM)
    assert (status, group["preferredVersion"]["version"], len(group["versions"])) == (200, "v1beta2", 2)
    for version in ("v1beta1", "v1beta2"):
        _, listed = await get(client, f"{CUSTOM}/{version}")
        assert listed["groupVersion"] == f"custom.metrics.k8s.io/{version}"
        assert {item["name"] for item in listed["resources"]} == {
            *(f"modeldeployments.slipway.dev/{metric}" for metric in OF_DEPLOYMENT),
            *(f"pods/{metric}" for metric in OF_POD),
        }
        assert all(item["namespaced"] and item["verbs"] == ["get"] for item in listed["resources"])
    _, listed = await get(client, EXTERNAL)
    assert {item["name"] for item in listed["resources"]} == {*OF_DEPLOYMENT, *OF_RELEASE}


async def test_a_single_object(client: Any) -> None:
    assert await get(client, f"{OBJECT}/chat/slipway_queue_depth") == (
        200,
        {
            "kind": "MetricValueList",
            "apiVersion": "custom.metrics.k8s.io/v1beta2",
            "metadata": {},
            "items": [
                {
                    "describedObject": {
                        "kind": "ModelDeployment",
                        "namespace": "default",
                        "name": "chat",
                        "apiVersion": "slipway.dev/v1alpha1",
                    },
                    "metric": {"name": "slipway_queue_depth", "selector": None},
                    "timestamp": "2026-11-22T12:00:20Z",
                    "value": "3",
                }
            ],
        },
    )


async def test_the_former_version_has_its_own_names(client: Any) -> None:
    _, document = await get(client, f"{OBJECT.replace('v1beta2', 'v1beta1')}/chat/slipway_queue_depth")
    (item,) = document["items"]
    assert (document["apiVersion"], item["metricName"], item["value"]) == (
        "custom.metrics.k8s.io/v1beta1",
        "slipway_queue_depth",
        "3",
    )


async def test_quantities_are_exact_to_a_millionth(client: Any) -> None:
    _, document = await get(client, f"{OBJECT}/code/slipway_kv_cache_usage")
    assert [item["value"] for item in document["items"]] == ["12300u"]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("", {"a": "1", "b": "2", "c": "4"}),
        ("slipway.dev/modeldeployment=chat,slipway.dev/revision in (r1,r2)", {"a": "1", "b": "2"}),
        ("app.kubernetes.io/managed-by=slipway,slipway.dev/modeldeployment!=chat", {"c": "4"}),
    ],
)
async def test_pods_by_selector(client: Any, selector: str, found: dict[str, str]) -> None:
    _, document = await get(client, f"{PODS}/*/slipway_queue_depth", labelSelector=selector)
    assert {item["describedObject"]["name"]: item["value"] for item in document["items"]} == found
    assert {item["describedObject"]["apiVersion"] for item in document["items"]} == {"v1"}


async def test_deployments_by_selector(client: Any) -> None:
    _, document = await get(client, f"{OBJECT}/*/slipway_queue_depth", labelSelector="slipway.dev/modeldeployment")
    assert {item["describedObject"]["name"]: item["value"] for item in document["items"]} == {"chat": "3", "code": "4"}


async def test_external_metrics_carry_their_label(client: Any) -> None:
    path = f"{EXTERNAL}/namespaces/default/slipway_queue_depth"
    status, document = await get(client, path, labelSelector="slipway.dev/modeldeployment=chat")
    assert (status, document["kind"]) == (200, "ExternalMetricValueList")
    assert document["items"] == [
        {
            "metricName": "slipway_queue_depth",
            "metricLabels": {"slipway.dev/modeldeployment": "chat"},
            "timestamp": "2026-11-22T12:00:20Z",
            "value": "3",
        }
    ]
    _, both = await get(client, path)
    assert len(both["items"]) == 2


async def test_stale_metric_is_unavailable_and_never_zero(client: Any, clock: Clock) -> None:
    clock.seconds += STALE_S
    for path in (f"{OBJECT}/chat", f"{PODS}/a", f"{PODS}/*", f"{EXTERNAL}/namespaces/default"):
        status, document = await get(client, f"{path}/slipway_queue_depth")
        assert (status, document["kind"], document["reason"]) == (503, "Status", "ServiceUnavailable")
        assert document["message"].startswith("slipway_queue_depth has no fresh value: ")
        assert "items" not in document


async def test_of_a_list_the_stale_part_is_left_out(client: Any, sampler: MetricsSampler, clock: Clock) -> None:
    clock.seconds += STALE_S
    sampler.peek(("default", "code")).add_reading("c", ExposedSample(5, 0, 0, 0), clock())  # type: ignore[union-attr]
    _, document = await get(client, f"{EXTERNAL}/namespaces/default/slipway_queue_depth")
    assert [(item["metricLabels"], item["value"]) for item in document["items"]] == [
        ({"slipway.dev/modeldeployment": "code"}, "5")
    ]


@pytest.mark.parametrize(
    ("path", "query", "code", "message"),
    [
        (
            f"{OBJECT}/chat/slipway_joy",
            {},
            404,
            "there is no metric slipway_joy; there are slipway_desired_replicas, slipway_in_flight",
        ),
        (f"{PODS}/a/slipway_in_flight", {}, 404, "there is no metric slipway_in_flight"),
        (f"{OBJECT}/gone/slipway_queue_depth", {}, 404, "no ModelDeployment gone in default"),
        (f"{PODS}/gone/slipway_queue_depth", {}, 404, "no ready pod gone in default"),
        (f"{EXTERNAL}/namespaces/void/slipway_queue_depth", {}, 404, "no ModelDeployment of this selector in void"),
        (f"{OBJECT.replace('modeldeployments.slipway.dev', 'services')}/a/b", {}, 404, "not of services"),
        (f"{PODS}/*/slipway_queue_depth", {"labelSelector": "a b"}, 400, "labelSelector: the selector cannot be read"),
        (f"{PODS}/*/slipway_queue_depth", {"metricLabelSelector": "a=b"}, 400, "have no labels of their own"),
        ("/apis", {}, 404, "GET /apis: Not Found"),
        ("/openapi/v2", {}, 404, "Not Found"),
    ],
)
async def test_unknown_path_or_metric_gets_a_status_with_the_reason(
    client: Any, path: str, query: dict[str, str], code: int, message: str
) -> None:
    status, document = await get(client, path, **query)
    assert (status, document["status"], document["code"]) == (code, "Failure", code)
    assert message in document["message"]


async def test_it_only_reads(client: Any) -> None:
    answer = await client.delete(f"{OBJECT}/chat/slipway_queue_depth")
    assert (answer.status, (await answer.json())["reason"]) == (405, "MethodNotAllowed")


async def test_client_without_a_certificate_of_the_front_proxy_is_refused(sampler: MetricsSampler) -> None:
    application = Api(sampler).application(lambda: {"front-proxy-client"})
    async with TestClient(TestServer(application)) as client:
        status, document = await get(client, f"{OBJECT}/chat/slipway_queue_depth")
    assert (status, document["reason"]) == (403, "Forbidden")
    assert "only the API server may" in document["message"]
