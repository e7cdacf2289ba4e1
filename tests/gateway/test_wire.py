"""Envelopes, headers, errors, events: values only."""

import json
import time
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from slipway_gateway.wire import headers, request_fields, sse
from slipway_gateway.wire.errors import RequestError
from slipway_gateway.wire.request_fields import MAX_TEXTS
from slipway_gateway.wire.sse import KEEP_ALIVE, EventAligner, error_event
from tests.support.linear import assert_linear

ALL = request_fields.STICKY_SOURCES


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"null", b'{"model": 5}', b'{"model": ["x"]}', b"\xff", b'{"model":"x"} x']
)
def test_bad_bodies_are_400(body: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        request_fields.parse(body)
    assert refused.value.status == 400
    assert json.loads(refused.value.body())["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("value", [b"0", b'""', rb'"\\\\"', rb'"\""'])
def test_a_body_of_too_many_texts_is_a_400(value: bytes) -> None:
    with pytest.raises(RequestError, match="more than 524288 texts and names") as refused:
        request_fields.parse(b'{"n":%b' % value + b',"n":%b' % value * MAX_TEXTS + b"}")
    assert refused.value.status == 400


def test_quotes_within_a_text_are_no_texts() -> None:
    prompt = json.dumps({"model": "chat", "prompt": '{"a":"b"}' * MAX_TEXTS}).encode()
    assert request_fields.parse(prompt).model == "chat"


def test_deep_nesting_is_a_400() -> None:
    with pytest.raises(RequestError):
        request_fields.parse(b'{"user":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_foreign_fields_are_not_judged() -> None:
    assert request_fields.parse(b'{"model":"m","user":5,"messages":[{}],"x":1e999}').model == "m"


@pytest.mark.parametrize(
    ("given", "wants"),
    [
        ("", False),
        (',"response_format":{"type":"json_object"}', True),
        (',"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object"}}}', True),
        (',"response_format":{"type":"text"}', False),
        (',"response_format":{"type":["json_object"]}', False),
        (',"response_format":null', False),
        (',"response_format":"json_object"', False),
        (',"response_format":[]', False),
        (',"text":{"format":{"type":"json_schema","name":"n","schema":{}}}', True),
        (',"text":{"format":{"type":"text"}}', False),
        (',"text":{"verbosity":"medium"}', False),
        (',"text":{"format":null}', False),
        (',"text":"json_object"', False),
    ],
)
def test_json_response_format_is_detected(given: str, wants: bool) -> None:
    assert request_fields.parse(f'{{"model":"m"{given}}}'.encode()).wants_json is wants


@pytest.mark.parametrize(
    ("sent", "body", "key"),
    [
        ({"X-Session-Id": "a", "Authorization": "Bearer k"}, {"user": "u"}, "session:a"),
        ({"session-id": "a"}, {}, "session:a"),
        ({"Authorization": "Bearer k"}, {"user": "u"}, "user:u"),
        ({}, {"user": 7, "prompt_cache_key": "p"}, "user:p"),
        ({}, {"conversation": {"id": "conv_1"}}, "user:conv_1"),
        ({"Authorization": "Bearer EMPTY"}, {}, "request:id"),
        ({"Authorization": "Basic abc"}, {}, "request:id"),
        ({}, {"user": ""}, "request:id"),
    ],
)
def test_sticky_key_order(sent: dict[str, str], body: dict[str, object], key: str) -> None:
    parsed = request_fields.parse(json.dumps({"model": "m"} | body).encode())
    assert request_fields.sticky_key(CIMultiDict(sent), parsed, "id", ALL) == key


def test_api_key_is_hashed_and_sources_can_be_switched_off() -> None:
    sent = CIMultiDict({"authorization": "bearer  secret", "x-session-id": "a"})
    parsed = request_fields.parse(b'{"model":"m","user":"u"}')
    key = request_fields.sticky_key(sent, parsed, "id", ("key",))
    assert key.startswith("key:") and "secret" not in key
    assert request_fields.sticky_key(sent, parsed, "id", ()) == "request:id"


def test_hop_by_hop_headers_stay_on_their_hop() -> None:
    sent = CIMultiDict(
        [("Connection", "close, X-Private"), ("X-Private", "1"), ("Transfer-Encoding", "chunked"), ("TE", "trailers")]
    )
    sent.extend(
        [
            ("Content-Length", "3"),
            ("Host", "h"),
            ("Accept", "a"),
            ("X-Odd", "caf\udce9"),
            ("Cookie", "1"),
            ("Cookie", "2"),
        ]
    )
    crossed = headers.to_upstream(sent, "id", forwarded=("cookie",))
    assert list(crossed.items()) == [
        *(("Accept", "a"), ("Cookie", "1"), ("Cookie", "2")),
        *(("X-Request-Id", "id"), ("X-Slipway-Resumable", "1")),
    ]


def test_resume_headers_of_clients_are_dropped() -> None:
    sent = CIMultiDict({"X-Slipway-Resume": "forged", "x-slipway-resume-bytes": "5", "Last-Event-ID": "1"})
    always = {"X-Request-Id": "id", "X-Slipway-Resumable": "1"}
    assert dict(headers.to_upstream(sent, "id")) == always | {"X-Slipway-Returns": "1"}
    assert dict(headers.to_upstream(CIMultiDict({"x-slipway-resumable": "1"}), "id")) == always | {
        "X-Slipway-Returns": "1"
    }
    assert dict(headers.to_upstream(CIMultiDict({"X-Slipway-Returns": "1"}), "id")) == always
    assert "X-Slipway-Stream" not in headers.to_client(CIMultiDict({"X-Slipway-Stream": "1-1-a"}), "id", "rev")


def test_only_the_gateway_names_the_revision() -> None:
    crossed = headers.to_client(CIMultiDict({"X-Slipway-Revision": "forged", "X-Request-Id": "other"}), "id", "rev")
    assert dict(crossed) == {"X-Request-Id": "id", "X-Slipway-Revision": "rev"}


def test_request_ids() -> None:
    assert headers.request_id({"X-Request-Id": "req-1.a:b"}) == "req-1.a:b"
    for bad in ("", "a b", "x" * 129, "a\x7f", '"'):
        assert headers.request_id({"X-Request-Id": bad}) is None


@given(st.lists(st.sampled_from([b"data: a", b"\n", b"\n\n", b"\r\n\r\n", b"x", b""]), max_size=30))
def test_aligner_keeps_every_byte_and_cuts_at_events(chunks: list[bytes]) -> None:
    aligner = EventAligner()
    out = b""
    for chunk in chunks:
        out += (ready := aligner.feed(chunk))
        assert not ready or ready.endswith((b"\n\n", b"\r\n\r\n"))
    assert out + aligner.flush() == b"".join(chunks)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), min_size=1, max_size=6), st.lists(st.integers(1, 40)))
