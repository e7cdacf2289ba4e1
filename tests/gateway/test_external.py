"""A provider answers before the first byte, while a deployment cannot: with its own price, and as a stranger."""

import asyncio
import json
import logging
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from slipway_contracts.resilience import ExternalTarget
from slipway_contracts.route_table import Backend
from slipway_gateway.external import provider_request
from slipway_gateway.external.hosts import ExternalHosts
from slipway_gateway.external.keys import MOST_KEYS, KeyUnavailable, ProviderKeys
from slipway_gateway.external.secret_keys import SecretKeys
from slipway_gateway.identity.tenants import KnownTenant
from slipway_gateway.quotas.policy import Policy
from slipway_gateway.quotas.prices import Price
from slipway_gateway.quotas.tenant import Limits
from slipway_gateway.routing.table import RevisionEndpoints, Route, build
from testkit.cluster.api import Api
from testkit.until import until_async
from tests.support.providers import HOST, ProviderTls, provider_tls
from tests.support.report import route_reports

from . import tenants as known
from .harness import Gateway, Handler, Upstream, gateway, upstream
from .loopback import Loopback
from .test_judged import whole

pytestmark = pytest.mark.attack_class(8)

SECRET = "sk-provider-0123456789"
CREATED = "2026-01-01T00:00:00Z"
NAME = "ns/chat/openai"
ASK = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 50}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
ANSWER = {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}], "model": "gpt-x"} | {
    "usage": USAGE
}
BOOM = whole({"error": {"message": "boom"}}, 500)
KEY = known.make_key()
PRICES = (Price("chat", 1_000_000, 1_000_000), Price(NAME, 10_000_000, 20_000_000))


def tenant(**changes: Any) -> KnownTenant:
    fields: dict[str, Any] = {"external": True, "policy": Policy(prices=PRICES)} | changes
    return replace(known.tenant("team-a", KEY), **fields)


async def read_key(namespace: str, secret: str, key: str) -> str:
    if (namespace, secret, key) != ("ns", "openai", "token"):
        raise KeyUnavailable("there is no such Secret")
    return SECRET


class Town:
    """A gateway, a deployment that fails, and a provider with TLS at HOST."""

    def __init__(self, gate: Gateway, own: Upstream, provider: Upstream) -> None:
        self.gate, self.own, self.provider = gate, own, provider
        self.target = ExternalTarget("openai", f"https://{HOST}:{provider.port}/v1", "gpt-x", "openai", "token")
        external = gate.edge._forwarding.external
        external._hosts = replace(ExternalHosts.of(external._hosts.patterns), loopback=True)
        external._resolver = Loopback()
        self.publish()

    def publish(self, **changes: Any) -> None:
        self.gate.generation += 1
        route = Route("ns/chat", "u1", "chat", CREATED, self.gate.generation, "s", (Backend("c1", 100),))
        route = replace(route, **({"fallback": ("openai",), "external": (self.target,)} | changes))
        self.gate.balancer.publish(build([route], [RevisionEndpoints("ns/chat", "c1", (self.own.url,))]))

    async def ask(self, body: dict[str, Any] | None = None, **options: Any) -> tuple[int, str, dict[str, str]]:
        headers = known.bearer(KEY) | options.pop("headers", {})
        async with await self.gate.post(body or ASK, headers=headers, **options) as answer:
            return answer.status, await answer.text(), dict(answer.headers)

    def key_problems(self) -> tuple[str, ...]:
        return self.gate.balancer.report()["ns/chat"].key_problems

    def called(self, result: str) -> float:
        labels = {"model": "chat", "provider": NAME, "result": result}
        return self.gate.metrics.registry.get_sample_value("slipway_gateway_external_requests_total", labels) or 0


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ProviderTls:
    return provider_tls(tmp_path_factory.mktemp("provider"))


@asynccontextmanager
async def town(
    tls: ProviderTls, provider: Handler, own: Handler = BOOM, tenants: tuple[KnownTenant, ...] = (), **settings: Any
) -> AsyncIterator[Town]:
    options = {"external_hosts": (HOST,), "external_ca_file": tls.ca_file} | settings
    async with (
        upstream(own) as pod,
        upstream(provider, context=tls.context) as outside,
        gateway(tenants=tenants or (tenant(),), pepper=known.PEPPER, read_key=read_key, **options) as gate,
    ):
        yield Town(gate, pod, outside)


