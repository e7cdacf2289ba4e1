"""`/v1/messages`: requests become chat completions, and responses messages, whole and in events."""

import asyncio
import base64
import json
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from slipway_gateway.anthropic_api.chat_request import chat_body, tokenize_body
from slipway_gateway.anthropic_api.endpoint import MAX_BLOCKS
from slipway_gateway.anthropic_api.message import (
    MAX_CALLS,
    MAX_RESPONSE_BYTES,
    MessageEvents,
    NoCompletion,
    error_message,
    whole_message,
)
from slipway_gateway.anthropic_api.schema import COUNT_TOKENS, MESSAGES
from slipway_gateway.wire.errors import RequestError
from slipway_gateway.wire.translated_events import MAX_LINE_BYTES
from tests.gateway.harness import gateway, upstream

USER = {"role": "user", "content": "Is it dark?"}
USAGE = {"prompt_tokens": 20, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 16}}
COUNTED = {"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 16, "output_tokens": 7}
WEATHER = {"name": "weather", "description": "of a city", "input_schema": {"type": "object"}}


def chat(**fields: Any) -> dict[str, Any]:
    """The body of the chat completion that a request becomes."""
    request = {"model": "m", "max_tokens": 9, "messages": [USER]} | fields
    body: dict[str, Any] = json.loads(chat_body(MESSAGES.decode(json.dumps(request))))
    return body


def messages(*given: dict[str, Any]) -> Any:
    return chat(messages=list(given))["messages"]


def test_a_plain_request() -> None:
    assert chat() == {"model": "m", "messages": [USER], "max_tokens": 9}


def test_fields_have_the_names_of_a_chat_completion() -> None:
    body = chat(
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        stop_sequences=["\n"],
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stream=True,
        metadata={"user_id": "u1"},
        thinking={"type": "enabled", "budget_tokens": 2048},
        service_tier="auto",
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    )
    schema = {"name": "output", "schema": {"type": "object"}, "strict": True}
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, USER],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "stop": ["\n"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "u1",
        "response_format": {"type": "json_schema", "json_schema": schema},
    }


def test_a_call_and_its_result_go_back_as_a_call_and_a_message_of_the_tool() -> None:
    called = [
        {"type": "thinking", "thinking": "I look.", "signature": ""},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo", "days": 2}},
    ]
    result = [
        {"type": "text", "text": "And tomorrow?"},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "no"}], "is_error": True},
    ]
    assistant, tool, user = messages({"role": "assistant", "content": called}, {"role": "user", "content": result})
    call = assistant.pop("tool_calls")[0]
    assert json.loads(call["function"].pop("arguments")) == {"city": "Oslo", "days": 2}
    assert call == {"id": "t1", "type": "function", "function": {"name": "weather"}}
    assert assistant == {"role": "assistant", "content": "Let me see.", "reasoning_content": "I look."}
    assert tool == {"role": "tool", "tool_call_id": "t1", "content": "Error: no"}
    assert user == {"role": "user", "content": "And tomorrow?"}


def test_images_and_documents_become_parts() -> None:
    data = base64.b64encode(b"png").decode()
    given = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "document", "title": "Log", "source": {"type": "text", "media_type": "text/plain", "data": "calm"}},
    ]
    (message,) = messages({"role": "user", "content": given})
    urls = [part["image_url"]["url"] for part in message["content"][:2]]
    assert urls == [f"data:image/png;base64,{data}", "https://example.org/a.png"]
    assert message["content"][2] == {"type": "text", "text": "Log\ncalm"}


def test_tools_and_what_the_model_must_do_with_them() -> None:
    function = {"name": "weather", "description": "of a city", "parameters": {"type": "object"}}
    for choice, expected in (
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"tool_choice": "required", "parallel_tool_calls": False}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ):
        body = chat(tools=[WEATHER], tool_choice=choice)
        assert body.pop("tools") == [{"type": "function", "function": function}]
        assert {name: body[name] for name in expected} == expected


def test_an_answer_that_the_client_began_goes_on() -> None:
    body = chat(messages=[USER, {"role": "assistant", "content": "It is"}])
    assert body["continue_final_message"] is True and body["add_generation_prompt"] is False
    body = chat(messages=[{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]}])
    assert "continue_final_message" not in body


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"container": "c1"}, "container"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
        ({"tools": [{"name": "f"}]}, "tools"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "t", "name": "f"}]}]}, "messages"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        chat(**fields)
    assert refused.value.status == 400 and refused.value.param == param


