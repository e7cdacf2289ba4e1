"""Guards through a real gateway: what the model gets, what clients get, and what becomes of guards that fail."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.guards import GuardSecretRef
from slipway_contracts.route_table import ResponseCache
from slipway_gateway.guards.protocol import GuardFailed
from slipway_gateway.guards.webhook import GuardSecrets
from tests.support.report import route_reports

from ..harness import Gateway, Handler, gateway, raw_upstream, upstream
from ..tenants import bearer, make_key, tenant
from .webhooks import CHAT, Webhook, chat, guard, guarded, guarded_gateway, reach_loopback, replying, streaming, text_of


async def post(
    gate: Gateway, body: dict[str, Any], path: str = CHAT, **options: Any
) -> tuple[int, dict[str, Any], bytes]:
    """Status, JSON (of an error or of a whole response) and bytes."""
    async with await gate.post(body, path, **options) as response:
        received = await response.read()
        return response.status, json.loads(received) if received.startswith(b"{") else {}, received


# -- before the model


async def test_the_model_gets_what_guards_leave_of_a_request() -> None:
    hook = Webhook()
    async with guarded_gateway(replying("fine"), hook, ["Input"]) as (gate, server, _):
        body = chat("my SECRET is é SECRET", "no more", temperature=0.5, logprobs=True)
        assert (await post(gate, body))[0] == 200
        sent = json.loads(server.bodies[0])
    assert sent == {**body, "messages": [{"role": "user", "content": "my ### is é ###"}, body["messages"][1]]}
    (call,) = hook.calls
    assert (call["version"], call["guard"], call["stage"], call["model"], call["revision"]) == (
        1, "words", "Input", "chat", "",
    )  # fmt: skip
    assert [text["path"] for text in call["texts"]] == ["messages[0].content", "messages[1].content"]


async def test_a_request_that_guards_allow_keeps_its_bytes() -> None:
    async with guarded_gateway(replying("fine"), Webhook(), ["Input"]) as (gate, server, _):
        body = b'{"model":"chat",   "messages":[{"role":"user","content":"hi"}], "seed": 1.50}'
        async with gate.client.post(f"{gate.url}{CHAT}", data=body) as response:
            assert response.status == 200
        assert server.bodies == [body]


async def test_a_blocked_request_never_reaches_the_model_and_counts_once() -> None:
    async with guarded_gateway(replying("fine"), Webhook(), ["Input"]) as (gate, server, _):
        status, refused, _ = await post(gate, chat("VETO"))
        assert (status, refused["error"]["code"]) == (400, "content_blocked")
        # The reason is a stranger's: no line and no escape of a terminal in it.
        assert refused["error"]["message"] == "The request was blocked by the guard 'words': it says [31mVETO."
        assert not server.bodies and gate.outcomes() == {"blocked": 1}


@pytest.mark.parametrize(
    ("path", "body", "texts"),
    [
        ("/v1/completions", {"prompt": ["a", "b"], "suffix": "c"}, ["a", "b", "c"]),
        ("/v1/embeddings", {"input": ["a", "b"]}, ["a", "b"]),
        ("/v1/generate", {"prompt": "a"}, ["a"]),
        ("/api/v1/embed", {"inputs": ["a"]}, ["a"]),
        ("/v1/rerank", {"query": "a", "documents": ["b", {"text": "c"}]}, ["a", "b", "c"]),
        (
            "/v1/responses",
            {"instructions": "a", "input": [{"role": "user", "content": [{"type": "input_text", "text": "b"}]}]},
            ["a", "b"],
        ),
        (
            CHAT,
            {
                "messages": [
                    {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "image_url",
                     "image_url": {"url": "data:image/png;base64,AAAA"}}]},
                    {"role": "assistant", "tool_calls": [{"id": "t", "type": "function",
                     "function": {"name": "f", "arguments": "b"}}]},
                    {"role": "tool", "tool_call_id": "t", "content": "c"},
                ]
            },
            ["a", "b", "c"],
        ),
    ],
)  # fmt: skip
async def test_guards_see_all_texts_of_a_prompt(path: str, body: dict[str, Any], texts: list[str]) -> None:
    hook = Webhook()
    async with guarded_gateway(replying("fine"), hook, ["Input"]) as (gate, _, _):
        await post(gate, {"model": "chat", **body}, path)
    assert sorted(hook.texts) == texts


@pytest.mark.parametrize("body", [{"prompt": [1, 2]}, {"prompt": [[1], [2]]}, {"prompt": "a", "prompt_embeds": "AA"}])
async def test_a_prompt_that_guards_cannot_read_does_not_pass_them(body: dict[str, Any]) -> None:
    async with guarded_gateway(replying("fine"), Webhook(), ["Input"]) as (gate, server, _):
        status, refused, _ = await post(gate, {"model": "chat", **body}, "/v1/completions")
        assert (status, refused["error"]["code"]) == (400, "content_not_checked") and not server.bodies


async def test_what_a_cache_keeps_has_no_more_than_the_model_got() -> None:
    hook = Webhook()
    route = {"cache": ResponseCache(60)}
    async with guarded_gateway(replying("it was SECRET"), hook, route=route) as (gate, server, _):
        first = await post(gate, chat("my SECRET", temperature=0))
        again = await post(gate, chat("my SECRET", temperature=0))
        assert len(server.bodies) == 1, "the second response is a kept one"
        assert first[1]["choices"][0]["message"]["content"] == "it was ###"
        assert again[1]["choices"][0]["message"]["content"] == "it was ###"
        assert (await post(gate, chat("my VETO", temperature=0)))[0] == 400


# -- after the model


async def test_clients_get_whole_responses_without_what_guards_redact() -> None:
    hook = Webhook()
    async with guarded_gateway(replying("my SECRET"), hook, ["Output"]) as (gate, _, _):
        status, response, received = await post(gate, chat("hi"))
    assert status == 200 and response["choices"][0]["message"]["content"] == "my ###"
    assert b"SECRET" not in received, "nor in log probabilities"
    assert (hook.calls[0]["stage"], hook.calls[0]["revision"]) == ("Output", "r1")


async def test_a_blocked_response_is_an_error_before_its_first_byte() -> None:
    async with guarded_gateway(replying("VETO"), Webhook(), ["Output"]) as (gate, _, _):
        status, refused, received = await post(gate, chat("hi"))
        assert (status, refused["error"]["code"]) == (400, "content_blocked") and b"VETO" in received
        assert refused["error"]["message"].startswith("The response was blocked by the guard 'words'")
        assert gate.outcomes() == {"blocked": 1}
        (counts,) = route_reports(gate.balancer)["default/chat"]["samples"]
        events = counts["revisions"]["r1"]["events"]
        assert (events["blocked"], events["bad"], events["redacted"]) == (1, 1, 0)


async def test_streams_are_redacted_within_the_window() -> None:
    tokens = [*"the ", "SE", "CR", "ET", *" is not shown, and what follows is as it was"]
    async with guarded_gateway(streaming(tokens), Webhook(), ["Output"]) as (gate, _, _):
        status, _, received = await post(gate, chat("hi", stream=True))
        assert status == 200 and text_of(received) == "".join(tokens).replace("SECRET", "###")
        assert received.endswith(b"data: [DONE]\n\n") and gate.outcomes() == {"ok": 1}
        (counts,) = route_reports(gate.balancer)["default/chat"]["samples"]
        assert counts["revisions"]["r1"]["events"]["redacted"] == 1


async def test_a_vetoed_stream_ends_with_an_error_and_shows_no_part_of_the_reason() -> None:
    sent: list[str] = []
    tokens = [*"all of this is harmless, but ", "VE", "TO", *("x" for _ in range(3000))]
    async with guarded_gateway(streaming(tokens, 0.001, sent), Webhook(), ["Output"]) as (gate, _, _):
        _, _, received = await post(gate, chat("hi", stream=True))
        text = text_of(received)
        assert "all of this is harmless, but ".startswith(text) and "VE" not in text
        (error,) = [json.loads(line[6:]) for line in received.split(b"\n") if b'"error"' in line]
        assert error["error"]["code"] == "content_blocked" and received.endswith(b"data: [DONE]\n\n")
        assert gate.outcomes() == {"blocked": 1}
        (counts,) = route_reports(gate.balancer)["default/chat"]["samples"]
        assert counts["revisions"]["r1"]["events"]["blocked"] == 1
        assert len(sent) < len(tokens), "the server is stopped"


async def test_a_slow_stream_comes_within_the_window_s_time() -> None:
    """Far fewer tokens than the window has room for: the server waits with the next until the first have come."""
    shown = asyncio.Event()
    async with (
        guarded_gateway(streaming([*"abcdef"], 0.01, waits={"d": shown}), Webhook(), ["Output"]) as (gate, _, _),
        await gate.post(chat("hi", stream=True), CHAT) as response,
        asyncio.timeout(60),
    ):
        assert await response.content.readany()
        shown.set()
        await response.read()


async def test_arguments_of_tool_calls_are_guarded() -> None:
    async def calling(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in ('{"q": "', "SEC", "RET", '"}'):
            call = {"index": 0, "function": {"name": "f", "arguments": piece}}
            chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async with guarded_gateway(calling, Webhook(), ["Output"]) as (gate, _, _):
        _, _, received = await post(gate, chat("hi", stream=True))
    events = [json.loads(line[6:]) for line in received.split(b"\n") if line.startswith(b"data: {")]
    calls = [event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] for event in events]
    assert "".join(calls) == '{"q": "###"}'


async def test_anthropic_s_messages_are_guarded_by_the_same_code() -> None:
    async with guarded_gateway(replying("my SECRET"), Webhook()) as (gate, server, _):
        body = {"model": "chat", "max_tokens": 9, "messages": [{"role": "user", "content": "a SECRET"}]}
        status, message, _ = await post(gate, body, "/v1/messages")
        assert status == 200 and message["content"][0]["text"] == "my ###"
        assert b"SECRET" not in server.bodies[0]


def streaming_bytes(*chunks: bytes, headers: dict[str, str] | None = None, pause_s: float = 0.0) -> Handler:
    """A model server whose stream is these bytes, each with a pause behind it."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **(headers or {})})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(pause_s)
        return response

    return answer