async def test_a_provider_answers_and_gets_only_what_its_api_needs(tls: ProviderTls) -> None:
    async with town(tls, whole(ANSWER)) as here:
        sent = {"Cookie": "c=1", "X-Session-Id": "s", "X-Custom": "1", "Accept-Encoding": "gzip"}
        status, text, headers = await here.ask(headers=sent)
        assert (status, json.loads(text)["model"]) == (200, "chat")
        assert headers["X-Slipway-Fallback"] == "ns/chat; error; external=openai"
        assert "X-Slipway-Revision" not in headers and "X-Provider" not in headers
        (request,) = here.provider.seen
        assert request.path == "/v1/chat/completions" and request.headers["Authorization"] == f"Bearer {SECRET}"
        assert json.loads(here.provider.bodies[0]) == ASK | {"model": "gpt-x"}
        names = {name.lower() for name in request.headers}
        needed = {
            "authorization",
            "connection",
            "content-type",
            "content-length",
            "accept",
            "accept-encoding",
            "user-agent",
            "host",
        }
        assert names == needed
        assert here.gate.outcomes() == {"ok": 1} and here.called("answered") == 1
        (sample,) = route_reports(here.gate.balancer)["ns/chat"]["samples"]
        assert sample["revisions"]["c1"]["events"]["errors"] == 1 == sample["revisions"]["c1"]["requests"]


async def test_the_tenant_pays_the_providers_price_once(tls: ProviderTls) -> None:
    async with town(tls, whole(ANSWER)) as here:
        assert (await here.ask())[0] == 200
        await here.gate.ledger.flush()
        _, rows = await here.gate.ledger.usage(0, 1 << 40, "team-a")
        (row,) = rows
        # 10 tokens at 10 and 5 at 20 for a million.
        assert (row["model"], row["input_tokens"], row["output_tokens"]) == (NAME, 10, 5)
        assert here.gate.ledger.spent("team-a").day_nano == 200_000


async def test_while_a_provider_answers_its_price_is_what_the_budget_expects(tls: ProviderTls) -> None:
    goes_on = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"model": "gpt-x", "choices": []}\n\n')
        await goes_on.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    async with town(tls, slow) as here:
        running = asyncio.create_task(here.ask(ASK | {"stream": True}))
        await until_async(lambda: here.called("answered") == 1)
        # 50 reserved tokens at 20 for a million, and those of the prompt at 10.
        assert here.gate.ledger.spent("team-a").day_nano > 1_000_000
        goes_on.set()
        assert (await running)[0] == 200


async def test_a_stream_is_relayed_with_the_clients_name_of_the_model(tls: ProviderTls) -> None:
    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Provider": "1"})
        await response.prepare(request)
        for word in ("one", "two"):
            chunk = {"model": "gpt-x", "choices": [{"index": 0, "delta": {"content": word}}]}
            await response.write(f"data: {json.dumps(chunk)}\n\n: engine_crashed\n\n".encode())
        await response.write(f'data: {{"choices": [], "usage": {json.dumps(USAGE)}}}\n\ndata: [DONE]\n\n'.encode())
        return response

    async with town(tls, events) as here:
        status, text, headers = await here.ask(ASK | {"stream": True})
        assert status == 200 and "X-Provider" not in headers
        assert text.count('"model":"chat"') + text.count('"model": "chat"') == 2 and "gpt-x" not in text
        assert text.endswith("data: [DONE]\n\n") and "one" in text and "two" in text
        assert json.loads(here.provider.bodies[0])["stream_options"] == {"include_usage": True}
        assert not here.gate.edge._forwarding.external._places.used


@pytest.mark.parametrize(
    "changes", [{"external": False}, {"models": ("other",)}], ids=["not allowed outside", "another model"]
)
async def test_it_is_off_unless_the_tenant_allows_it(tls: ProviderTls, changes: dict[str, Any]) -> None:
    async with town(tls, whole(ANSWER), tenants=(tenant(**changes),)) as here:
        assert (await here.ask())[0] in (404, 500)
        assert not here.provider.seen