def test_null_means_absent() -> None:
    optional = ("system", "tools", "tool_choice", "stream", "stop_sequences", "temperature", "top_p", "top_k")
    optional += ("metadata", "output_config", "mcp_servers", "container", "thinking", "service_tier")
    assert chat(**dict.fromkeys(optional)) == chat()


def test_the_prompt_alone_is_counted() -> None:
    request = {"model": "m", "messages": [USER], "tools": [WEATHER], "tool_choice": {"type": "auto"}}
    body = json.loads(tokenize_body(COUNT_TOKENS.decode(json.dumps(request))))
    assert body.keys() == {"model", "messages", "tools"}


# -- responses


def completion(message: dict[str, Any], **choice: Any) -> bytes:
    choices = [{"index": 0, "message": message, "finish_reason": "stop"} | choice]
    return json.dumps({"id": "chatcmpl-1", "model": "m", "choices": choices, "usage": USAGE}).encode()


def call(arguments: str, index: int = 0) -> dict[str, Any]:
    return {"index": index, "id": f"c{index}", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_a_whole_message() -> None:
    message = json.loads(whole_message(completion({"role": "assistant", "content": "No.", "reasoning": "Hm."}), ()))
    assert message == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "text", "text": "No."},
        ],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": COUNTED,
    }


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"finish_reason": "length"}, ("max_tokens", None)),
        ({"finish_reason": "content_filter"}, ("refusal", None)),
        ({"stop_reason": "\n"}, ("stop_sequence", "\n")),
        ({"stop_reason": 2}, ("end_turn", None)),
        ({"stop_reason": "<|end|>"}, ("end_turn", None)),
    ],
)
def test_the_reason_of_the_end(choice: dict[str, Any], expected: tuple[str, str | None]) -> None:
    message = json.loads(whole_message(completion({"content": "a"}, **choice), ["\n"]))
    assert (message["stop_reason"], message["stop_sequence"]) == expected