def test_events_of_one_token_are_forwarded_together(groups: list[tuple[int, int]], sizes: list[int]) -> None:
    """In whatever pieces they come. A group is a number of events that others follow, and its last event."""
    wholes = [
        b"".join(b": +\nevent: e\ndata: %d\n\n" % n for n in range(followed))
        + b": %d.0 7\ndata: %s\n\n" % (at, b"x" * size)
        for at, (followed, size) in enumerate(groups)
    ]
    data, aligner, out, begin = b"".join(wholes), EventAligner(), b"", 0
    ends = {len(b"".join(wholes[:count])) for count in range(len(wholes) + 1)}
    for size in [*sizes, len(data)]:
        out += aligner.feed(data[begin : begin + size])
        begin += size
        assert len(out) in ends
    assert out == data


def test_aligner_is_bounded() -> None:
    aligner = EventAligner()
    sent = sum(len(aligner.feed(b"x" * 65536)) for _ in range(64))
    assert sent > 2 << 20
    aligner = EventAligner()
    sent = sum(len(aligner.feed(b": +\ndata: x\n\n" * 4096)) for _ in range(64))
    assert sent > 2 << 20


EVENTS = st.sampled_from(
    [
        b": +\ndata: a\n\n",
        b": 1.0 7\ndata: b\n\n",
        b"data: c\r\n\r\n",
        b"data: d\n\n",
        b": +\n\n",
        b"data: e\r\r",
        b": +\ndata: f\r\n\r\n",
    ]
)


@given(st.lists(EVENTS, max_size=12), st.lists(st.integers(1, 9), max_size=30))
def test_what_is_forwarded_does_not_depend_on_the_pieces(events: list[bytes], sizes: list[int]) -> None:
    data, aligner, out, begin = b"".join(events) + b"data: unfinished", EventAligner(), b"", 0
    for size in [*sizes, len(data)]:
        out += aligner.feed(data[begin : begin + size])
        begin += size
    assert out == EventAligner().feed(data)
    assert aligner.held_bytes == len(data) - len(out) and out + aligner.flush() == data


LINE_FEEDS = st.sampled_from([b": +\ndata: a\n\n", b": 1.0 7\ndata: b\n\n", b"data: d\n\n"])
COMMENTS = st.sampled_from([b":\n", b":\n\n", b": ping\n\n", b": ping\r\n\r\n", b":\n:\n"])