async def test_hosts_that_no_administrator_listed_and_requests_without_a_tenant_stay_inside(tls: ProviderTls) -> None:
    async with town(tls, whole(ANSWER), external_hosts=("other.test",)) as here:
        assert (await here.ask())[0] == 500
    async with town(tls, whole(ANSWER), auth_mode="off") as here:
        assert (await here.ask())[0] == 500
        assert not here.provider.seen


async def test_plain_http_and_certificates_of_others_are_refused(tls: ProviderTls, tmp_path: Path) -> None:
    async with town(tls, whole(ANSWER), external_ca_file=provider_tls(tmp_path).ca_file) as here:
        assert (await here.ask())[0] == 500 and here.called("unreachable") == 1
        here.publish(external=(replace(here.target, url=here.target.url.replace("https", "http")),))
        assert (await here.ask())[0] == 500
        assert not here.provider.seen


async def redirects(request: web.Request) -> web.StreamResponse:
    raise web.HTTPTemporaryRedirect(f"https://{HOST}/elsewhere")


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def leaks(request: web.Request) -> web.StreamResponse:
    """As OpenAI does in errors, with the whole key."""
    message = f"Incorrect API key provided: {request.headers['Authorization']}"
    raise web.HTTPUnauthorized(text=json.dumps({"error": {"message": message}}), headers={"X-Key": SECRET})


async def echoes(request: web.Request) -> web.StreamResponse:
    return web.json_response(ANSWER | {"id": request.headers["Authorization"]})


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" " * 65536)
        await asyncio.sleep(0)  # writes to a lost connection never wait


async def zipped(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"x", headers={"Content-Encoding": "gzip"}, content_type="application/json")


async def garbage(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b'{"choices": [', content_type="application/json")