def test_calls_are_blocks_also_where_one_was_cut() -> None:
    body = completion({"content": None, "tool_calls": [call('{"a": 1}'), call('{"a": "x', 1)]}, finish_reason="length")
    first, cut = json.loads(whole_message(body, ()))["content"]
    assert first == {"type": "tool_use", "id": "c0", "name": "f", "input": {"a": 1}}
    assert cut["input"] == {"arguments": '{"a": "x'}


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices": [{}]}', b"\xff", b"[" * 100_000])
def test_what_is_no_completion_is_an_error(body: bytes) -> None:
    with pytest.raises(NoCompletion):
        whole_message(body, ())


def grown(work: Callable[[], object]) -> int:
    """Bytes of objects that were alive at once while `work` ran, whatever the machine."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def listed(before: str, after: str, piece: str = "{}") -> bytes:
    """JSON of 1 MiB with a list of small pieces."""
    count = (1 << 20) // (len(piece) + 1)
    return (before + ",".join([piece] * count) + after).encode()[:MAX_LINE_BYTES]


def no_message(body: bytes) -> None:
    with pytest.raises(NoCompletion):
        whole_message(body, ())


def test_no_objects_are_made_of_what_a_server_sends_too_much_of() -> None:
    calls = listed('{"choices":[{"message":{"tool_calls":[', "]}}]}")
    arguments = json.dumps({str(n): [] for n in range(1 << 16)})
    for work in (
        lambda: no_message(calls),
        lambda: no_message(listed('{"choices":[', "]}")),
        lambda: error_message(calls, 400),
        lambda: error_message(listed('{"error":"a","choices":[', "]}"), 400),
        lambda: whole_message(completion({"tool_calls": [call(arguments)]}), ()),
        lambda: MessageEvents(()).feed(b"data: " + calls.replace(b"message", b"delta") + b"\n\n"),
    ):
        assert grown(work) < 12 << 20, "some copies of the bytes, and no object for each value"


def test_a_message_has_a_bounded_number_of_calls() -> None:
    most = [call("{}", index) for index in range(MAX_CALLS)]
    assert len(json.loads(whole_message(completion({"tool_calls": most}), ()))["content"]) == MAX_CALLS
    no_message(completion({"tool_calls": [*most, call("{}")]}))
    assert events(MessageEvents(()).feed(chunk({"tool_calls": most})))[-1]["index"] == MAX_CALLS - 1
    stream = MessageEvents(())
    assert [event["type"] for event in events(stream.feed(chunk({"tool_calls": [*most, call("{}")]})))] == ["error"]
    assert stream.is_unusable


# -- streams


def chunk(delta: dict[str, Any] | None = None, **fields: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": fields.pop("finish", None)}]
    return b"data: " + json.dumps({"id": "chatcmpl-1", "model": "m", "choices": choices} | fields).encode() + b"\n\n"


STREAM = b"".join(
    (
        b": waiting\n\n",
        b"id: 1\n" + chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "Hm", "reasoning": "Hm"}),
        chunk({"content": "Ñ"}),
        chunk({"content": "o."}),
        chunk({"tool_calls": [call("")]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}),
        chunk({"tool_calls": [call("{}", 1)]}),
        chunk({}, finish="tool_calls"),
        chunk(usage=USAGE),
        b"data: [DONE]\n\n",
    )
)


def events(written: bytes) -> list[dict[str, Any]]:
    found = []
    for event in written.decode().strip().split("\n\n"):
        kind, data = event.split("\n")
        fields = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {fields['type']}"
        found.append(fields)
    return found


def test_a_stream_has_the_events_of_a_message() -> None:
    found = events(MessageEvents(()).feed(STREAM))
    assert [(event["type"], event.get("index")) for event in found] == [
        ("ping", None),
        ("message_start", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_delta", 1),
        ("content_block_stop", 1),
        ("content_block_start", 2),
        ("content_block_delta", 2),
        ("content_block_stop", 2),
        ("content_block_start", 3),
        ("content_block_delta", 3),
        ("content_block_stop", 3),
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None} and found[-2]["usage"] == COUNTED
    assert [event["delta"] for event in found if event["type"] == "content_block_delta"] == [
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "text_delta", "text": "Ñ"},
        {"type": "text_delta", "text": "o."},
        {"type": "input_json_delta", "partial_json": '{"a": 1}'},
        {"type": "input_json_delta", "partial_json": "{}"},
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_a_stream_may_be_cut_anywhere(size: int) -> None:
    whole, pieces = MessageEvents(()).feed(STREAM), MessageEvents(())
    assert b"".join(pieces.feed(STREAM[at : at + size]) for at in range(0, len(STREAM), size)) == whole
    assert pieces.end() == b""


@pytest.mark.parametrize(
    "broken",
    [
        b'data: {"error": {"message": "gone", "code": "x"}}\n\n',
        b"data: {\n\n",
        b"data: [DONE]\n\n",
        b"x" * (MAX_LINE_BYTES + 1),
        b"",
    ],
)
def test_a_broken_stream_ends_with_one_error(broken: bytes) -> None:
    stream = MessageEvents(())
    found = events(stream.feed(broken) + stream.feed(chunk({"content": "late"})) + stream.end())
    errors = [event for event in found if event["type"] == "error"]
    assert len(errors) == 1 and errors[0]["error"]["type"] == "api_error" and found[-1] is errors[0]


def test_a_long_line_is_too_long_in_one_piece_too() -> None:
    stream = MessageEvents(())
    line = b"data: " + b" " * MAX_LINE_BYTES + chunk({"content": "a"})[6:]
    assert [event["type"] for event in events(stream.feed(line))] == ["error"] and stream.is_unusable


def test_many_comments_in_one_piece_are_one_ping() -> None:
    stream = MessageEvents(())
    assert [event["type"] for event in events(stream.feed(b":\n" * 1000))] == ["ping"]
    assert [event["type"] for event in events(stream.feed(b":\n\n"))] == ["ping"]


def test_a_stream_without_its_last_event_is_whole_if_the_answer_had_ended() -> None:
    stream = MessageEvents(())
    assert events(stream.feed(chunk({"content": "a"}, finish="length")) + stream.end())[-1]["type"] == "message_stop"


# -- through the gateway

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUEST = {"model": "chat", "max_tokens": 9, "messages": [USER]}


async def post(handler: Handler, body: Any, path: str = "/v1/messages", **options: Any) -> tuple[int, Any, Any, Any]:
    """Status, headers, text and what the server got."""
    async with upstream(handler) as server, gateway() as door:
        door.route(("r1", 100, [server.url]))
        async with await door.post(body, path, **options) as response:
            text = await response.text()
            outcomes = door.outcomes()
    got = (server.seen[0].path, server.seen[0].headers, json.loads(server.bodies[0])) if server.seen else outcomes
    return response.status, response.headers, text, got


async def test_a_message_goes_through_the_gateway_as_a_chat() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(body=completion({"content": "No."}), content_type="application/json")

    status, headers, text, (path, sent, body) = await post(serve, REQUEST, headers={"x-api-key": "secret"})
    assert status == 200 and json.loads(text)["content"] == [{"type": "text", "text": "No."}]
    assert headers["request-id"] == headers["X-Request-Id"] and headers["X-Slipway-Revision"] == "r1"
    assert path == "/v1/chat/completions" and body == {"model": "chat", "messages": [USER], "max_tokens": 9}
    assert "x-api-key" not in sent and "Authorization" not in sent


async def test_a_stream_goes_through_the_gateway() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for at in range(0, len(STREAM), 50):
            await out.write(STREAM[at : at + 50])
            await asyncio.sleep(0)
        return out

    status, headers, text, _ = await post(serve, REQUEST | {"stream": True})
    assert status == 200 and headers["Content-Type"] == "text/event-stream"
    assert text.encode() == MessageEvents(()).feed(STREAM)


async def test_errors_have_anthropics_shape() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too long", "code": "x"}}, status=400)

    status, _, text, _ = await post(refuse, REQUEST)
    expected = {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}
    assert status == 400 and json.loads(text) == expected
    for body, kind, code in (
        (REQUEST | {"model": "other"}, "not_found_error", 404),
        ({"model": "chat", "messages": [USER]}, "invalid_request_error", 400),
        (REQUEST | {"messages": [USER] * (MAX_BLOCKS + 1)}, "invalid_request_error", 400),
        (b"{", "invalid_request_error", 400),
    ):
        status, _, text, outcomes = await post(refuse, body)
        assert (status, json.loads(text)["error"]["type"]) == (code, kind) and sum(outcomes.values()) == 1


async def test_tokens_of_a_prompt_are_counted_by_the_server() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        return web.json_response({"count": 12, "max_model_len": 64, "tokens": [1] * 12})

    body = {"model": "chat", "messages": [USER], "system": "Be brief."}
    status, _, text, (path, _, sent) = await post(serve, body, "/v1/messages/count_tokens")
    assert status == 200 and json.loads(text) == {"input_tokens": 12}
    assert path == "/tokenize" and [message["role"] for message in sent["messages"]] == ["system", "user"]


async def test_a_server_that_answers_something_else_is_an_error() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(text="hello")

    status, _, text, _ = await post(serve, REQUEST)
    assert status == 502 and json.loads(text)["error"]["type"] == "api_error"


LONG = completion({"content": "a" * MAX_RESPONSE_BYTES})
CALLS = completion({"tool_calls": [call("{}")] * (MAX_CALLS + 1)})


@pytest.mark.parametrize("body", [LONG, CALLS], ids=["long", "calls"])
@pytest.mark.parametrize("status", [200, 400])
async def test_a_response_that_is_too_much_is_one_error_of_the_server(body: bytes, status: int) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, content_type="application/json")

    async with upstream(serve) as server, gateway() as door:
        door.route(("r1", 100, [server.url]))
        async with await door.post(REQUEST, "/v1/messages") as response:
            answer = await response.json()
        if status == 400 and body is CALLS:
            assert response.status == 400 and answer["error"]["type"] == "invalid_request_error"
            return
        assert response.status == 502 and answer["error"]["type"] == "api_error"
        assert door.outcomes() == {"upstream_error": 1}


async def test_an_event_that_is_too_much_ends_its_stream_as_an_error_of_the_server() -> None:
    left = asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        await out.write(chunk({"content": "a"}) + chunk({"tool_calls": [call("{}")] * (MAX_CALLS + 1)}))
        try:
            while True:
                await out.write(chunk({"content": "late"}))
                await asyncio.sleep(0.01)
        finally:
            left.set()

    async with upstream(serve) as server, gateway() as door:
        door.route(("r1", 100, [server.url]))
        async with asyncio.timeout(30), await door.post(REQUEST | {"stream": True}, "/v1/messages") as response:
            found = events(await response.read())
            await left.wait()
        assert response.status == 200 and found[-1]["type"] == "error"
        assert door.outcomes() == {"upstream_error": 1}
