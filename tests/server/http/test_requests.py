"""Requests through the HTTP half of a server: no input is answered 500, and each one ends in exactly one counter."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway_process.json_bounds import MAX_OBJECTS
from slipway_process.serving import bodies
from slipway_process.serving.errors import taken_over
from slipway_server.http.openapi import REQUESTS
from slipway_server.http.reading import reader
from slipway_server.http.responses.delta import Delta
from slipway_server.text.tokenizer import Tokenizer
from tests.server.http.inprocess import InProcess, model_of
from tests.server.text import templates

CHAT, COMPLETE, GENERATE = "/v1/chat/completions", "/v1/completions", "/v1/generate"
TOOL = {"type": "function", "function": {"name": "ferry"}}
MESSAGES = [{"role": "user", "content": "x"}]
PATHS = [path.replace("{name}", "chat") for path in REQUESTS]


@pytest.fixture
async def server() -> AsyncIterator[InProcess]:
    async with InProcess(model_of()) as made:
        yield made


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": MESSAGES, "max_tokens": 3} | more


def completion(**more: Any) -> dict[str, Any]:
    return {"model": "chat", "prompt": "x", "max_tokens": 3} | more


async def text_of(server: InProcess, **more: Any) -> str:
    status, answer = await server.post(COMPLETE, completion(**more))
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


async def test_the_outcome_of_a_stream_that_another_connection_took_over_is_cancelled(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its response has begun and ends as it should; what the client got is not the answer."""

    async def taken(*_: Any, **__: Any) -> AsyncIterator[Any]:
        yield Delta("x", 1, 5)
        raise taken_over()

    monkeypatch.setattr(server.service, "generate", taken)
    status, events = await server.post(COMPLETE, completion(stream=True))
    assert status == 200 and "taken_over" in events
    assert server.outcomes() == {"cancelled": 1}


# --- work that holds up other requests --------------------------------------------------------------------------------


@pytest.mark.attack_class(18)
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt": [5] * 400, "n": 64, "max_tokens": 1, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": [5] * 400, "n": 64, "max_tokens": 1, "echo": True, "logprobs": 20}, "logprobs"),
        ({"prompt": [5] * 10, "n": 64, "max_tokens": 500, "logprobs": 20}, "logprobs"),
    ],
)
async def test_more_log_probabilities_than_a_response_may_have_are_refused(
    server: InProcess, more: dict[str, Any], param: str
) -> None:
    status, refused = await server.post(COMPLETE, completion(**more))
    assert (status, refused["error"]["param"]) == (400, param)
    assert "524288 is the limit" in refused["error"]["message"]
    assert not server.engine.requests


@pytest.mark.attack_class(18)
async def test_more_lists_than_a_body_may_have_are_refused_and_brackets_in_texts_are_not(server: InProcess) -> None:
    lists = b'{"model":"chat","max_tokens":1,"prompt":[' + b"[]," * MAX_OBJECTS + b"[]]}"
    status, refused = await server.post(COMPLETE, lists)
    assert (status, refused["error"]["message"]) == (
        400,
        "The body has more than 65536 lists, objects and texts, or 524288 numbers.",
    )
    text = b'{"model":"chat","max_tokens":1,"prompt":"x","zz":"' + b'[\\"{' * MAX_OBJECTS + b'["}'
    assert (await server.post(COMPLETE, text))[0] == 200


@pytest.mark.parametrize("prompt", [["a"] * 2049, [[1]] * 2049])
async def test_prompts_are_counted_before_they_are_read(server: InProcess, prompt: list[Any]) -> None:
    status, refused = await server.post(COMPLETE, completion(prompt=prompt))
    assert (status, refused["error"]["param"]) == (400, "prompt") and "2048 is the limit" in refused["error"]["message"]


# --- token ids --------------------------------------------------------------------------------------------------------


@pytest.mark.finding(3)
@pytest.mark.attack_class(18)
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt": [1, 300]}, "prompt"),
        ({"prompt": [[1], [300]]}, "prompt"),
        ({"prompt": [2**31 - 1]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"logit_bias": {"300": 1}}, "logit_bias"),
        ({"allowed_token_ids": [1, 300]}, "allowed_token_ids"),
        ({"stop_token_ids": [300]}, "stop_token_ids"),
    ],
)
async def test_safety_3_token_ids_without_a_row_are_refused_by_name(more: dict[str, Any], param: str) -> None:
    """The tokenizer knows 2048 tokens, and the model's embedding has 300 rows."""
    async with InProcess(model_of(vocab_size=300)) as server:
        status, answer = await server.post(COMPLETE, completion(**more))
        assert (status, answer["error"]["param"]) == (400, param)
        assert not server.engine.requests