@example([(b": 1.0 7\ndata: b\n\n", True, b":\n\n")], [2])  # the comment's empty line comes with the next event
@given(st.lists(st.tuples(LINE_FEEDS, st.booleans(), COMMENTS), max_size=12), st.lists(st.integers(1, 9), max_size=30))
def test_no_comment_ends_with_an_empty_line(parts: list[tuple[bytes, bool, bytes]], sizes: list[int]) -> None:
    """reports.md, 1: OpenAI's clients took that line for an event without data, and failed."""
    data = b"".join((comment if has_comment else b"") + event for event, has_comment, comment in parts)
    aligner, out, begin = EventAligner(), b"", 0
    for size in [*sizes, len(data)]:
        ready = aligner.feed(data[begin : begin + size])
        out += b"" if ready == KEEP_ALIVE else ready
        begin += size
    assert out + aligner.flush() == b"".join(event for event, _, _ in parts)


@pytest.mark.parametrize("comment", [b":\n", b":\n\n", b": ping\n\n", b":\n:\n", b": x\r\n\r\n"])
def test_a_comment_alone_is_forwarded_at_once_as_a_line(comment: bytes) -> None:
    aligner = EventAligner()
    assert aligner.feed(b": 1.0 7\ndata: a\n\n") == b": 1.0 7\ndata: a\n\n"
    assert aligner.feed(comment) == KEEP_ALIVE and not aligner.held_bytes
    assert aligner.feed(b": 2.0 8\ndata: b\n\n") == b": 2.0 8\ndata: b\n\n"
    assert aligner.feed(b": engine_crashed\n\n") == b": engine_crashed\n\n", "which is for the gateway"