def delta(text: str) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()


STREAMS = {
    "a comment in an event": (b": here\r\ndata: %b\r\n\r\n", {}),
    "a byte order mark": (b"\xef\xbb\xbfdata: %b\n\n", {}),
    "mixed ends of lines": (b"data: {}\n\r\ndata: %b\n\r\n", {}),
    "a list": (b"data: [%b]\n\n", {}),
    "lines without a field": (b"%b\n\n", {}),
    "another encoding": (b"\x1f\x8b%b", {"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("kind", STREAMS)
async def test_no_form_of_a_stream_passes_by_its_guards(kind: str) -> None:
    form, headers = STREAMS[kind]
    model = streaming_bytes(form.replace(b"%b", delta("a SECRET")), headers=headers)
    async with guarded_gateway(model, Webhook(), ["Output"]) as (gate, _, _):
        _, _, received = await post(gate, chat("hi", stream=True))
    assert b"SECRET" not in received and received


async def test_what_guards_cannot_read_passes_where_their_policy_is_ignore() -> None:
    """Also what comes in the same piece behind it."""
    events = [b"data: %b\n\n" % delta("a"), b"data: {what\n\n", b"data: %b\n\n" % delta("b"), b"data: [DONE]\n\n"]
    model, fields = streaming_bytes(b"".join(events)), {"failure_policy": "Ignore"}
    async with guarded_gateway(model, Webhook(), ["Output"], fields=fields) as (gate, _, _):
        _, _, received = await post(gate, chat("hi", stream=True))
    assert received == b"".join(events)


async def test_a_stream_that_is_blocked_while_its_server_is_silent_ends_once(caplog: pytest.LogCaptureFixture) -> None:
    model = streaming_bytes(b"data: %b\n\n" % delta("VETO"), pause_s=0.6)
    async with guarded_gateway(model, Webhook(), ["Output"]) as (gate, _, _):
        _, _, received = await post(gate, chat("hi", stream=True))
        await gate.edge.idle()
        assert received.count(b"content_blocked") == 1 and gate.outcomes() == {"blocked": 1}
    assert "a request failed inside of the gateway" not in caplog.text


async def test_a_guarded_stream_is_not_taken_up_in_the_middle_of_a_text() -> None:
    """Its rest could be the rest of what guards find in the whole."""
    place = {"Last-Event-ID": f"r1.1-1-{'0' * 32}.7.0123abcd.ffff"}
    async with guarded_gateway(streaming(["RET"]), Webhook(), ["Output"]) as (gate, server, _):
        status, refused, _ = await post(gate, chat("hi", stream=True), headers=place)
        assert (status, refused["error"]["code"]) == (410, "stream_gone") and not server.bodies


async def test_a_whole_response_of_any_good_status_is_guarded() -> None:
    async def created(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.json_response([{"generated_text": "my SECRET"}], status=201)

    async with guarded_gateway(created, Webhook(), ["Output"]) as (gate, _, _):
        _, _, received = await post(gate, chat("hi"))
    assert b"my ###" in received and b"SECRET" not in received


# -- guards that fail


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response()


async def giant(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b" " * (1 << 20))


async def garbage(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"\x00<html>")


async def error(request: web.Request) -> web.StreamResponse:
    return web.Response(status=500, body=b'{"action": "allow"}')


async def redirect(request: web.Request) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": "http://metadata.internal/"})


def answering(**result: Any) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(result)

    return answer


_SPAN = {"path": "messages[0].content", "start": 0, "end": 1}
FAILING = {
    "hang": (hang, "within 100 ms"),
    "giant": (giant, "more than 256 KiB"),
    "garbage": (garbage, "not as its protocol"),
    "error": (error, "status 500"),
    "redirect": (redirect, "status 307"),
    "unknown action": (answering(action="pass"), "unknown action"),
    "unknown field": (answering(action="allow", score=1), "not as its protocol"),
    "spans that overlap": (answering(action="redact", spans=[_SPAN, _SPAN]), "overlap"),
    "a span outside": (answering(action="redact", spans=[{**_SPAN, "end": 99}]), "outside of the texts"),
    "another path": (answering(action="redact", spans=[{**_SPAN, "path": "prompt"}]), "outside of the texts"),
    "another version": (answering(action="allow", version=2), "version 2"),
    "a version of many digits": (answering(action="allow", version=10**4000), "not as its protocol"),
    "spans of what it allows": (answering(action="allow", spans=[_SPAN]), "spans without"),
}


@pytest.mark.parametrize("kind", FAILING)
async def test_nothing_passes_a_guard_that_fails_unless_its_policy_is_ignore(kind: str) -> None:
    hook, why = FAILING[kind]
    for policy, expected in (("Fail", 503), ("Ignore", 200)):
        async with upstream(replying("fine")) as server, upstream(hook) as webhook, gateway() as gate:
            reach_loopback(gate)
            one = guard(webhook.url, ["Input"], failure_policy=policy)
            object.__setattr__(one, "timeout_milliseconds", 100 if kind == "hang" else 2000)
            gate.balancer.publish(guarded([one], ("r1", 100, [server.url])))
            status, refused, _ = await post(gate, chat("hello"))
            assert status == expected and bool(server.bodies) == (policy == "Ignore")
            if policy == "Fail":
                assert refused["error"]["code"] == "guard_failed" and why in refused["error"]["message"]
                assert gate.outcomes() == {"guard_failed": 1}
            assert len(webhook.bodies) == 1, "no second call, and no redirect is followed"


async def test_a_guard_that_fails_ends_a_stream_unless_its_policy_is_ignore() -> None:
    for policy in ("Fail", "Ignore"):
        fields = {"failure_policy": policy}
        async with guarded_gateway(streaming([*"hello there"]), error, ["Output"], fields=fields) as (gate, _, _):
            _, _, received = await post(gate, chat("hi", stream=True))
            if policy == "Fail":
                assert text_of(received) == "" and b"guard_failed" in received
                assert gate.outcomes() == {"guard_failed": 1}
            else:
                assert text_of(received) == "hello there" and gate.outcomes() == {"ok": 1}


async def test_a_host_that_is_not_listed_gets_nothing() -> None:
    async with upstream(Webhook()) as webhook, upstream(replying("x")) as server, gateway() as gate:
        gate.balancer.publish(guarded([guard(webhook.url)], ("r1", 100, [server.url])))
        status, refused, _ = await post(gate, chat("hi"))
        assert status == 503 and "--guard-hosts" in refused["error"]["message"] and not webhook.bodies


async def test_a_kept_connection_that_its_server_closed_is_no_failure() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n"
    async with raw_upstream(head + b'{"action":"allow"}') as url, upstream(replying("x")) as server, gateway() as gate:
        reach_loopback(gate)
        gate.balancer.publish(guarded([guard(url, ["Input"])], ("r1", 100, [server.url])))
        for _ in range(3):
            assert (await post(gate, chat("hi")))[0] == 200


async def test_a_client_has_its_share_of_the_calls() -> None:
    hook = Webhook(delay_s=0.3)
    keys = [make_key("aaaaaa"), make_key("bbbbbb")]
    tenants = [tenant("greedy", keys[0]), tenant("other", keys[1])]
    settings: dict[str, Any] = {"guard_max_inflight": 8, "max_client_percentage": 50}
    async with guarded_gateway(replying("x"), hook, ["Input"], tenants=tenants, **settings) as (gate, _, _):
        greedy = [asyncio.create_task(post(gate, chat("hi"), headers=bearer(keys[0]))) for _ in range(12)]
        await asyncio.sleep(0.1)
        assert (await post(gate, chat("hi"), headers=bearer(keys[1])))[0] == 200
        statuses = [(await task)[0] for task in greedy]
        assert 503 in statuses and statuses.count(200) <= 4


async def test_a_webhook_gets_the_key_of_a_mounted_secret(tmp_path: Path) -> None:
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard" / "token").write_text("s3cret\n")
    hook, fields = Webhook(), {"secret_ref": GuardSecretRef("guard")}
    async with guarded_gateway(replying("x"), hook, ["Input"], fields=fields) as (gate, _, _):
        reach_loopback(gate, str(tmp_path))
        assert (await post(gate, chat("hi")))[0] == 200
    with pytest.raises(GuardFailed, match="not mounted"):
        GuardSecrets(str(tmp_path)).token(GuardSecretRef("guard", "other"))
    assert hook.keys == ["Bearer s3cret"]


# -- whose guards


@pytest.fixture
async def hooks() -> AsyncIterator[tuple[Webhook, str]]:
    hook = Webhook()
    async with upstream(hook) as server:
        yield hook, server.url


async def test_guards_of_the_tenant_come_to_those_of_the_route(hooks: tuple[Webhook, str]) -> None:
    hook, url = hooks
    key = make_key()
    known = replace(tenant("team", key), guards=(guard(url, ["Input"], name="of-tenant"),))
    async with guarded_gateway(replying("x"), Webhook(), ["Output"], tenants=[known]) as (gate, _, webhook):
        status, refused, _ = await post(gate, chat("VETO"), headers=bearer(key))
        assert status == 400 and "'of-tenant'" in refused["error"]["message"] and not webhook.bodies
        assert [call["tenant"] for call in hook.calls] == ["team"]
        samples = {
            (sample.labels["owner"], sample.labels["action"]): sample.value
            for family in gate.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "slipway_gateway_guard_calls_total"
        }
        assert samples == {("Tenant/team", "block"): 1}