@pytest.mark.finding(3)
async def test_safety_3_neither_do_texts_reach_rows_that_are_not_there() -> None:
    """Gemma-3's tokenizer has one token more than its embedding has rows, and a text can name it."""
    model = model_of(vocab_size=2)
    async with InProcess(model) as server:
        for path, body, param in ((COMPLETE, completion(prompt="<|im_end|>"), "prompt"), (CHAT, chat(), "messages")):
            status, answer = await server.post(path, body)
            assert (status, answer["error"]["param"]) == (400, param)
        assert not server.engine.requests


async def test_stop_tokens_without_a_row_are_left_out() -> None:
    """Those of generation_config.json are not the client's, and no answer has them."""
    model = model_of(vocab_size=300)
    assert max(model.checkpoint.stop_token_ids) > 1
    async with InProcess(model_of(vocab_size=2)) as server:
        assert (await server.post(COMPLETE, completion(prompt=[0], add_special_tokens=False)))[0] == 200
        (request,) = server.engine.requests
        assert request.sampling and all(token < 2 for token in request.sampling.stop_token_ids)


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.finding(11)
async def test_safety_11_stop_strings_are_returned_when_requested(server: InProcess) -> None:
    whole = await text_of(server, max_tokens=12)
    stop = whole[3:5]
    at = whole.index(stop)
    assert await text_of(server, max_tokens=12, stop=[stop]) == whole[:at]
    assert await text_of(server, max_tokens=12, stop=[stop], include_stop_str_in_output=True) == whole[: at + 2]
    later = await text_of(server, max_tokens=12, stop=[stop], min_tokens=9)
    assert later.startswith(whole[: at + 2]) and len(later) < len(whole)


@pytest.mark.finding(11)
async def test_safety_11_special_tokens_are_returned_when_requested(server: InProcess) -> None:
    end = server.service.model.tokenizer.encode_now("<|im_end|>")[0]
    server.engine.tokens = (5, end, 6)
    plain = await text_of(server, ignore_eos=True)
    shown = await text_of(server, ignore_eos=True, skip_special_tokens=False)
    assert "<|im_end|>" not in plain and shown.replace("<|im_end|>", "") == plain != shown
    ended = await text_of(server, skip_special_tokens=False, include_stop_str_in_output=True, stop_token_ids=[end])
    assert ended.endswith("<|im_end|>")


@pytest.mark.finding(11)
async def test_safety_11_special_tokens_of_prompts(server: InProcess) -> None:
    tokenizer = server.service.model.tokenizer
    await server.post(COMPLETE, completion(add_special_tokens=False))
    await server.post(CHAT, chat(add_special_tokens=True))
    without, of_chat = server.engine.requests
    assert without.prompt == tokenizer.encode_now("x", special_tokens=False)
    assert of_chat.prompt == tokenizer.encode_now("<user>x<assistant>", special_tokens=True)


async def test_bad_words_are_spelled_once_for_all_answers(server: InProcess) -> None:
    status, _ = await server.post(COMPLETE, completion(prompt=["a", "b"], n=3, bad_words=["ship", "ship", " "]))
    spellings = {request.sampling.bad_words for request in server.engine.requests if request.sampling}
    assert status == 200 and len(spellings) == 1
    (spelled,) = spellings
    assert len(spelled) == len(set(spelled)) >= 3


