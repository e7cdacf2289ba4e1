"""TGI's `/generate`, `/generate_stream` and `/`: requests become completions, and responses generations."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from slipway_gateway.forwarding.translation import TranslatingWriter
from slipway_gateway.limits.budget import unlimited
from slipway_gateway.routing.table import RevisionEndpoints, Route, build
from slipway_gateway.tgi_api.completion_request import completion_body
from slipway_gateway.tgi_api.generation import (
    MAX_LINE_BYTES,
    MAX_RESPONSE_BYTES,
    MAX_TEXT_BYTES,
    GenerationEvents,
    NoCompletion,
    Wanted,
    error_message,
    whole_generation,
)
from slipway_gateway.tgi_api.schema import REQUEST
from slipway_gateway.wire.errors import RequestError
from tests.gateway.guards.test_json_guard import json_guard, loaded
from tests.gateway.guards.webhooks import Webhook, guarded, guarded_gateway
from tests.gateway.harness import gateway, table, upstream
from tests.gateway.tenants import PEPPER, bearer, make_key, tenant

USAGE = {"prompt_tokens": 4, "completion_tokens": 3}


def completed(parameters: Any = None, *, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """The body of the completion that a request becomes."""
    request = {"inputs": "Is it dark?"} | ({} if parameters is None else {"parameters": parameters}) | fields
    body: dict[str, Any] = json.loads(completion_body(REQUEST.decode(json.dumps(request)), "m", stream=stream))
    return body


def test_without_parameters_tokens_are_drawn_as_in_tgi() -> None:
    assert completed() == {"model": "m", "prompt": "Is it dark?", "max_tokens": 100}


def test_without_a_parameter_of_draws_the_likeliest_tokens_are_taken() -> None:
    assert completed({}) == {"model": "m", "prompt": "Is it dark?", "max_tokens": 100, "temperature": 0}
    assert completed({"do_sample": False, "repetition_penalty": 1.1})["temperature"] == 0
    for drawn in ({"do_sample": True}, {"top_k": 5}, {"top_p": 0.5}):
        assert "temperature" not in completed(drawn)
    assert completed({"do_sample": False, "temperature": 0.5})["temperature"] == 0.5


def test_parameters_have_the_names_of_a_completion() -> None:
    parameters = {
        "max_new_tokens": 7, "do_sample": True, "temperature": 0.5, "top_k": 40, "top_p": 0.9, "seed": 3,
        "repetition_penalty": 1.2, "frequency_penalty": 0.1, "stop": ["\n"], "grammar": None, "details": True,
        "return_full_text": True, "best_of": 1, "watermark": False, "truncate": None, "typical_p": 1.0,
        "top_n_tokens": 0, "decoder_input_details": False, "adapter_id": None,
    }  # fmt: skip
    assert completed(parameters, stream=True) == {
        "model": "m", "prompt": "Is it dark?", "max_tokens": 7, "temperature": 0.5, "top_k": 40, "top_p": 0.9,
        "repetition_penalty": 1.2, "frequency_penalty": 0.1, "seed": 3, "stop": ["\n"],
        "include_stop_str_in_output": True, "stream": True, "stream_options": {"include_usage": True}, "logprobs": 0,
        "return_token_ids": True,
    }  # fmt: skip


def test_seeds_of_64_bits_are_those_of_engines_whose_numbers_have_a_sign() -> None:
    found = [completed({"seed": seed})["seed"] for seed in (0, 2**63 - 1, 2**63, 2**64 - 1)]
    assert found == [0, 2**63 - 1, -(2**63), -1]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "json", "value": SCHEMA},
        {"type": "json", "value": json.dumps(SCHEMA)},
        {"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}},
    ],
)
def test_a_schema_is_the_format_of_the_response(grammar: Any) -> None:
    schema = {"name": "output", "schema": SCHEMA, "strict": True}
    assert completed({"grammar": grammar})["response_format"] == {"type": "json_schema", "json_schema": schema}


def test_a_regular_expression_is_vllms_field() -> None:
    assert completed({"grammar": {"type": "regex", "value": "[ab]+"}})["structured_outputs"] == {"regex": "[ab]+"}


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"watermark": True}, "watermark"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"top_n_tokens": 5}, "top_n_tokens"),
        ({"decoder_input_details": True}, "decoder_input_details"),
        ({"truncate": 10}, "truncate"),
        ({"typical_p": 0.9}, "typical_p"),
        ({"adapter_id": "a"}, "adapter_id"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -1}, "seed"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 1.5}, "max_new_tokens"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"stop": "a"}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"num_beams": 3}, "num_beams"),
        ({"grammar": {"type": "ebnf", "value": "x"}}, "grammar"),
        ({"grammar": {"type": "regex", "value": {}}}, "grammar"),
        ({"grammar": {"type": "json", "value": 3}}, "grammar"),
        ({"grammar": {"type": "json", "value": "{"}}, "grammar"),
        ({"grammar": {"type": "json", "value": "[]"}}, "grammar"),
        ({"grammar": {"type": "json_schema", "value": "{}"}}, "grammar"),
        ({"grammar": {"type": "json_schema", "value": {"schema": 1}}}, "grammar"),
        ("fast", "parameters"),
    ],
)
def test_what_has_no_counterpart_or_no_valid_value_is_refused_by_name(parameters: Any, named: str) -> None:
    with pytest.raises((RequestError, msgspec.ValidationError), match=named):
        completed(parameters)


@pytest.mark.parametrize("inputs", [None, 3, [], ["a"], {}, ""])
def test_inputs_are_a_text(inputs: Any) -> None:
    with pytest.raises(RequestError, match="inputs") as refusal:
        completed(inputs=inputs)
    assert (refusal.value.status, refusal.value.param) == (422, "inputs")


# -- whole


def completion(text: str = "No.", finish: str | None = "length", **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None} | more
    return json.dumps({"id": "cmpl-1", "model": "chat", "choices": [choice], "usage": USAGE}).encode()


def generation(body: bytes, **wanted: Any) -> Any:
    return json.loads(whole_generation(body, Wanted(**wanted)))


TOKENS: dict[str, Any] = {
    "logprobs": {
        "tokens": ["N", "o.", "</s>"],
        "token_logprobs": [-0.5, -0.25, -1],
        "text_offset": [0, 1, 3],
        "top_logprobs": [{}, {}, {}],
    },
    "token_ids": [11, 12, 2],
}
FOUND = [{"id": 11, "text": "N", "logprob": -0.5, "special": False},
         {"id": 12, "text": "o.", "logprob": -0.25, "special": False},
         {"id": 2, "text": "</s>", "logprob": -1.0, "special": True}]  # fmt: skip


def test_a_whole_generation() -> None:
    assert generation(completion()) == {"generated_text": "No."}


def test_details_have_the_tokens_and_why_they_ended() -> None:
    details = {"finish_reason": "eos_token", "generated_tokens": 3, "seed": 5, "prefill": [], "tokens": FOUND}
    assert generation(completion(finish="stop", **TOKENS), details=True, seed=5)["details"] == details


@pytest.mark.parametrize(
    ("text", "finish", "stop", "reason"),
    [
        ("No.", "length", (), "length"),
        ("No.", "length", (".",), "length"),
        ("No.", "stop", ("x", "o."), "stop_sequence"),
        ("No.", "stop", ("x",), "eos_token"),
        ("", "stop", ("x",), "eos_token"),
    ],
)
def test_reasons_of_an_end(text: str, finish: str, stop: tuple[str, ...], reason: str) -> None:
    found = generation(completion(text, finish), stop=stop, details=True)
    assert found["details"]["finish_reason"] == reason


def test_what_an_engine_does_not_report_is_not_made_up() -> None:
    found = generation(completion(token_ids=[11, 12]), details=True)["details"]
    assert found["tokens"] == [{"id": id, "text": "", "logprob": None, "special": False} for id in (11, 12)]
    assert generation(completion(), details=True)["details"]["tokens"] == [] and found["generated_tokens"] == 3


def test_the_full_text_has_the_inputs_before_it() -> None:
    request = REQUEST.decode(b'{"inputs": "\\u00e9\\"\\n", "parameters": {"return_full_text": true}}')
    assert generation(completion('"b'), full_text=request.inputs)["generated_text"] == 'é"\n"b'


@pytest.mark.parametrize("body", [b"hello", b"{}", b'{"choices":[]}', b'{"choices":[3]}', completion(finish=None)])
def test_another_response_is_no_completion(body: bytes) -> None:
    with pytest.raises(NoCompletion):
        generation(body, details=True)


def test_errors_of_servers_have_tgis_name_of_the_parameter() -> None:
    def named(message: str, param: str | None) -> str:
        return error_message(json.dumps({"error": {"message": message, "param": param}}).encode(), 400)

    assert named("too long", "max_tokens") == "max_new_tokens: too long"
    assert named("too high", "temperature") == "too high" and named("bad", None) == "bad"
    assert "400" in error_message(b"oops", 400) and error_message(b'{"error": "busy"}', 503) == "busy"


# -- in events


def chunk(text: str, ids: list[int], finish: str | None = None, shown: list[str] | None = None) -> bytes:
    logprobs = {"tokens": shown or [text], "token_logprobs": [-0.5] * len(ids)}
    choice = {"index": 0, "text": text, "token_ids": ids, "logprobs": logprobs, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "cmpl-1", "choices": [choice], "usage": None}).encode() + b"\n\n"


ENDING = b'data: {"choices":[],"usage":' + json.dumps(USAGE).encode() + b"}\n\ndata: [DONE]\n\n"
STREAM = (
    chunk("N", [11])
    + b":\n"
    + chunk("", [12], shown=["\ufffd"])
    + chunk("ö", [13], shown=["\ufffd"])
    + chunk("a b", [14, 15], shown=["a", " b"])
    + chunk("", [2], "stop", ["</s>"])
    + ENDING
)


def events(data: bytes) -> list[dict[str, Any]]:
    lines = [line for line in data.split(b"\n") if line and not line.startswith(b":")]
    assert all(line.startswith(b"data:") for line in lines)
    return [json.loads(line[5:]) for line in lines]


def streamed(data: bytes, **wanted: Any) -> list[dict[str, Any]]:
    stream = GenerationEvents(Wanted(**wanted))
    return events(stream.feed(data) + stream.end())


def test_a_stream_has_an_event_for_each_token_and_the_last_one_has_the_whole() -> None:
    found = streamed(STREAM, seed=7)
    assert [event["index"] for event in found] == [1, 2, 3, 4, 5, 6]
    assert [event["token"]["id"] for event in found] == [11, 12, 13, 14, 15, 2]
    assert [event["token"]["text"] for event in found] == ["N", "", "ö", "a", " b", "</s>"]
    assert [event["token"]["special"] for event in found] == [False] * 5 + [True]
    assert all(event["generated_text"] is None and event["details"] is None for event in found[:-1])
    assert found[-1]["generated_text"] == "Nöa b" and found[-1]["details"] == {
        "finish_reason": "eos_token", "generated_tokens": 3, "input_length": 4, "seed": 7,
    }  # fmt: skip


def test_the_last_text_is_no_end_token() -> None:
    (only,) = streamed(chunk("tail", [9], "stop", ["x"]) + ENDING)
    assert only["token"] == {"id": 9, "text": "tail", "logprob": -0.5, "special": False}
    (only,) = streamed(chunk("tail", [9], "stop", ["x"]) + ENDING, stop=("il",))
    assert only["details"]["finish_reason"] == "stop_sequence"


def test_events_whose_tokens_are_unknown_have_their_text() -> None:
    """As those of a guard that changed them, and of engines without token ids."""
    plain = b'data: {"choices":[{"text":"ab","logprobs":null}]}\n\n'
    last = b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n'
    found = streamed(plain + last)
    assert found[0]["token"] == {"id": None, "text": "ab", "logprob": None, "special": False}
    assert found[1]["generated_text"] == "ab" and found[1]["details"]["input_length"] is None


def test_several_tokens_whose_texts_are_not_their_own_share_one() -> None:
    (one, two) = streamed(chunk("é", [1, 2], "length", ["\ufffd", "\ufffd"]) + ENDING)
    assert (one["token"]["text"], two["token"]["text"]) == ("", "é")


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_a_stream_may_be_cut_anywhere(size: int) -> None:
    whole, pieces = GenerationEvents(Wanted()).feed(STREAM), GenerationEvents(Wanted())
    found = b"".join(pieces.feed(STREAM[at : at + size]) for at in range(0, len(STREAM), size))
    assert found == whole and pieces.end() == b""


@pytest.mark.parametrize(
    "broken",
    [
        b'data: {"error": {"message": "gone", "code": "x"}}\n\n',
        b'data: {"error": "gone"}\n\n',
        b"data: {\n\n",
        b"data: [DONE]\n\n",
        b'data: {"choices":[{"token_ids":["x"]}]}\n\n',
        chunk("a", [1], "error") + ENDING,
        b"x" * (MAX_LINE_BYTES + 1),
        b"",
    ],
)
def test_a_broken_stream_ends_with_one_error(broken: bytes) -> None:
    stream = GenerationEvents(Wanted())
    found = events(stream.feed(broken) + stream.feed(chunk("late", [1])) + stream.end())
    errors = [event for event in found if "error" in event]
    assert len(errors) == 1 and errors[0]["error_type"] == "generation" and found[-1] is errors[0]


def test_the_text_of_a_stream_is_bounded() -> None:
    stream, piece = GenerationEvents(Wanted()), chunk("a" * (1 << 20), [1], shown=["a"])
    for _ in range(MAX_TEXT_BYTES >> 20):
        assert "error" not in events(stream.feed(piece))[0]
    assert "error" in events(stream.feed(piece))[0] and stream.is_unusable


def test_the_text_of_a_stream_is_counted_in_bytes() -> None:
    stream = GenerationEvents(Wanted())
    stream.feed(chunk("\N{SNOWMAN}" * 10, [1]))
    assert stream.held_bytes == 30


def test_the_beginning_of_a_line_is_in_memory() -> None:
    stream = GenerationEvents(Wanted())
    stream.feed(b"data: " + b"x" * 1000)
    assert stream.held_bytes == 1006
    stream.feed(b"\n")
    assert stream.held_bytes == 0


async def test_the_beginning_of_a_line_counts_for_its_client() -> None:
    account = unlimited()
    request = make_mocked_request("POST", "/generate_stream")
    writer = TranslatingWriter(1 << 20, request, GenerationEvents(Wanted()), lambda _, __: CIMultiDict())
    writer.account, writer.out = account, web.StreamResponse()
    await writer.write(b"data: " + b"x" * 1000)
    assert account.held_bytes == 1006


# -- through the gateway

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUEST_BODY = {"inputs": "Is it dark?", "parameters": {"max_new_tokens": 9}}


async def whole(_: web.Request) -> web.StreamResponse:
    return web.Response(body=completion(finish="stop", **TOKENS), content_type="application/json")


async def stream(request: web.Request) -> web.StreamResponse:
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await out.prepare(request)
    for at in range(0, len(STREAM), 50):
        await out.write(STREAM[at : at + 50])
        await asyncio.sleep(0)
    return out


async def post(handler: Handler, body: Any, path: str = "/generate", **options: Any) -> tuple[int, Any, str, Any]:
    """Status, headers, text and the body that the server got, or the outcomes where it got none."""
    async with upstream(handler) as server, gateway() as door:
        door.route(("r1", 100, [server.url]))
        async with await door.post(body, path, **options) as response:
            text, outcomes = await response.text(), door.outcomes()
        seen = (server.seen[0].path, json.loads(server.bodies[0])) if server.seen else outcomes
    return response.status, response.headers, text, seen


@pytest.mark.parametrize("path", ["/generate", "/models/chat/generate", "/models/default/chat/generate"])
async def test_a_generation_goes_through_the_gateway_as_a_completion(path: str) -> None:
    status, headers, text, (sent_to, sent) = await post(whole, REQUEST_BODY, path)
    assert status == 200 and json.loads(text) == {"generated_text": "No."}
    assert headers["X-Request-Id"] and headers["X-Slipway-Revision"] == "r1"
    assert sent_to == "/v1/completions"
    assert sent == {"model": "chat", "prompt": "Is it dark?", "max_tokens": 9, "temperature": 0}


@pytest.mark.parametrize(("path", "more"), [
    ("/generate_stream", {}), ("/models/chat/generate_stream", {}), ("/", {"stream": True}),
    ("/models/chat", {"stream": True}),
])  # fmt: skip
async def test_a_stream_goes_through_the_gateway(path: str, more: Any) -> None:
    status, headers, text, (_, sent) = await post(stream, REQUEST_BODY | more, path)
    assert status == 200 and headers["Content-Type"] == "text/event-stream" and sent["stream"] is True
    assert events(text.encode()) == events(GenerationEvents(Wanted()).feed(STREAM))


@pytest.mark.parametrize("path", ["/", "/models/chat"])
async def test_the_root_returns_a_list_as_tgi_does(path: str) -> None:
    status, _, text, _ = await post(whole, REQUEST_BODY | {"stream": False}, path)
    assert status == 200 and json.loads(text) == [{"generated_text": "No."}]


async def test_errors_have_tgis_shape_and_name_the_parameter() -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too long", "code": "x", "param": "max_tokens"}}, status=400)

    status, _, text, _ = await post(refuse, REQUEST_BODY)
    assert (status, json.loads(text)) == (400, {"error": "max_new_tokens: too long", "error_type": "validation"})
    for body, path, named, code in (
        (REQUEST_BODY | {"model": "other"}, "/generate", "other", 404),
        (REQUEST_BODY, "/models/other/generate", "other", 404),
        (REQUEST_BODY | {"model": "other"}, "/models/chat/generate", "model", 422),
        (REQUEST_BODY | {"stream": True}, "/generate", "stream", 422),
        ({"prompt": "a"}, "/generate", "prompt", 422),
        ({"parameters": {}}, "/generate", "inputs", 422),
        ({"inputs": "a", "parameters": {"watermark": True}}, "/generate_stream", "watermark", 422),
        ({"inputs": "a", "parameters": {"stop": ["a"] * (1 << 15)}}, "/generate", "body", 422),
        (b"{", "/generate", "JSON", 422),
    ):
        status, _, text, outcomes = await post(refuse, body, path)
        error = json.loads(text)
        assert (status, error["error_type"]) == (code, "validation") and named in error["error"]
        assert outcomes == {"client_error": 1}


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": "a", "x" * 100_000: 1},
        {"inputs": "a", "parameters": {"grammar": {"type": "x" * 100_000, "value": 1}}},
    ],
)
async def test_an_error_is_not_as_long_as_what_is_wrong(body: Any) -> None:
    status, _, text, _ = await post(whole, body)
    assert status == 422 and "xxx" in text and len(text) < 1000


async def test_a_refusal_of_the_gateway_has_tgis_name_of_the_parameter() -> None:
    """Of a response that does not fit the grammar, which only a guard of JSON finds here."""
    guards = [json_guard(retries=0)]
    parameters = {"grammar": {"type": "json", "value": {"type": "object"}}}
    async with upstream(whole) as server, gateway() as door:
        door.balancer.publish(guarded(guards, ("r1", 100, [server.url])))
        await loaded(door, guards)
        async with await door.post(REQUEST_BODY | {"model": "chat", "parameters": parameters}, "/generate") as response:
            assert response.status == 422 and (await response.json())["error"].startswith("grammar: The response of")


async def test_a_stream_shows_no_token_of_a_text_that_a_guard_redacts() -> None:
    """The server waits with the text of a token until no stop sequence can begin there."""
    events_of_server = (("", "SEC"), ("SEC", "RET"), ("RET", " ok"), (" ok", " end"), (" end", "."))

    async def serve(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for number, (text, own) in enumerate(events_of_server):
            await out.write(chunk(text, [4711 + number], shown=[own]))
        await out.write(chunk(".", [], "length") + ENDING)
        return out

    async with (
        guarded_gateway(serve, Webhook(), ["Output"]) as (door, _, _),
        await door.post(REQUEST_BODY | {"model": "chat"}, "/generate_stream") as response,
    ):
        found = events(await response.read())
    assert found[-1]["generated_text"] == "### ok end."
    assert "".join(event["token"]["text"] for event in found) == "### ok end."
    assert all(event["token"]["id"] is None for event in found)


async def test_keys_and_limits_are_those_of_every_request() -> None:
    key = make_key("k7Qm2a")
    async with upstream(whole) as server, gateway([tenant("team-a", key)], PEPPER, auth_mode="required") as door:
        door.route(("r1", 100, [server.url]))
        async with await door.post(REQUEST_BODY, "/generate") as response:
            assert response.status == 401 and (await response.json())["error_type"] == "authentication"
        async with await door.post(REQUEST_BODY, "/generate", headers=bearer(key)) as response:
            assert response.status == 200
        assert door.outcomes() == {"unauthenticated": 1, "ok": 1}


async def test_only_a_post_is_taken() -> None:
    async with gateway() as door:
        for path, status in (("/generate", 405), ("/generate_stream", 405), ("/models/chat", 405), ("/", 404)):
            async with door.client.get(door.url + path) as response:
                assert response.status == status and set(await response.json()) == {"error", "error_type"}


async def test_a_request_without_a_model_is_for_the_only_one_and_its_adapters_do_not_count() -> None:
    async with upstream(whole) as server, gateway() as door:
        async with await door.post(REQUEST_BODY, "/generate") as response:
            assert response.status == 503 and (await response.json())["error_type"] == "overloaded"
        base = table(1, ("r1", 100, [server.url])).routes["default/chat"]
        adapter = Route("default/poet", "v", "poet", "", 1, "s", base.backends, base=base.name)
        endpoints = [RevisionEndpoints(base.name, "r1", (server.url,))]
        door.balancer.publish(build([base, adapter], endpoints))
        async with await door.post(REQUEST_BODY, "/generate") as response:
            assert response.status == 200 and json.loads(server.bodies[-1])["model"] == "chat"
        other = Route("default/other", "w", "other", "", 1, "s", base.backends)
        door.balancer.publish(build([base, other], endpoints))
        async with await door.post(REQUEST_BODY, "/generate") as response:
            error = await response.json()
            assert response.status == 400 and error["error_type"] == "validation" and "/models/NAME" in error["error"]
        async with await door.post(REQUEST_BODY | {"model": "chat"}, "/generate") as response:
            assert response.status == 200


async def test_a_server_that_answers_something_else_is_an_error() -> None:
    async def serve(_: web.Request) -> web.StreamResponse:
        return web.Response(text="hello")

    async def endless(_: web.Request) -> web.StreamResponse:
        return web.Response(body=completion("a" * MAX_RESPONSE_BYTES), content_type="application/json")

    for handler in (serve, endless):
        async with upstream(handler) as server, gateway() as door:
            door.route(("r1", 100, [server.url]))
            async with await door.post(REQUEST_BODY, "/generate") as response:
                assert response.status == 502 and (await response.json())["error_type"] == "generation"
            assert door.outcomes() == {"upstream_error": 1}


async def test_an_event_that_is_no_completion_ends_its_stream_as_an_error_of_the_server() -> None:
    left = asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        await out.write(chunk("a", [1]) + b'data: {"choices":[{"text":3}]}\n\n')
        try:
            while True:
                await out.write(chunk("late", [2]))
                await asyncio.sleep(0.01)
        finally:
            left.set()

    async with upstream(serve) as server, gateway() as door:
        door.route(("r1", 100, [server.url]))
        async with asyncio.timeout(30), await door.post(REQUEST_BODY, "/generate_stream") as response:
            found = events(await response.read())
            await left.wait()
        assert response.status == 200 and "error" in found[-1]
        assert door.outcomes() == {"upstream_error": 1}


async def test_a_client_that_leaves_ends_the_request_at_the_server() -> None:
    left = asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        try:
            while True:
                await out.write(chunk("a", [1]))
                await asyncio.sleep(0.01)
        finally:
            left.set()

    async with upstream(serve) as server, gateway() as door:
        door.route(("r1", 100, [server.url]))
        async with asyncio.timeout(30):
            response = await door.post(REQUEST_BODY, "/generate_stream")
            assert b"data:" in await response.content.readline()
            response.close()
            await left.wait()
