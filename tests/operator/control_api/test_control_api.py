"""The control API at a real API server: each call is made by its caller, with the rights of that one alone."""

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from devcluster.ports import reserve_port
from slipway_operator.control_api import server
from slipway_operator.control_api.app import MOST_OF_A_CALLER, MOST_OF_AN_ADDRESS, PATH, ControlRoutes
from slipway_operator.control_api.caller import Caller, CallerClient, open_session
from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS
from slipway_operator.metrics_api import certificate
from slipway_process.network import bounded_port
from testkit.until import until_async
from tests.operator.integration.conftest import chat, client
from tests.support.processes import cluster

__all__ = ["chat", "client", "cluster"]

pytestmark = pytest.mark.integration

EDITOR = [{"apiGroups": ["slipway.dev"], "resources": ["modeldeployments"], "verbs": ["*"]}]
READER = [{"apiGroups": ["slipway.dev"], "resources": ["modeldeployments"], "verbs": ["get", "list"]}]


async def token_of(client, namespace, account):
    """The token of a ServiceAccount, which is made where it is missing."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await client.request("POST", path, [], {"metadata": {"name": account, "namespace": namespace}})
    body = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    return (await client.request("POST", f"{path}/{account}/token", [], body))["status"]["token"]


@pytest.fixture
async def counted():
    return []


@pytest.fixture
async def routes(client, counted):
    credentials = await client.credentials()
    async with open_session(credentials) as session:
        calls = CallerClient(session, credentials.server, credentials.proxy)
        application = ControlRoutes(calls, lambda *count: counted.append(count)).application()
        async with TestClient(TestServer(application)) as http:
            yield http


class As:
    """Requests of one caller."""

    def __init__(self, http, token):
        self._http, self._headers = http, {"Authorization": f"Bearer {token}"}

    async def __call__(self, method, path, body=None):
        async with self._http.request(method, path, json=body, headers=self._headers) as answer:
            return answer.status, await answer.json()


async def caller(client, http, namespace, account, rules):
    """A ServiceAccount with these rights in the namespace."""
    token = await token_of(client, namespace, account)
    metadata, group = {"name": account, "namespace": namespace}, "rbac.authorization.k8s.io"
    binding = {
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", **metadata}],
    }
    path = f"/apis/{group}/v1/namespaces/{namespace}"
    await client.request("POST", f"{path}/roles", [], {"metadata": metadata, "rules": rules})
    await client.request("POST", f"{path}/rolebindings", [], binding)
    return As(http, token)


async def test_whoever_may_creates_reads_and_edits_as_themselves(client, routes, namespace, counted):
    mine = await caller(client, routes, namespace, "editor", EDITOR)
    body = {"model_name": "chat", "version": "v1", "uri": "hf://org/model", "resources": {"replicas": 2}}
    status, made = await mine("POST", PATH, body)
    assert (status, made["model_name"], made["namespace"]) == (201, "chat", namespace)
    assert made["resources"] == {"gpu": 0, "replicas": 2}
    status, edited = await mine("POST", PATH, {"model_name": "chat", "resources": {"replicas": 3}})
    assert (status, edited["resources"]["replicas"], edited["version"]) == (200, 3, "v1")
    status, listed = await mine("GET", f"{PATH}?limit=1")
    assert [item["model_name"] for item in listed["data"]] == ["chat"] and not listed["has_more"]
    assert (await mine("GET", f"{PATH}/chat"))[1] == listed["data"][0]
    live = await client.get(MODEL_DEPLOYMENTS, namespace, "chat")
    assert {entry["manager"] for entry in live["metadata"]["managedFields"]} == {"slipway-control-api"}
    assert counted == [("create", 201), ("create", 200), ("list", 200), ("get", 200)]


async def test_without_the_right_each_call_is_403_and_changes_nothing(client, routes, namespace, chat, counted):
    stranger = await caller(client, routes, namespace, "stranger", [])
    reader = await caller(client, routes, namespace, "reader", READER)
    before = await client.get(MODEL_DEPLOYMENTS, namespace, "chat")
    create = {"model_name": "new", "uri": "hf://a/b"}
    edit = {"model_name": "chat", "resources": {"replicas": 9}}
    status = {"stableRevision": "a", "canaryRevision": "b", "observedGeneration": 1}
    calls = [
        (stranger, "GET", PATH, None),
        (stranger, "GET", f"{PATH}/chat", None),
        (stranger, "GET", f"{PATH}/not-there", None),
        (stranger, "POST", PATH, create),
        (stranger, "POST", PATH, edit),
        (stranger, "PUT", f"{PATH}/chat/traffic", {"a": 50, "b": 50}),
        (reader, "POST", PATH, create),
        (reader, "POST", PATH, edit),
        (reader, "GET", f"{PATH}?namespace=kube-system", None),
    ]
    for who, method, path, body in calls:
        code, answer = await who(method, path, body)
        assert (code, answer["error"]["code"], answer["error"]["type"]) == (403, "forbidden", "invalid_request_error")
        assert set(answer["error"]) == {"message", "type", "param", "code"}
    # A split needs versions: those of a status that the test writes.
    written = await client.put_status(MODEL_DEPLOYMENTS, {**before, "status": status})
    code, answer = await reader("PUT", f"{PATH}/chat/traffic", {"a": 50, "b": 50})
    assert (code, answer["error"]["code"]) == (403, "forbidden")
    assert await client.get(MODEL_DEPLOYMENTS, namespace, "chat") == written
    with pytest.raises(NotFound):
        await client.get(MODEL_DEPLOYMENTS, namespace, "new")
    assert [status for _, status in counted] == [403] * (len(calls) + 1)


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer a b", "Basic YTpi", "Bearer no-token", "Bearer " + "a" * 8000]
)
async def test_without_a_token_nothing_is_read(routes, header, counted):
    async with routes.get(PATH, headers={"Authorization": header} if header else {}) as answer:
        assert answer.status == 401
        assert (await answer.json())["error"]["code"] == "invalid_token"
    assert counted == [("list", 401)]


async def test_a_users_error_names_the_parameter(client, routes, namespace):
    mine = await caller(client, routes, namespace, "editor", EDITOR)
    for method, path, body, param in (
        ("GET", f"{PATH}?limit=0", None, "limit"),
        ("GET", f"{PATH}?limit=1000000", None, "limit"),
        ("GET", f"{PATH}?namespace=../x", None, "namespace"),
        ("GET", f"{PATH}?all=1", None, "all"),
        ("GET", f"{PATH}?after=nonsense", None, None),
        ("POST", PATH, {"model_name": "x", "gpus": 1}, "gpus"),
        ("POST", PATH, {"model_name": "x", "uri": "ftp://x"}, None),
        ("POST", PATH, {"model_name": "x"}, "uri"),
    ):
        code, answer = await mine(method, path, body)
        assert (code, answer["error"]["param"]) == (400, param), answer
    code, answer = await mine("GET", f"{PATH}/no-such")
    assert (code, answer["error"]["code"]) == (404, "not_found")
    code, answer = await mine("POST", PATH, {"model_name": "x" * 20000})
    assert (code, answer["error"]["code"]) == (413, "too_large")
    code, answer = await mine("DELETE", f"{PATH}/chat")
    assert code == 404


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_body_that_is_not_encoded_as_declared_is_the_callers_fault(
    client, routes, namespace, counted, caplog, encoding
):
    token = await token_of(client, namespace, "stranger")
    headers = {"Authorization": f"Bearer {token}", "Content-Encoding": encoding}
    async with routes.post(PATH, data=b"\xff" * 64, headers=headers) as answer:
        assert answer.status == 400, await answer.text()
    assert counted == [("create", 400)]
    assert "a bug" not in caplog.text


async def test_a_field_that_gitops_applies_is_not_changed(client, routes, namespace):
    mine = await caller(client, routes, namespace, "editor", EDITOR)
    manifest = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {"model": {"uri": "hf://org/model"}, "replicas": 2},
    }
    path = MODEL_DEPLOYMENTS.path(namespace, "chat")
    query = [("fieldManager", "kustomize-controller")]
    await client.request("PATCH", path, query, manifest, "application/apply-patch+yaml")
    before = await client.get(MODEL_DEPLOYMENTS, namespace, "chat")
    code, answer = await mine("POST", PATH, {"model_name": "chat", "resources": {"replicas": 5}})
    assert (code, answer["error"]["code"], answer["error"]["param"]) == (409, "field_owned", "resources.replicas")
    assert "kustomize-controller" in answer["error"]["message"]
    assert await client.get(MODEL_DEPLOYMENTS, namespace, "chat") == before
    assert (await mine("POST", PATH, {"model_name": "chat", "traffic_percent": 5}))[0] == 200


async def test_a_status_that_is_written_meanwhile_hinders_no_change(client, namespace, chat):
    """The operator writes the status of a rollout all the time, and each write is a new version of the object."""
    credentials, writes = await client.credentials(), []

    class Racing(CallerClient):
        async def patch(self, caller, namespace, name, body):
            live = await client.get(MODEL_DEPLOYMENTS, namespace, name)
            if len(writes) < 2:
                writes.append(await client.put_status(MODEL_DEPLOYMENTS, {**live, "status": {"weight": len(writes)}}))
            return await super().patch(caller, namespace, name, body)

    async with open_session(credentials) as session:
        application = ControlRoutes(Racing(session, credentials.server, credentials.proxy), print).application()
        async with TestClient(TestServer(application)) as http:
            mine = await caller(client, http, namespace, "editor", EDITOR)
            code, edited = await mine("POST", PATH, {"model_name": "chat", "resources": {"replicas": 3}})
    assert (code, edited["resources"]["replicas"], len(writes)) == (200, 3, 2)


async def test_one_address_has_its_share(client, routes, namespace):
    token = await token_of(client, namespace, "stranger")
    many = [As(routes, token)("GET", PATH) for _ in range(3 * MOST_OF_AN_ADDRESS)]
    codes = [code for code, _ in await asyncio.gather(*many)]
    assert set(codes) == {403, 429}
    assert (await As(routes, token)("GET", PATH))[0] == 403


def test_the_service_accounts_of_a_namespace_share_their_places():
    shares = {Caller(f"system:serviceaccount:team:{name}", "t").share for name in "abc"}
    assert shares == {"system:serviceaccount:team"}
    assert Caller("mary", "t").share == "mary"
    places = ControlRoutes(None, print)._calls
    taken = [places.take("mary") for _ in range(MOST_OF_A_CALLER + 1)]
    assert taken[:-1] == [""] * MOST_OF_A_CALLER and taken[-1]


async def test_one_address_leaves_connections_for_others(client, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 8)
    port, (certificate_file, key_file) = reserve_port(), certificate_files(tmp_path)
    api = server.ControlApi(client, port, str(certificate_file), str(key_file), lambda route, status: None)
    running, context = asyncio.create_task(api.run()), ssl.create_default_context(cafile=certificate_file)

    async def opened(address):
        return await asyncio.open_connection("localhost", port, ssl=context, local_addr=(address, 0))

    async def answered(reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return await reader.readline()

    async def is_served():
        with contextlib.suppress(OSError):
            (await opened("127.0.0.4"))[1].close()
            return True
        return False

    refusal = b"HTTP/1.1 503 Service Unavailable\r\n"
    try:
        await until_async(is_served, "it is served")
        streams = await asyncio.gather(*(opened("127.0.0.2") for _ in range(9)))
        # A connection with a place has nothing to read before its first request.
        await until_async(lambda: sum(bool(reader._buffer) for reader, _ in streams) >= 3, "three are refused")
        refused = [stream for stream in streams if stream[0]._buffer]
        assert [await reader.readline() for reader, _ in refused] == [refusal] * 3
        others = [*(stream for stream in streams if stream not in refused), await opened("127.0.0.3")]
        async with asyncio.timeout(60):
            assert refusal not in [await answered(*stream) for stream in others], "the rest is for other addresses"
        for _, writer in (*streams, *others):
            writer.close()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_handshake_that_does_not_end_keeps_no_connection(client, tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_port, "HANDSHAKE_S", 0.5)
    port, (certificate_file, key_file) = reserve_port(), certificate_files(tmp_path)
    api = server.ControlApi(client, port, str(certificate_file), str(key_file), lambda route, status: None)
    running = asyncio.create_task(api.run())

    async def silent():
        with contextlib.suppress(OSError):
            return await asyncio.open_connection("localhost", port)
        return None

    try:
        reader, writer = await until_async(silent, "it is served")
        async with asyncio.timeout(30):  # asyncio's own limit is 60
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.transport.abort()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def certificate_files(folder):
    """(certificate, its key) of localhost."""
    made = certificate.make("localhost", datetime.now(UTC))
    for name, text in (("tls.crt", made.certificate), ("tls.key", made.key)):
        (folder / name).write_text(text)
    return folder / "tls.crt", folder / "tls.key"


class TestWithAnOperator:
    """The whole way: an operator with TLS, and a gateway that acknowledges the split."""

    @pytest.fixture
    def operator_flags(self, tmp_path):
        self.port, (self.ca, key_file) = reserve_port(), certificate_files(tmp_path)
        return (
            f"--control-api-port={self.port}",
            f"--control-api-cert-file={self.ca}",
            f"--control-api-key-file={key_file}",
        )

    async def test_the_split_is_that_which_gateways_have(self, client, cluster, namespace):
        trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=self.ca))
        async with aiohttp.ClientSession(f"https://localhost:{self.port}", connector=trusting) as http:
            mine = await caller(client, http, namespace, "editor", EDITOR)
            await until_async(
                lambda: cluster.admin("/readyz"), "the operator is ready", holds=lambda page: page[0] == 200
            )
            body = {"model_name": "chat", "version": "v3.0", "uri": "file:///opt/a", "traffic_percent": 0}
            assert (await mine("POST", PATH, body))[0] == 201
            await cluster.reaches("v3.0 serves", lambda now: now.get("phase") == "Healthy")
            body = {"model_name": "chat", "version": "v3.1", "uri": "file:///opt/b"}
            assert (await mine("POST", PATH, body))[0] == 200
            await cluster.reaches("v3.1 is under test", lambda now: now.get("canaryRevision"))
            code, split = await mine("PUT", f"{PATH}/chat/traffic", {"v3.0": 50, "v3.1": 50})
            assert code in (200, 202), split
            await cluster.reaches("half of it", lambda now: now.get("weight") == 50)
            code, split = await mine("PUT", f"{PATH}/chat/traffic", {"v3.0": 50, "v3.1": 50})
            assert (code, split["traffic"]) == (200, {"v3.0": 50, "v3.1": 50})
            code, answer = await mine("PUT", f"{PATH}/chat/traffic", {"v1": 50, "v3.1": 50})
            assert (code, answer["error"]["param"]) == (404, "v1")
        with contextlib.suppress(aiohttp.ClientError):
            async with aiohttp.ClientSession() as plain, plain.get(f"http://127.0.0.1:{self.port}{PATH}"):
                raise AssertionError("plain HTTP is no way to send a token")