@pytest.mark.finding(5)
@pytest.mark.attack_class(17, 18)
async def test_safety_5_bad_words_are_tokenized_beside_the_event_loop(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 words of 256 characters took the event loop's time."""
    encode, threads = Tokenizer.encode_now, set[int]()

    def encode_now(tokenizer: Tokenizer, text: str, *, special_tokens: bool = True) -> tuple[int, ...]:
        if "ship" in text:
            threads.add(threading.get_ident())
        return encode(tokenizer, text, special_tokens=special_tokens)

    monkeypatch.setattr(Tokenizer, "encode_now", encode_now)
    assert (await server.post(COMPLETE, completion(bad_words=["ship"])))[0] == 200
    assert threads and threading.get_ident() not in threads


# --- chats ------------------------------------------------------------------------------------------------------------


@pytest.mark.finding(10)
async def test_safety_10_without_a_template_that_parses_texts_are_completed() -> None:
    async with InProcess(model_of(template="{% nonsense %}")) as server:
        status, answer = await server.post(CHAT, chat())
        assert (status, answer["error"]["code"]) == (400, "no_chat_template")
        assert "nonsense" in answer["error"]["message"]
        assert (await server.post(COMPLETE, completion()))[0] == 200


@pytest.mark.finding(10, 11)
@pytest.mark.attack_class(6)
@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"chat_template": "{{ messages }}"}, "chat_template", "unsupported_parameter"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", "unsupported_parameter"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "unsupported_parameter"),
        ({"chat_template_kwargs": {"colour": 1}}, "chat_template_kwargs", "unsupported_parameter"),
        ({"tools": [TOOL], "tool_choice": "none"}, "tools", "unsupported_parameter"),
        ({"tools": [TOOL]}, "tools", "unsupported_parameter"),
        ({"documents": [{"text": "x"}]}, "documents", "unsupported_parameter"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
        ({"messages": [{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]}, "messages", None),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "c"}]}, "messages", None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", None),
        ({"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]}, "messages", None),
        ({"messages": [{"role": "assistant", "content": "x", "refusal": "no"}]}, "messages", None),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": {"a": 1}}]}
                ]
            },
            "messages",
            None,
        ),
    ],
)
async def test_safety_10_11_what_the_template_would_pass_over_is_refused(
    server: InProcess, more: dict[str, Any], param: str, code: str | None
) -> None:
    status, answer = await server.post(CHAT, chat(**more))
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, param, code)


@pytest.mark.finding(10)
async def test_safety_10_fields_of_messages_reach_the_template() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ferry", "arguments": '{"to": "x"}'}}
    messages = [
        {"role": "developer", "content": "Be brief.", "name": None},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "anna"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "ok", "tool_call_id": "c1"},
    ]
    source = "{{ messages | tojson }}|{{ tools | tojson }}|{{ enable_thinking }}|{{ reasoning_effort }}"
    async with InProcess(model_of(template=source)) as server:
        body = chat(
            messages=messages,
            tools=[{"type": "function", "function": {"name": "ferry"}}],
            tool_choice="none",
            chat_template_kwargs={"enable_thinking": False},
            reasoning_effort="high",
        )
        assert (await server.post(CHAT, body))[0] == 200
        text = server.service.model.tokenizer.decode(list(server.engine.requests[0].prompt))
    shown, tools, thinking, effort = text.split("|")
    assert json.loads(shown) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb", "name": "anna"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ferry", "arguments": {"to": "x"}}}],
        },
        {"role": "tool", "content": "ok", "tool_call_id": "c1"},
    ]
    assert json.loads(tools)[0]["function"]["name"] == "ferry" and (thinking, effort) == ("False", "high")


async def test_the_final_message_is_continued() -> None:
    async with InProcess(model_of(template=templates.CHATML)) as server:
        messages = [*MESSAGES, {"role": "assistant", "content": "So "}]
        body = chat(messages=messages, add_generation_prompt=False, continue_final_message=True)
        assert (await server.post(CHAT, body))[0] == 200
        assert server.service.model.tokenizer.decode(list(server.engine.requests[0].prompt)).endswith("assistant\nSo ")


