"""The client against a server that answers badly; the real API server has its own tests."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client as kubernetes_client

from slipway_operator.kube import client as client_module
from slipway_operator.kube.client import ATTEMPTS, Client
from slipway_operator.kube.errors import Exists, NotFound, Refused, Stale, Unavailable
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS, PODS, REPLICA_SETS, SERVICES

PODS_PATH = "/api/v1/namespaces/x/pods/a"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_WITHIN_S", 0.0)


@pytest.fixture
async def api():
    """A server that gives the answers of `answers` in turn, and remembers the requests."""

    async def answer(request):
        api.requests.append((request.method, request.path_qs, dict(request.headers), await request.text()))
        given = api.answers.pop(0)
        return given if isinstance(given, web.Response) else web.json_response(given)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    api = TestServer(application)
    api.answers, api.requests, api.writes = [], [], []
    async with api:
        configuration = kubernetes_client.Configuration(host=str(api.make_url("")).rstrip("/"))
        async with Client(configuration, lambda kind, result: api.writes.append((kind, result))) as api.client:
            yield api


def failure(status, reason="", **headers):
    return web.json_response({"message": f"m{status}", "reason": reason}, status=status, headers=headers)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_passing_failure_is_tried_again(api, status):
    api.answers = [failure(status), failure(status), {"kind": "Pod"}]
    assert await api.client.get(PODS, "x", "a") == {"kind": "Pod"}
    assert [request[:2] for request in api.requests] == [("GET", PODS_PATH)] * 3


async def test_a_lasting_failure_is_given_up(api):
    api.answers = [failure(503) for _ in range(ATTEMPTS)]
    with pytest.raises(Unavailable, match="503: m503"):
        await api.client.get(PODS, "x", "a")
    assert not api.answers


async def test_apply_of_an_invalid_manifest_is_refused_and_not_retried(api):
    """The API server answers 500 to an apply of a list with a key twice: a retry cannot help."""
    message = 'failed to create typed patch object (x/a; v1, Kind=Pod): duplicate entries for key [name="HOME"]'
    api.answers = [web.json_response({"message": message}, status=500)]
    with pytest.raises(Refused, match="duplicate entries"):
        await api.client.apply(PODS, {"metadata": {"namespace": "x", "name": "a"}})


async def test_retry_after_is_honoured(api, monkeypatch):
    paused = []

    async def sleep(seconds):
        paused.append(seconds)

    monkeypatch.setattr(client_module.asyncio, "sleep", sleep)
    api.answers = [failure(429, **{"Retry-After": "3"}), failure(429, **{"Retry-After": "3600"}), {}]
    await api.client.get(PODS, "x", "a")
    assert paused == [3.0, client_module.RETRY_LIMIT_S]


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (404, "NotFound", NotFound),
        (409, "Conflict", Stale),
        (409, "AlreadyExists", Exists),
        (403, "Forbidden", Refused),
        (422, "Invalid", Refused),
        (400, "BadRequest", Refused),
    ],
)
async def test_definite_answer_is_not_retried(api, status, reason, expected):
    api.answers = [failure(status, reason)]
    with pytest.raises(expected, match=f"m{status}"):
        await api.client.get(PODS, "x", "a")


async def test_an_answer_that_is_not_json_is_shown(api):
    api.answers = [web.Response(status=400, text="<html>go away</html>")]
    with pytest.raises(Refused, match="go away"):
        await api.client.get(PODS, "x", "a")


async def test_refused_connection_is_unavailable(api):
    await api.close()
    with pytest.raises(Unavailable, match=f"GET {PODS_PATH}"):
        await api.client.get(PODS, "x", "a")


async def test_a_hanging_server_is_left(api):
    api.client._timeout_s, api.client._attempts = 0.05, 2

    class Silent(web.Response):
        async def prepare(self, request):
            await client_module.asyncio.Event().wait()

    api.answers = [Silent(), Silent()]
    with pytest.raises(Unavailable, match="TimeoutError"):
        await api.client.get(PODS, "x", "a")


async def test_how_writes_look_on_the_wire(api):
    child = {"metadata": {"name": "a", "namespace": "x"}}
    api.answers = [{} for _ in range(4)]
    await api.client.apply(REPLICA_SETS, child)
    await api.client.patch(REPLICA_SETS, "x", "a", {"spec": {"replicas": 2}})
    await api.client.put_status(MODEL_DEPLOYMENTS, child)
    await api.client.delete(SERVICES, "x", "a", "u1")
    seen = [(method, path, headers["Content-Type"]) for method, path, headers, _ in api.requests]
    root = "/apis/apps/v1/namespaces/x/replicasets/a?fieldManager=slipway-operator"
    until = "&timeout=10s"  # the API server ends a write, too, before the fence of a lease does
    assert seen == [
        ("PATCH", f"{root}&force=true{until}", "application/apply-patch+yaml"),
        ("PATCH", f"{root}{until}", "application/merge-patch+json"),
        (
            "PUT",
            f"/apis/slipway.dev/v1alpha1/namespaces/x/modeldeployments/a/status?fieldManager=slipway-operator{until}",
            "application/json",
        ),
        ("DELETE", "/api/v1/namespaces/x/services/a?timeout=10s", "application/json"),
    ]
    assert '"preconditions": {"uid": "u1"}' in api.requests[3][3]


async def test_every_write_is_counted_once_whatever_its_tries(api):
    api.answers = [failure(500), {}, failure(409, "Conflict")]
    await api.client.apply(REPLICA_SETS, {"metadata": {"name": "a", "namespace": "x"}})
    with pytest.raises(Stale):
        await api.client.patch(REPLICA_SETS, "x", "a", {})
    assert api.writes == [("ReplicaSet", "ok"), ("ReplicaSet", "stale")]


async def test_a_name_cannot_leave_its_place_in_the_path(api):
    api.answers = [{}]
    await api.client.get(PODS, "x", "../secrets?a")
    assert api.requests[0][1] == "/api/v1/namespaces/x/pods/..%2Fsecrets%3Fa"