@pytest.mark.finding("F9")
@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    "event", [b": +\n\n", b": +\ndata: xxxxxxxxxxxxxxxxxxx\n\n", b"x" * 20, b"\n", b"\r\n", b"data: x\n\n"]
)
def test_the_work_for_a_stream_is_linear_in_its_bytes(event: bytes, size: int) -> None:
    """safety-2, F9: each piece cost a copy of all that was held back, and a walk over its events: 15 ms for 5 bytes."""

    def feed(count: int) -> None:
        data, aligner = event * (count * size // len(event)), EventAligner()
        for begin in range(0, len(data), size):
            aligner.feed(data[begin : begin + size])

    assert_linear(feed, max(200, 8000 // size))


def test_events_that_are_followed_for_ever_are_handed_on() -> None:
    """A token has a few events; a server that never ends one holds back no more than 64."""
    aligner = EventAligner()
    sent = [len(aligner.feed(b": +\ndata: x\n\n")) for _ in range(200)]
    assert sent.index(65 * 13) == 64 and max(sent) == 65 * 13 and aligner.held_bytes <= 64 * 13


EVENTS = (
    b": +\ndata: a\n\n",
    b"data: b\n\n",
    b": 1.0 7\ndata: c\r\n\r\n",
    b": +\n\n",
    b"data: d\r\r",
    b"data: e\n\n\n",
)


@given(st.lists(st.sampled_from(EVENTS), max_size=300), st.lists(st.integers(0, 4000), max_size=4))
@settings(max_examples=150, deadline=None)
def test_many_events_at_once_are_handed_on_as_one_by_one(events: list[bytes], cuts: list[int]) -> None:
    """A plain event after each twentieth: no token has more events than are held for it."""
    data = b"".join(event + (b"data: f\n\n" if n % 20 == 19 else b"") for n, event in enumerate(events))
    at = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
    pieces = [data[begin:end] for begin, end in pairwise(at)]
    handed_on = []
    for many_bytes in (0, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sse, "_MANY_BYTES", many_bytes)
            aligner = EventAligner()
            handed_on.append([*map(aligner.feed, pieces), aligner.flush()])
    assert handed_on[0] == handed_on[1]


@pytest.mark.finding("F9")
def test_many_events_at_once_take_about_as_long_as_few() -> None:
    """Of 64 KiB of marks alone a piece took 24 ms, for which no other stream went on."""

    def feed(size: int) -> float:
        aligner, began = EventAligner(), time.process_time()
        for _ in range(10):
            aligner.feed(b": +\n\n" * size)
        return time.process_time() - began

    assert min(feed(16_000) for _ in range(3)) < 8 * min(feed(1000) for _ in range(3))


def test_error_events() -> None:
    event, done, _ = error_event("/v1/chat/completions", "upstream_died", "gone").split(b"\n\n")
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "upstream_died"
    assert done == b"data: [DONE]"
    name, data = error_event("/v1/responses", "upstream_died", "gone").split(b"\n")[:2]
    event = json.loads(data.removeprefix(b"data: "))
    assert (name, event["type"], event["code"]) == (b"event: error", "error", "upstream_died")
    assert event["error"]["message"] == event["message"] == "gone"
    own = json.loads(error_event("/v1/generate", "upstream_died", "gone").removeprefix(b"data: "))
    assert own["type"] == "error" and own["error"]["code"] == "upstream_died"


@pytest.mark.finding(18, "S12")
@pytest.mark.parametrize(
    ("given", "excused"),
    [
        ({}, set()),
        ({"max_tokens": 1}, {"truncated", "empty"}),
        ({"max_completion_tokens": 255}, {"truncated"}),
        ({"max_tokens": 100_000}, {"truncated"}),
        ({"max_tokens": None}, set()),
        ({"max_tokens": "many"}, set()),
        ({"stop": ["a"]}, {"empty", "invalid_json"}),
        ({"stop_tokens": ["a"]}, {"empty", "invalid_json"}),
        ({"stop_tokens": []}, set()),
        ({"stop": None, "stop_token_ids": [], "logit_bias": {}, "ignore_eos": False}, set()),
        ({"logit_bias": {"5": -100}}, {"truncated", "empty", "repetition", "invalid_json"}),
        ({"ignore_eos": True, "max_tokens": 4096}, {"truncated", "empty", "repetition", "invalid_json"}),
        ({"response_format": {"type": "json_object"}}, set()),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, {"truncated", "repetition"}),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, {"truncated", "repetition"}),
        ({"max_output_tokens": 100}, {"truncated"}),
        ({"max_output_tokens": 3}, {"truncated", "empty"}),
        ({"structured_outputs": {"choice": [""]}}, {"truncated", "repetition", "empty"}),
        ({"guided_grammar": "start: x"}, {"truncated", "repetition", "empty"}),
        ({"guided_json": None}, set()),
        ({"tools": [{"type": "function"}]}, set()),
        ({"tools": [{"type": "function"}], "tool_choice": "auto"}, set()),
        ({"tools": [{"type": "function"}], "tool_choice": "required"}, {"truncated", "repetition", "empty"}),
        ({"tools": [{"type": "function"}], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, set()),
        ({"tools": [{}], "tool_choice": {"allowed_tools": {"mode": "auto"}}}, set()),
        ({"tools": [{}], "tool_choice": {"allowed_tools": {"mode": "required"}}}, {"truncated", "repetition", "empty"}),
        ({"tools": [{}], "tool_choice": {"type": "function"}}, {"truncated", "repetition", "empty"}),
        ({"tools": [{}], "tool_choice": [[]]}, {"truncated", "repetition", "empty"}),
        ({"tools": [{"function": {"strict": True}}]}, {"truncated", "repetition", "empty"}),
        ({"tools": [{"function": {"strict": True}}], "tool_choice": "none"}, set()),
    ],
)
def test_failures_that_a_request_provokes_are_excused(given: dict[str, object], excused: set[str]) -> None:
    """safety 18, S12: what stops at the client's own `max_tokens` counted as truncated."""
    assert request_fields.parse(json.dumps({"model": "m"} | given).encode()).excused == excused


def test_client_is_its_key_else_its_address_never_its_session() -> None:
    keyed = CIMultiDict({"Authorization": "Bearer k1", "X-Session-Id": "s1", "X-Forwarded-For": "10.0.0.9"})
    sources = request_fields.SHARE_SOURCES
    same = request_fields.client(CIMultiDict({"Authorization": "Bearer k1"}), "10.0.0.2", sources)
    assert request_fields.client(keyed, "10.0.0.1", sources) == same and "k1" not in same
    assert request_fields.client(CIMultiDict({"X-Session-Id": "s1"}), "10.0.0.1", sources) == "address:10.0.0.1"


def test_a_field_whose_name_is_no_text_goes_to_the_server() -> None:
    """Seen: 500 internal_error. The server refuses it, whatever the model is called."""
    body = b'{"model":"ns/name","\xff":1}'
    assert request_fields.with_model(body, request_fields.parse(body), "name") == b'{"model":"name","\xff":1}'


def test_hop_by_hop_names_are_read_from_every_connection_header() -> None:
    sent = CIMultiDict(
        [
            ("Connection", "keep-alive"),
            ("X-First", "1"),
            ("Connection", "X-Hop, X-Second"),
            ("X-Hop", "1"),
            ("X-Second", "1"),
        ]
    )
    for crossed in (headers.to_upstream(sent, "id"), headers.to_client(sent, "id", "rev")):
        assert "X-First" in crossed and not {"Connection", "X-Hop", "X-Second"} & set(crossed)