@pytest.mark.finding(5)
@pytest.mark.attack_class(17, 18)
async def test_safety_5_a_slow_template_delays_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(template="{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    monkeypatch.setattr(reader, "RENDERERS", replace(reader.RENDERERS, job_s=0.3))
    async with InProcess(model) as server:
        slow = [asyncio.create_task(server.post(CHAT, chat())) for _ in range(3)]
        assert (await server.post(COMPLETE, completion()))[0] == 200
        for status, answer in await asyncio.gather(*slow):
            assert (status, answer["error"]["code"]) == (400, "prompt_timeout")
        assert server.outcomes() == {"invalid": 3, "completed": 1}


# --- whatever clients send --------------------------------------------------------------------------------------------


HOSTILE = [
    b"[" * 20_000,
    b'{"model":"chat","prompt":"x","messages":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"model":"chat","prompt":"x","logit_bias":{"' + b"1" * 5000 + b'":1}}',
    b'{"model":"chat","prompt":"x","top_k":10000000000000000000000000}',
    b'{"model":"chat","prompt":"x","priority":' + b"9" * 5000 + b"}",
    b'{"model":"chat","prompt":"\\ud800"}',
    b'{"model":"\\ud83d","prompt":"x"}',
    b'{"model":"' + b"x" * 100_000 + b'","prompt":"x"}',
    b'{"' + b"x" * 100_000 + b'":1}',
    b'{"model":"chat","prompt":"\xff\xfe"}',
    b'{"model":"chat","prompt":"\\u0000\\uffff\\ufffe"}',
    b'{"model":"chat","prompt":["x",[1],2]}',
    b'{"model":"chat","prompt":[[]]}',
    b'{"model":"chat","prompt":""}',
    b'{"model":"chat","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"'
    + b"[" * 5000
    + b'"}}]}]}',
    b'{"model":"chat","messages":[{"role":"user","content":[{"type":{"a":1}}]}]}',
    b'{"model":"chat","messages":[{"role":"user","content":"x","extra":' + b"[" * 900 + b"]" * 900 + b"}]}",
    b"\x1f\x8b\x08\x00",
    b"",
]


@pytest.mark.finding(5)
@pytest.mark.attack_class(15, 18, 20)
@pytest.mark.parametrize("path", PATHS)
async def test_safety_5_nothing_is_answered_500(path: str) -> None:
    async with InProcess(model_of(template="{{ messages | tojson }}")) as server:
        for count, body in enumerate(HOSTILE, 1):
            status, answer = await server.post(path, body)
            assert status in (200, 400, 404), (status, body[:80], answer)
            if status != 200:
                assert set(answer["error"]) == {"message", "type", "param", "code"}
                assert len(json.dumps(answer)) < 4000 and "Traceback" not in answer["error"]["message"]
            assert sum(server.outcomes().values()) == count


@pytest.mark.attack_class(9, 15)
@pytest.mark.parametrize(
    "headers",
    [
        {"X-Slipway-Resume": "1-1-" + "0" * 32 + ".1.00000000", "X-Slipway-Resume-Bytes": "²"},
        {"X-Slipway-Resume": "1-1-" + "0" * 32 + ".1.00000000", "X-Slipway-Resume-Bytes": "9" * 5000},
        {"X-Slipway-Resume": "1-1-" + "0" * 32 + ".1.00000000", "X-Slipway-Resume-Bytes": "-1"},
        {"X-Slipway-Resume": "f" * 16 + "-" + "f" * 16 + "-" + "0" * 32 + ".999999999.ffffffff"},
        {"X-Slipway-Resume": "nonsense"},
        {"X-Slipway-Resume": ""},
        {"X-Slipway-Tenant": "é" * 32},
        {"X-Slipway-Tenant": "../../etc"},
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "deflate"},
        {"Content-Encoding": "nonsense"},
        {"Content-Type": "text/\xff; charset=nonsense"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-00"},
        {"traceparent": "²"},
    ],
)
async def test_no_header_is_answered_500(server: InProcess, headers: dict[str, str]) -> None:
    for body in (completion(stream=True), completion()):
        # Behind a body that cannot be decoded nothing can be read: the connection ends.
        status, _ = await server.post(COMPLETE, body, headers | {"Connection": "close"})
        assert status in (200, 400, 410, 415)


@pytest.mark.attack_class(15)
@pytest.mark.parametrize("tail", [b"1" * 5000, b"1,,2", b"a", b"1_0", b"+1", b" 1", b"4294967296", b"\xff", b"1,2,3,"])
async def test_malformed_tokens_of_a_resumed_stream_are_refused(server: InProcess, tail: bytes) -> None:
    headers = {"X-Slipway-Resume": "1-1-" + "0" * 32 + ".1.00000000", "X-Slipway-Resume-Bytes": str(len(tail))}
    body = json.dumps(completion(stream=True)).encode() + tail
    status, answer = await server.post(COMPLETE, body, headers)
    assert status == (410 if tail == b"1,2,3," else 400), answer


PARTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.attack_class(18)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_requests_drawn_from_their_fields(data: st.DataObject) -> None:
    """Any fields with any values: an answer, or a refusal of this request alone."""
    path = data.draw(st.sampled_from(list(REQUESTS)))
    names = st.sampled_from(REQUESTS[path].__struct_fields__)
    known = {"model": "chat", "prompt": "x", "messages": MESSAGES, "max_tokens": 2, "input": "x", "inputs": ["x"]}
    start = {name: value for name, value in known.items() if name in REQUESTS[path].__struct_fields__}
    drawn = [start | data.draw(st.dictionaries(names, PARTS, max_size=3)) for _ in range(5)]

    async def ask() -> None:
        async with InProcess(model_of(template="{{ messages | tojson }}")) as server:
            posts = [server.post(path.replace("{name}", "chat"), body) for body in drawn]
            for (status, answer), body in zip(await asyncio.gather(*posts), drawn, strict=True):
                assert status in (200, 400, 404), (status, body, answer)
            assert sum(server.outcomes().values()) == len(drawn)

    asyncio.run(ask())


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.finding(25, "S14")
@pytest.mark.attack_class(15, 16)
async def test_safety_25_a_body_that_does_not_come_is_answered_408(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held a server's drain up, too: a pod that leaves waits for each request that it has begun to read."""
    monkeypatch.setattr(bodies, "BODY_IDLE_S", 0.1)
    for path in (COMPLETE, "/v1/embeddings"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port)
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n".encode() + b'{"model":')
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert b" 408 " in head
        writer.close()
        await writer.wait_closed()
    assert server.outcomes() == {"invalid": 2}


@pytest.mark.finding(25)
@pytest.mark.attack_class(15)
async def test_safety_25_a_body_that_trickles_is_answered_408(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.3)

    async def trickle() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.05)

    async with server.client.post(server.server.make_url(COMPLETE), data=trickle()) as answer:
        assert answer.status == 408


@pytest.mark.attack_class(15)
async def test_a_body_above_the_limit_is_refused() -> None:
    async with InProcess(model_of(), max_body_bytes=1000) as server:
        assert (await server.post(COMPLETE, b" " * 1001))[0] == 413
        assert (await server.post(COMPLETE, json.dumps(completion()).encode().ljust(1000)))[0] == 200


@pytest.mark.attack_class(15, 20)
@pytest.mark.parametrize(
    "target", [b"/%ff", b"/\xff\xfe", b"/v1/models/%ff%00", b"/api/v1/models/%ed%a0%80/generate", b"//", b"/%0A"]
)
async def test_paths_that_are_no_text(server: InProcess, target: bytes) -> None:
    for verb in (b"GET", b"POST"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port)
        writer.write(verb + b" " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.split(b" ")[1] in (b"400", b"404", b"405"), answer
        writer.close()
        await writer.wait_closed()


async def test_the_document_is_served(server: InProcess) -> None:
    status, shown = await server.get("/openapi.json")
    assert status == 200 and shown["openapi"].startswith("3.1")


# --- encodings --------------------------------------------------------------------------------------------------------


@pytest.mark.attack_class(15)
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP", "x", "identity, gzip"])
async def test_an_encoded_body_is_refused_before_it_is_read(server: InProcess, encoding: str) -> None:
    """Found by fuzzing: an invalid body with the header of gzip was answered 500; a bomb would have been unpacked."""
    status, answer = await server.post(COMPLETE, completion(), {"Content-Encoding": encoding})
    assert (status, answer["error"]["param"]) == (415, "Content-Encoding"), answer
    assert server.outcomes() == {"invalid": 1.0}


async def test_identity_is_no_encoding(server: InProcess) -> None:
    assert (await server.post(COMPLETE, completion(), {"Content-Encoding": "identity"}))[0] == 200


@pytest.mark.attack_class(18, 20)
@pytest.mark.parametrize("path", [COMPLETE, "/v1/models", "/no/such/path"])
async def test_an_expectation_of_any_bytes_is_refused_in_words(server: InProcess, path: str) -> None:
    """Found by fuzzing: bytes that are no text in Expect were answered 500."""
    url = server.server.make_url(path)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n".encode() + b"Expect: 100-continP\xffe\r\n\r\n{}"
    )
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 417") and json.loads(body)["error"]["param"] == "Expect"


async def test_a_client_that_expects_100_gets_it(server: InProcess) -> None:
    url = server.server.make_url(COMPLETE)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    body = json.dumps(completion()).encode()
    lines = ("Host: a", f"Content-Length: {len(body)}", "Expect: 100-continue", "Connection: close", "", "")
    writer.write("\r\n".join((f"POST {COMPLETE} HTTP/1.1", *lines)).encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 100")
    writer.write(body)
    assert b"HTTP/1.1 200" in await reader.read()
    writer.close()
