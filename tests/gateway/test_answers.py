"""Failures found in the end of an answer, in every shape that our servers and vLLM write."""

import json
import random

import pytest

from slipway_gateway.wire import responses
from slipway_gateway.wire.responses import (
    EMPTY,
    ERRORS,
    INVALID_JSON,
    JSON_CHARS,
    LOOP_BYTES,
    NON_FINITE,
    REPETITION,
    TRUNCATED,
    find_failures,
    find_failures_in_stream,
    read_text,
    read_text_of_events,
)

PROSE = (
    "The lighthouse keeper wrote down every ship that passed: its name, the colour of its sails, the hour. In winter "
    "there were few, and he described the clouds in their place, or what the gulls had stolen from the kitchen window. "
    "Years later a student of weather found the books in a cellar and noticed that storms were announced in them two "
    "days early, by the behaviour of birds that nobody else had thought worth a line of ink. She counted them all."
)
LOOP = "and then the king said unto him, " * 20


def chat(content: object, finish: str = "stop", **fields: object) -> dict:
    message = {"role": "assistant", "content": content} | fields
    return {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": {}}


def text(value: str, finish: str = "stop") -> dict:
    return {"choices": [{"index": 0, "text": value, "finish_reason": finish}]}


def response(*output: object, status: str = "completed", **fields: object) -> dict:
    """Of the Responses API."""
    incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
    about = {"id": "resp_1", "object": "response", "status": status, "error": None, "incomplete_details": incomplete}
    return about | {"output": list(output)} | fields


def item(content: str, kind: str = "message") -> dict:
    part = {"type": "output_text" if kind == "message" else "reasoning_text", "text": content}
    return {"type": kind, "id": "i", "status": "completed", "content": [part]}


def function_call(arguments: str) -> dict:
    return {"type": "function_call", "call_id": "c", "name": "light", "arguments": arguments}


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        (response(item("Hello.")), ()),
        (response(item("")), (EMPTY,)),
        (response(), (EMPTY,)),
        (response(item("Let me see", "reasoning")), ()),
        (response({"type": "reasoning", "summary": []}, item("Hi")), ()),
        (response({"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}), ()),
        (response(item("Hel"), status="incomplete"), (TRUNCATED,)),
        (response(item(LOOP)), (REPETITION,)),
        (response(function_call('{"a": 1}')), ()),
        (response(function_call('{"a": ')), (INVALID_JSON,)),
        (response({"type": "web_search_call", "id": "w"}), ()),
        (response(status="failed", error={"code": "server_error", "message": "x"}), (ERRORS,)),
        ({"object": "response", "output": [3, {"type": "message", "content": [4, {"text": 5}]}]}, ()),
        ({"object": "response", "output": "x", "incomplete_details": 4}, (EMPTY,)),
        (chat("Hello."), ()),
        (chat(""), (EMPTY,)),
        (chat(None), (EMPTY,)),
        (chat(None, "tool_calls", tool_calls=[{"id": "c"}]), ()),
        (chat(None, reasoning_content="Let me see"), ()),
        (chat(None, refusal="No."), ()),
        (chat([{"type": "text", "text": "Hi"}]), ()),
        (chat("Hel", "length"), (TRUNCATED,)),
        (chat("", "length"), (EMPTY, TRUNCATED)),
        (chat(PROSE), ()),
        (chat(LOOP, "length"), (TRUNCATED, REPETITION)),
        (text("Hello."), ()),
        (text("", "length"), (EMPTY, TRUNCATED)),
        ({"choices": [text("")["choices"][0], text("x")["choices"][0] | {"index": 1}]}, ()),
        ({"id": "g", "text": "Hello.", "finish_reason": "stop"}, ()),
        ({"id": "g", "text": "", "finish_reason": "length"}, (EMPTY, TRUNCATED)),
        ({"text": "", "usage": {}, "latency_ms": 1.0, "model_version": "v"}, (EMPTY,)),
        ({"error": {"type": "server_error", "code": "internal_error"}}, (ERRORS,)),
        ({"error": {"type": "server_error", "code": "non_finite"}}, (ERRORS, NON_FINITE)),
        ({"error": {"type": "invalid_request_error", "code": None}}, ()),
        # Unknown shapes have no failure.
        ({"prediction": 3}, ()),
        ({"choices": "many"}, ()),
        ([], ()),
    ],
)
def test_failures_in_whole_responses(body: object, kinds: tuple[str, ...]) -> None:
    assert find_failures(json.dumps(body).encode()) == kinds


@pytest.mark.parametrize("body", [b"\x1f\x8b\x08\x00", b"{", b'{"text": "\xff"}', b'{"text":' + b"[" * 100_000])
def test_unreadable_responses_have_no_failure(body: bytes) -> None:
    assert find_failures(body) == () and find_failures_in_stream(body, complete=True) == ()


def test_response_without_bytes_is_empty() -> None:
    assert find_failures(b"") == (EMPTY,) and find_failures_in_stream(b"", complete=True) == (EMPTY,)


def sse(*events: object, done: bool = True, mark: str = "", end: str = "\n") -> bytes:
    frames = [f"{mark}data: {json.dumps(event)}{end}{end}" for event in events]
    return "".join([*frames, f"data: [DONE]{end}{end}" if done else ""]).encode()


def delta(content: str, finish: str | None = None, index: int = 0) -> dict:
    return {"choices": [{"index": index, "delta": {"content": content}, "finish_reason": finish}]}


def response_stream(*output: object, status: str = "completed", **fields: object) -> bytes:
    """A stream of the Responses API: parts of its text come first, the whole response last."""
    first = {"type": "response.created", "response": response(status="in_progress")}
    parts = [{"type": "response.output_text.delta", "delta": "H"}, {"type": "response.output_text.done", "text": "Hi"}]
    last = {"type": f"response.{status}", "response": response(*output, status=status, **fields)}
    return sse(first, *parts, last, done=False)


OPENING = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
USAGE = {"choices": [], "usage": {"total_tokens": 4}}
LOOPING = [delta("and so ") for _ in range(70)]


@pytest.mark.parametrize(
    ("stream", "kinds"),
    [
        (sse(OPENING, delta("Hi"), delta("", "stop"), USAGE), ()),
        (sse(OPENING, delta("", "stop"), USAGE), (EMPTY,)),
        (sse(OPENING, delta("Hi", "length"), USAGE), (TRUNCATED,)),
        (sse(OPENING, *LOOPING, delta("", "stop")), (REPETITION,)),
        (sse(OPENING, delta("Hi", "length"), mark="id: a.b\n"), (TRUNCATED,)),
        (sse(OPENING, delta("Hi", "length"), mark=": 1.00000000 7\n"), (TRUNCATED,)),
        (sse(OPENING, delta("Hi", "length"), end="\r\n"), (TRUNCATED,)),
        (sse({"token": "Hi"}), ()),
        (sse(), (EMPTY,)),
        (sse({"type": "token", "token": "Hi"}, {"type": "done", "finish_reason": "length"}, done=False), (TRUNCATED,)),
        (sse({"type": "done", "usage": {}, "finish_reason": "stop"}, done=False), (EMPTY,)),
        (sse(delta("Hi"), {"error": {"type": "server_error", "code": "internal_error"}}), (ERRORS,)),
        (sse(delta("Hi"), {"error": {"type": "server_error", "code": "non_finite"}}), (ERRORS, NON_FINITE)),
        (sse({"type": "error", "error": {"type": "server_error", "code": "x"}}, done=False), (ERRORS,)),
        (sse({"n": 0}), ()),
        (sse("a", 1), ()),
        (response_stream(item("Hi")), ()),
        (response_stream(item("")), (EMPTY,)),
        (response_stream(item("Hel"), status="incomplete"), (TRUNCATED,)),
        (response_stream(item(LOOP)), (REPETITION,)),
        (response_stream(function_call('{"a": ')), (INVALID_JSON,)),
        (response_stream(status="failed", error={"code": "server_error"}), (ERRORS,)),
        (sse({"type": "error", "code": "x", "error": {"type": "server_error", "code": "x"}}, done=False), (ERRORS,)),
    ],
)
def test_streams(stream: bytes, kinds: tuple[str, ...]) -> None:
    assert find_failures_in_stream(stream, complete=True) == kinds


def test_choices_of_a_stream_are_checked_separately() -> None:
    """Two that take turns would look like a loop together, or hide one."""
    words = PROSE.split()
    mixed = [event for word in words for event in (delta(word + " "), delta("na ", index=1))]
    assert find_failures_in_stream(sse(*mixed, *[delta("na ", index=1)] * 60), complete=True) == (REPETITION,)
    twice = [delta(word + " ", index=index) for word in words for index in (0, 1)]
    assert find_failures_in_stream(sse(*twice), complete=True) == ()


def test_the_end_of_a_long_stream_is_enough_but_for_emptiness() -> None:
    stream = sse(OPENING, *LOOPING, delta("", "length"))
    assert find_failures_in_stream(stream[30:], complete=False) == (TRUNCATED, REPETITION)
    assert find_failures_in_stream(sse(OPENING, delta("", "stop"))[5:], complete=False) == ()
    assert find_failures_in_stream(b'ex": 0}\n\ndata: [DONE]\n\n', complete=False) == ()


@pytest.mark.parametrize("sound", [PROSE, json.dumps([{"name": w, "size": len(w)} for w in PROSE.split()])])
def test_sound_text_is_no_loop(sound: str) -> None:
    assert find_failures(json.dumps(chat(sound)).encode()) == ()


@pytest.mark.parametrize("period", [1, 20, 100, 200])
def test_loops_of_many_lengths_are_found(period: int) -> None:
    draw = random.Random(period)
    unit = "".join(draw.choices("etaoin shrdlu", k=period))
    assert find_failures(json.dumps(chat(PROSE + unit * (LOOP_BYTES // period + 1))).encode()) == (REPETITION,)
    # A loop that was left again is none.
    assert (
        find_failures(
            json.dumps(chat(unit * (LOOP_BYTES // period + 1) + PROSE + PROSE[::-1] + PROSE.upper())).encode()
        )
        == ()
    )


# -- JSON


CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
BROKEN = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}]


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        (chat('{"a": [1, 2.5, null]}'), ()),
        (chat(" [] "), ()),
        (chat("12"), ()),
        (chat('```json\n{"a": 1}\n```'), (INVALID_JSON,)),
        (chat('{"a": 1} and more'), (INVALID_JSON,)),
        (chat('{"a": NaN}'), (INVALID_JSON,)),
        # Another trouble, or none.
        (chat(""), (EMPTY,)),
        (chat('{"a": "b', "length"), (TRUNCATED,)),
        (chat(None, refusal="No."), ()),
        (chat('{"a": 1}', reasoning_content="Let me see"), ()),
        (chat("I call it:", "tool_calls", tool_calls=CALLS), ()),
        (chat(None, "tool_calls", tool_calls=[*CALLS, *BROKEN]), (INVALID_JSON,)),
        (chat(None, "function_call", function_call={"name": "f", "arguments": "{"}), (INVALID_JSON,)),
        (chat(None, "tool_calls", tool_calls=[{"function": {"name": "f", "arguments": ""}}]), ()),
        (chat(None, "tool_calls", tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}, 5, {}]), ()),
        (text("{"), (INVALID_JSON,)),
        ({"text": "{", "finish_reason": "stop"}, (INVALID_JSON,)),
        # Too long or too deep to look at.
        (chat("{" + " " * JSON_CHARS), ()),
        (chat("[" * 20_000), ()),
    ],
)
def test_requested_json_that_does_not_parse_is_a_failure(body: dict, kinds: tuple[str, ...]) -> None:
    found = find_failures(json.dumps(body).encode(), wants_json=True)
    assert tuple(kind for kind in found if kind != REPETITION) == kinds


def test_tool_arguments_must_be_json_and_text_only_if_requested() -> None:
    assert find_failures(json.dumps(chat(None, "tool_calls", tool_calls=BROKEN)).encode()) == (INVALID_JSON,)
    assert find_failures(json.dumps(chat("Hello.")).encode()) == ()


def piece(**delta: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


def call(index: int, arguments: str) -> dict:
    return {"index": index, "function": {"arguments": arguments}}


def test_pieces_of_a_stream_are_put_together() -> None:
    stream = piece(content='{"a"') + piece(content=": 1}")
    assert find_failures_in_stream(stream, complete=True, wants_json=True) == ()
    assert find_failures_in_stream(stream[: len(stream) // 2], complete=True, wants_json=True) == (INVALID_JSON,)
    assert find_failures_in_stream(stream + piece(content="}"), complete=False, wants_json=True) == (), (
        "not all of it is there"
    )
    calls = piece(tool_calls=[call(0, '{"a":')]) + piece(tool_calls=[call(1, "{")]) + piece(tool_calls=[call(0, "1}")])
    assert find_failures_in_stream(calls, complete=True) == (INVALID_JSON,)
    assert find_failures_in_stream(calls + piece(tool_calls=[call(1, "}")]), complete=True) == ()


@pytest.mark.finding(18)
def test_a_deadline_of_the_client_is_no_error() -> None:
    """safety 18: a `timeout` that cannot be kept counted as an error of the version."""
    late = b'{"error": {"type": "server_error", "code": "deadline_exceeded", "message": "m"}}'
    assert responses.is_deadline_exceeded(late) and responses.find_failures(late) == ()
    assert not responses.is_servers_failure(504, late) and responses.is_servers_failure(503, late)
    assert responses.is_servers_failure(504, b"") and not responses.is_servers_failure(499, b"")
    other = late.replace(b"deadline_exceeded", b"internal_error")
    assert not responses.is_deadline_exceeded(other) and responses.find_failures(other) == ("errors",)
    assert not responses.is_deadline_exceeded(b"{") and not responses.is_deadline_exceeded(
        b'{"error": "deadline_exceeded"}'
    )


def test_texts_of_responses_are_those_of_their_last_event() -> None:
    pieces = read_text_of_events(response_stream(item("Hm.", "reasoning"), item("Hello.")))
    assert pieces and pieces.ended and {index: "".join(one) for index, one in pieces.texts.items()} == {0: "Hm.Hello."}
    begun = read_text_of_events(sse({"type": "response.output_text.delta", "delta": "H"}, done=False))
    assert begun and not begun.ended and not any(begun.texts.values())
    whole = read_text(json.dumps(response(item("Hello."))).encode())
    assert whole and {index: "".join(one) for index, one in whole.texts.items()} == {0: "Hello."}
    assert read_text_of_events(response_stream(function_call("{}"))) is None