async def page(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>", content_type="text/html")


@pytest.mark.parametrize(
    ("provider", "result"),
    [
        (whole({"error": {"message": "no"}}, 500), "failed"),
        (whole({"error": {"message": "no"}}, 400), "refused"),
        (redirects, "refused"),
        (leaks, "refused"),
        (echoes, "invalid"),
        (garbage, "invalid"),
        (page, "invalid"),
        (zipped, "invalid"),
        (endless, "too_large"),
        (hangs, "timeout"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_whatever_a_provider_does_the_client_gets_the_error_of_its_own_deployment(
    tls: ProviderTls, provider: Handler, result: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bounds: dict[str, Any] = {"external_timeout_s": 1, "external_max_response_bytes": 1 << 18}
    async with town(tls, provider, **bounds) as here:
        status, text, headers = await here.ask()
        assert (status, json.loads(text)["error"]["message"]) == (500, "boom")
        assert "X-Slipway-Fallback" not in headers and headers["X-Slipway-Revision"] == "c1"
        assert here.called(result) == 1 == len(here.provider.seen)
        assert SECRET not in text + str(headers) + caplog.text
        assert here.gate.outcomes() == {"upstream_error": 1}
        assert not here.gate.edge._forwarding.external._places.used
        await here.gate.ledger.flush()
        assert here.gate.ledger.spent("team-a").day_nano == 0


@pytest.mark.parametrize("sends", ["the key", "without end"])
async def test_a_stream_ends_with_an_error_where_a_provider_sends_its_key_or_too_much(
    tls: ProviderTls, sends: str
) -> None:
    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": []}\n\n')
        await asyncio.sleep(0.05)
        if sends == "the key":  # in two pieces
            await response.write(f'data: "{SECRET[:9]}'.encode())
            await asyncio.sleep(0.05)
            await response.write(f'{SECRET[9:]}"\n\n'.encode())
            await asyncio.sleep(60)
        while True:
            await response.write(b'data: {"choices": []}\n\n' * 1000)
            await asyncio.sleep(0)

    async with town(tls, events, external_max_response_bytes=1 << 18) as here:
        _, text, _ = await here.ask(ASK | {"stream": True})
        assert "upstream_died" in text and SECRET not in text and len(text) < 1 << 19
        assert here.gate.outcomes() == {"upstream_error": 1}
        await until_async(lambda: not here.gate.edge._forwarding.external._places.used)


async def test_at_most_one_provider_is_tried_and_not_for_what_it_has_no_path_for(tls: ProviderTls) -> None:
    async with town(tls, whole({}, 500)) as here:
        other = replace(here.target, name="second")
        here.publish(fallback=("openai", "second"), external=(here.target, other))
        assert (await here.ask())[0] == 500 and len(here.provider.seen) == 1
        for path, body in (("/v1/embeddings", {"input": "x"}), ("/v1/generate", {"prompt": "x"})):
            assert (await here.ask({"model": "chat"} | body, path=path))[0] == 500
        assert len(here.provider.seen) == 1


async def test_a_secret_that_cannot_be_read_and_full_places_are_no_calls(tls: ProviderTls) -> None:
    async with town(tls, whole(ANSWER), external_max_inflight=1) as here:
        here.publish(external=(replace(here.target, secret="gone"),))
        assert (await here.ask())[0] == 500 and here.called("no_key") == 1
        assert here.key_problems() == ("there is no such Secret",)
        here.publish()
        assert here.key_problems() == (), "the key that this one names was not needed yet"
        places = here.gate.edge._forwarding.external._places
        places.force("another")
        assert (await here.ask())[0] == 500 and here.called("busy") == 1
        places.leave("another")
        assert (await here.ask())[0] == 200


async def test_limits_of_a_tenant_send_requests_outside_only_where_that_is_declared(tls: ProviderTls) -> None:
    limited = tenant(policy=Policy(Limits(requests_per_minute=1, burst_s=60), PRICES))
    async with town(tls, whole(ANSWER), own=whole(ANSWER), tenants=(limited,)) as here:
        assert [(await here.ask())[0] for _ in range(2)] == [200, 429]
        assert not here.provider.seen
        here.publish(external=(replace(here.target, on_quota=True),))
        status, _, headers = await here.ask()
        assert (status, headers["X-Slipway-Fallback"]) == (200, "ns/chat; quota; external=openai")
        assert len(here.own.seen) == 1 == len(here.provider.seen)
        await here.gate.ledger.flush()
        _, rows = await here.gate.ledger.usage(0, 1 << 40, "team-a")
        assert {row["model"] for row in rows} == {"chat", NAME}
        assert here.gate.outcomes() == {"ok": 2, "refused": 1}


async def test_a_namespace_with_many_keys_pushes_out_its_own() -> None:
    read: Counter[tuple[str, str]] = Counter()

    async def reading(namespace: str, secret: str, key: str) -> str:
        read[namespace, secret] += 1
        if secret == "gone":
            raise KeyUnavailable("there is no such Secret")
        return SECRET

    now = [0.0]
    keys = ProviderKeys(reading, lambda: now[0])
    assert await keys.read("quiet", "one", "k") == SECRET
    for number in range(2 * MOST_KEYS):
        await keys.read("loud", f"s{number}", "k")
    await keys.read("quiet", "one", "k")
    assert read["quiet", "one"] == 1
    for after_s, times in ((0.0, 1), (4.9, 1), (5.1, 2)):
        now[0] = after_s
        with pytest.raises(KeyUnavailable):
            await keys.read("quiet", "gone", "k")
        assert read["quiet", "gone"] == times
    now[0] = 61.0
    await keys.read("quiet", "one", "k")
    assert read["quiet", "one"] == 2


async def test_what_falls_back_counts_against_the_revision_as_an_event_of_its_own(tls: ProviderTls) -> None:
    for own, errors in ((whole({"error": {"message": "busy"}}, 429), 0), (BOOM, 1)):
        async with town(tls, whole(ANSWER), own=own) as here:
            assert (await here.ask())[0] == 200
            (sample,) = route_reports(here.gate.balancer)["ns/chat"]["samples"]
            counted = sample["revisions"]["c1"]
            assert (counted["events"]["fell_back"], counted["events"]["errors"], counted["units"]) == (1, errors, 1)


RBAC = "/apis/rbac.authorization.k8s.io/v1"


def kubeconfig_of(api: Api, api_server: Path, namespace: str, folder: Path) -> str:
    """Of a service account that may get the Secret `openai` of the namespace, and nothing else."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    assert api.post(accounts, {"metadata": {"name": "gateway"}}).ok
    token = api.post(f"{accounts}/gateway/token", {"spec": {"expirationSeconds": 3600}}).body["status"]["token"]
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["openai"], "verbs": ["get"]}
    assert api.post(f"{RBAC}/namespaces/{namespace}/roles", {"metadata": {"name": "keys"}, "rules": [rule]}).ok
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "keys"}
    subject = {"kind": "ServiceAccount", "name": "gateway", "namespace": namespace}
    binding = {"metadata": {"name": "keys"}, "roleRef": reference, "subjects": [subject]}
    assert api.post(f"{RBAC}/namespaces/{namespace}/rolebindings", binding).ok
    config = yaml.safe_load(api_server.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return str(folder / "kubeconfig")


@pytest.mark.integration
async def test_a_key_comes_from_a_secret_that_a_role_lets_the_gateway_read(
    api: Api, api_server: Path, namespace: str, tmp_path: Path
) -> None:
    for name, labels, data in (
        ("openai", {}, {"token": f" {SECRET}\n", "empty": "", "lines": "a\nb"}),
        ("own", {"app.kubernetes.io/managed-by": "slipway"}, {"token": SECRET}),
    ):
        secret = {"metadata": {"name": name, "labels": labels}, "stringData": data}
        assert api.post(f"/api/v1/namespaces/{namespace}/secrets", secret).ok
    allowed, admin = SecretKeys(kubeconfig_of(api, api_server, namespace, tmp_path)), SecretKeys(str(api_server))
    try:
        assert await allowed.read(namespace, "openai", "token") == SECRET
        for keys, name, key, why in (
            (allowed, "own", "token", "may not be read: allow the gateways"),
            (allowed, "openai", "other", "no such key"),
            (allowed, "openai", "empty", "it is empty"),
            (allowed, "openai", "lines", "printable ASCII"),
            (admin, "own", "token", "keys of Slipway"),
            (admin, "gone", "token", "no such Secret"),
            (admin, "../../x", "token", "cannot be read"),
        ):
            with pytest.raises(KeyUnavailable, match=why) as raised:
                await keys.read(namespace, name, key)
            assert SECRET not in str(raised.value)
    finally:
        await allowed.close()
        await admin.close()


def test_a_provider_gets_no_field_that_this_gateway_adds_for_engines() -> None:
    """Requests in the form of another API have them, and providers that check their fields refuse them."""
    body = (
        b'{"model":"a","prompt":"return_token_ids","return_token_ids":true,"include_stop_str_in_output":true,"top_k":1}'
    )
    sent = json.loads(provider_request.body_of(body, "b"))
    assert sent == {"model": "b", "prompt": "return_token_ids", "top_k": 1}


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"return_token_ids" : true , "model":"a"}', {"model": "b"}),
        (b'{"model":"a" , \n "return_token_ids":\ttrue\n}', {"model": "b"}),
        (b'{"model":"a","prompt":"\\"return_token_ids\\": 1","return_token_ids":{"b":[1,2]}}', None),
        (b'{"model":"a","metadata":{"return_token_ids":1}}', {"model": "b", "metadata": {"return_token_ids": 1}}),
        (b'{"return_token_ids":1,"model":"a","return_token_ids":2}', {"model": "b", "return_token_ids": 2}),
    ],
)
def test_a_field_of_engines_is_cut_out_at_any_place(body: bytes, sent: dict[str, Any] | None) -> None:
    expected = sent or {"model": "b", "prompt": '"return_token_ids": 1'}
    assert json.loads(provider_request.body_of(body, "b")) == expected


def test_a_body_of_many_members_is_not_read_for_a_provider() -> None:
    members = b",".join(b'"%d":0' % index for index in range(400_000))
    body = b'{"model":"a",%b,"return_token_ids":true}' % members
    tracemalloc.start()
    try:
        sent = provider_request.body_of(body, "b")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sent == b'{"model":"b",%b}' % members
    assert peak_bytes < 4 * len(body)
