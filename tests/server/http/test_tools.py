"""Tools of a chat: what reaches the engine, and what comes of an answer with calls and reasoning."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipway_process.serving.bodies import decoded
from slipway_process.serving.errors import HttpError
from slipway_server.engine.grammars.compiler import compile_grammar, load_tokenizer
from slipway_server.engine.request import FinishReason, Grammar
from slipway_server.http.requests.bodies import checked_body
from slipway_server.http.requests.prompt import Prompt
from slipway_server.http.requests.schemas import ChatRequest
from slipway_server.http.requests.tools import plan_answers
from slipway_server.http.responses.delta import Delta
from slipway_server.http.responses.resume import Identity, Resume, StreamPosition
from slipway_server.http.responses.shapes import ChatShape, IndexedDelta
from slipway_server.text.answers.answer import AnswerForm
from slipway_server.text.answers.selection import AnswerFormats
from slipway_server.text.detokenizer import ByWindow, detokenizer
from slipway_server.text.tokenizer import Tokenizer
from tests.server.http.inprocess import InProcess, model_of

PATH = "/v1/chat/completions"
TEMPLATE = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ messages[-1].content }}<think>\n"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Oslo", "Lima"]}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "It rains.", "parameters": PARAMETERS}}
CLOCK = {"type": "function", "function": {"name": "time"}}
CHAT: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "x"}], "tools": [WEATHER, CLOCK]}
NAMED = {"type": "function", "function": {"name": "weather"}}
OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
LIMA = OSLO.replace("Oslo", "Lima")
ANSWER = f"Hm.\n</think>\n\nSo:\n<tool_call>\n{OSLO}\n</tool_call>\n<tool_call>\n{LIMA}\n</tool_call>"
STOP = 2  # <|im_end|>


@pytest.fixture
async def server() -> AsyncIterator[InProcess]:
    model = replace(model_of(template=TEMPLATE), formats=AnswerFormats("hermes", "qwen3"))
    async with InProcess(model) as made:
        answer(made, ANSWER)
        yield made


def answer(server: InProcess, text: str) -> int:
    """Lets the engine write a text. Returns the number of its tokens, with the one that ends it."""
    tokens = server.service.model.tokenizer.encode_now(text, special_tokens=False)
    server.engine.tokens = (*tokens, STOP)
    return len(server.engine.tokens)


async def streamed(server: InProcess, body: dict[str, Any]) -> list[dict[str, Any]]:
    status, text = await server.post(PATH, body | {"stream": True})
    assert status == 200 and text.endswith("data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def joined(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The message that the deltas of a choice are, as clients join them."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for delta in (choice["delta"] for choice in choices):
        for name in ("content", "reasoning", "reasoning_content"):
            if name in delta:
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"id": call["id"], "type": call["type"], "function": {**call["function"]}})
            else:
                assert call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"}
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message | {"content": message["content"] or None, "finish_reason": choices[-1]["finish_reason"]}


async def test_calls_and_reasoning_whole_and_streamed(server: InProcess) -> None:
    status, whole = await server.post(PATH, CHAT | {"n": 2})
    assert status == 200
    first, second = (choice["message"] for choice in whole["choices"])
    assert first["content"] == "So:" and first["reasoning_content"] == first["reasoning"] == "Hm."
    assert [call["function"]["name"] for call in first["tool_calls"]] == ["weather", "weather"]
    assert json.loads(first["tool_calls"][1]["function"]["arguments"]) == {"city": "Lima"}
    assert len({call["id"] for message in (first, second) for call in message["tool_calls"]}) == 4
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["tool_calls"] * 2
    chunks = await streamed(server, CHAT | {"n": 2})
    for index, message in enumerate((first, second)):
        found = joined(chunks, index)
        assert found.pop("finish_reason") == "tool_calls"
        for call in (*found["tool_calls"], *message["tool_calls"]):
            assert call.pop("id").startswith("call_")
        assert found == message


CLOCKED = '{"name": "time", "arguments": {"any": 1}}'
ALLOWED = {"mode": "auto", "tools": [NAMED]}
WEATHER_ALONE = {"tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED}}


@pytest.mark.parametrize(
    ("text", "more", "expected"),
    [
        (f"</think><tool_call>{OSLO}</tool_call>", {}, {"content": None, "finish_reason": "tool_calls"}),
        ("Hm</think>", {}, {"content": None, "reasoning": "Hm", "finish_reason": "stop"}),
        ("Hm</think> Yes. ", {}, {"content": "Yes. ", "finish_reason": "stop"}),
        ("</think><tool_call>{}</tool_call>", {}, {"content": "<tool_call>{}</tool_call>", "finish_reason": "stop"}),
        (f"</think><tool_call>{OSLO}", {"tool_choice": "none"}, {"content": f"<tool_call>{OSLO}"}),
        (f"</think><tool_call>{OSLO}</tool_call>", WEATHER_ALONE, {"content": None, "finish_reason": "tool_calls"}),
        (f"</think><tool_call>{CLOCKED}</tool_call>", WEATHER_ALONE, {"content": f"<tool_call>{CLOCKED}</tool_call>"}),
        (f"</think>a<tool_call>{OSLO}", {"stop": "<tool"}, {"content": "a", "finish_reason": "stop"}),
        ("Hm</think>{}", {"tools": [], "response_format": {"type": "json_object"}}, {"content": "Hm</think>{}"}),
    ],
)
async def test_parts_that_are_missing(server: InProcess, text: str, more: Any, expected: dict[str, Any]) -> None:
    answer(server, text)
    status, whole = await server.post(PATH, CHAT | more)
    assert status == 200
    choice = whole["choices"][0]
    found = choice["message"] | {"finish_reason": choice["finish_reason"]}
    assert {name: found[name] for name in expected} == expected
    assert "tool_calls" not in found or found["finish_reason"] == "tool_calls"
    again = joined(await streamed(server, CHAT | more))
    assert again.get("content") == (expected.get("content", found["content"]) or None)


async def test_a_call_that_max_tokens_cuts_keeps_its_reason(server: InProcess) -> None:
    answer(server, f"</think><tool_call>{OSLO}")
    tokens = len(server.service.model.tokenizer.encode_now(f"</think><tool_call>{OSLO[:-6]}", special_tokens=False))
    _, whole = await server.post(PATH, CHAT | {"max_tokens": tokens})
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"city": "')


@pytest.mark.parametrize("stream", [False, True])
async def test_without_parallel_calls_an_answer_ends_after_the_first(server: InProcess, stream: bool) -> None:
    tokens = answer(server, ANSWER)
    body = CHAT | {"parallel_tool_calls": False}
    if stream:
        chunks = await streamed(server, body | {"stream_options": {"include_usage": True}})
        message, used = joined(chunks), chunks[-1]["usage"]["completion_tokens"]
        finish = message["finish_reason"]
    else:
        _, whole = await server.post(PATH, body)
        message, finish = whole["choices"][0]["message"], whole["choices"][0]["finish_reason"]
        used = whole["usage"]["completion_tokens"]
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"} and finish == "tool_calls"
    assert used < 0.8 * tokens


async def test_log_probabilities_are_those_of_all_tokens(server: InProcess) -> None:
    """The engine of this test gives none: chunks without a field of the message are not sent."""
    chunks = await streamed(server, CHAT)
    sent = [chunk["choices"][0] for chunk in chunks[1:]]
    assert all(choice["finish_reason"] or choice["delta"] != {"content": ""} for choice in sent)


async def test_the_template_gets_the_tools_without_what_is_for_servers(server: InProcess) -> None:
    strict = WEATHER | {"function": WEATHER["function"] | {"strict": True}}  # type: ignore[operator]
    status, _ = await server.post(PATH, CHAT | {"tools": [strict], "max_tokens": 1})
    assert status == 200
    prompt = server.service.model.tokenizer.decode(list(server.engine.requests[0].prompt))
    assert json.loads(prompt[: prompt.index("}x<") + 1]) == WEATHER


async def test_templates_that_join_arguments_to_texts_get_them_as_texts() -> None:
    template = "{% for call in messages[0].tool_calls %}{{ 'CALL ' + call.function.arguments }}{% endfor %}"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
    async with InProcess(model_of(template=template)) as server:
        body = {"model": "chat", "messages": [{"role": "assistant", "tool_calls": [call]}], "max_tokens": 1}
        assert (await server.post(PATH, body))[0] == 200
        assert server.service.model.tokenizer.decode(list(server.engine.requests[0].prompt)) == 'CALL {"a": "é"}'


def plan(formats: AnswerFormats, **more: Any) -> tuple[AnswerForm, Grammar | None]:
    body = checked_body(decoded(json.dumps(CHAT | more).encode()), ChatRequest)
    body.check()
    found = plan_answers(body.tool_use, formats, body.grammar)
    return found.form, found.grammar


def test_calls_are_read_where_the_model_writes_them_or_must() -> None:
    names = frozenset({"weather", "time"})
    assert plan(AnswerFormats("mistral"))[0] == AnswerForm("mistral", names, short_ids=True)
    assert plan(AnswerFormats("mistral"), tool_choice="required")[0] == AnswerForm("json", names, short_ids=True)
    assert plan(AnswerFormats("hermes"), tool_choice=NAMED)[0] == AnswerForm("hermes", frozenset({"weather"}))
    assert plan(AnswerFormats(), tool_choice="required")[0] == AnswerForm("json", names)
    assert plan(AnswerFormats(), tool_choice="none") == (AnswerForm(), None)
    for formats, more in (
        (AnswerFormats(), {}),
        (AnswerFormats("llama3"), {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}),
    ):
        with pytest.raises(HttpError) as refusal:
            plan(formats, **more)
        assert (refusal.value.param, refusal.value.code) == ("tools", "unsupported_parameter")


def tagged(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


PARIS, NO_CITY, TIME = (
    OSLO.replace("Oslo", "Paris"),
    '{"name": "weather", "arguments": {}}',
    CLOCKED,
)
LLAMA = OSLO.replace("arguments", "parameters")


def only_weather(mode: str) -> dict[str, Any]:
    return {"tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED | {"mode": mode}}}


STRICT = {"tools": [WEATHER | {"function": WEATHER["function"] | {"strict": True}}, CLOCK]}  # type: ignore[operator]
GRAMMARS: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("", {"tool_choice": NAMED}, [OSLO], [PARIS, NO_CITY, TIME, f"[{OSLO}]", "Oslo", OSLO + OSLO]),
    ("json", {"tool_choice": "required"}, [f"[{OSLO}]", f"[{OSLO}, {TIME}]"], ["[]", OSLO, f"[{PARIS}]"]),
    ("mistral", {"tool_choice": "required", "parallel_tool_calls": False}, [OSLO, TIME], [f"[{OSLO}]", PARIS]),
    (
        "hermes",
        {"tool_choice": "required"},
        [tagged(OSLO), tagged(OSLO, TIME)],
        [OSLO, tagged(PARIS), "x" + tagged(OSLO)],
    ),
    ("hermes", {"tool_choice": NAMED}, [tagged(OSLO)], [tagged(TIME), tagged(OSLO, OSLO)]),
    ("llama3", {"tool_choice": "required"}, [LLAMA, f"{LLAMA}; {LLAMA}"], [OSLO, f"[{LLAMA}]"]),
    ("llama3", {"tool_choice": NAMED}, [LLAMA], [f"{LLAMA}; {LLAMA}"]),
    ("hermes", only_weather("required"), [tagged(OSLO), tagged(OSLO, OSLO)], [tagged(TIME), tagged(OSLO, TIME)]),
    ("hermes", STRICT | only_weather("auto"), ["Hi.", tagged(OSLO)], [tagged(PARIS), tagged(TIME)]),
    (
        "hermes",
        STRICT,
        ["Hi.", f"a{tagged(OSLO, TIME)} b", "<tool_cal"],
        [tagged(PARIS), tagged(NO_CITY), "a <tool_call>b"],
    ),
]


@pytest.mark.parametrize(("calls", "more", "valid", "invalid"), GRAMMARS)
def test_grammars_allow_valid_calls_alone(
    tiny_v1: Path, calls: str, more: dict[str, Any], valid: list[str], invalid: list[str]
) -> None:
    form, grammar = plan(AnswerFormats(calls), **more)
    assert grammar and grammar.param == "tools"
    tokenizer = load_tokenizer(tiny_v1 / "tokenizer.json", 2048, (STOP,))

    def allowed(text: str) -> bool:
        matcher = compile_grammar(tokenizer, grammar.kind, grammar.text)
        tokens = tokenizer.tokenize_str(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    assert [text for text in valid if not allowed(text)] == [] == [text for text in invalid if allowed(text)]
    for text in valid:
        parser = form.parser()
        events = [*parser.push(text), *parser.finish()]
        assert any(hasattr(event, "name") for event in events) == ("weather" in text or "time" in text)


async def test_the_grammar_reaches_the_engine(server: InProcess) -> None:
    answer(server, tagged(OSLO))
    status, whole = await server.post(PATH, CHAT | {"tool_choice": NAMED})
    assert status == 200 and whole["choices"][0]["finish_reason"] == "tool_calls"
    (request,) = server.engine.requests
    assert request.sampling and request.sampling.grammar == plan(AnswerFormats("hermes"), tool_choice=NAMED)[1]


async def chunks_of(model: Any, text: str, resume: Resume | None) -> list[dict[str, Any]]:
    """Chunks of a stream whose answer is a text, without those that its client has."""
    tokens = model.tokenizer.encode_now(text, special_tokens=False)
    form = AnswerForm("hermes", frozenset({"weather"}), reasoning=True, thinking=True)

    async def deltas() -> AsyncIterator[IndexedDelta]:
        for count, token in enumerate(tokens, 1):
            finish = FinishReason.STOP if count == len(tokens) else None
            yield 0, Delta(model.tokenizer.text_of(token), count, token, finish)

    identity = Identity(1, 2, "f" * 32)
    body = checked_body(decoded(json.dumps(CHAT).encode()), ChatRequest)
    shape, progress = ChatShape(model, identity, [Prompt("", ())], body, form), StreamPosition(identity, resume)
    return [chunk async for chunk in shape.chunks(deltas(), with_usage=False, progress=progress) if progress.is_new]


async def test_a_resumed_stream_continues_with_the_same_deltas() -> None:
    """At another server too: it gets the tokens, and the same answer has the same ids of calls."""
    model = model_of()
    tokens = model.tokenizer.encode_now(ANSWER, special_tokens=False)
    whole = await chunks_of(model, ANSWER, None)
    assert len(joined(whole)["tool_calls"]) == 2
    checked, left = StreamPosition(Identity(1, 2, "f" * 32)), len(whole) - 1  # without the opening one
    for position, token in enumerate(tokens[:-1], 1):
        checked.add_token(token)
        resume = Resume(checked.identity, position, checked._check, tokens[:position])
        rest = await chunks_of(model, ANSWER, resume)
        assert rest == whole[len(whole) - len(rest) :] and left - 1 <= len(rest) <= left
        left = len(rest)


def test_special_tokens_that_are_markers_are_text(tiny_v1: Path) -> None:
    tokenizer = Tokenizer(tiny_v1)
    tokens = (*tokenizer.encode_now("God made", special_tokens=False), STOP, *tokenizer.encode_now(" so"), STOP - 1)
    markers = ("<|im_end|>", "made")
    skipped = tokenizer.special_ids - tokenizer.special_ids_of(markers)
    for made in (detokenizer(tokenizer, (), markers=markers), ByWindow(tokenizer, (), skipped)):
        text = "".join(map(made.push, tokens)) + made.flush()
        assert text == "God made<|im_end|> so"
