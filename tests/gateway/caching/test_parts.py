"""Keys, directives, final responses and copies: the pure parts."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from slipway_contracts.route_table import ResponseCache
from slipway_gateway.caching import caches
from slipway_gateway.caching.directives import Directives, directives_of
from slipway_gateway.caching.entry import kept_events, kept_headers, own_id_places, with_new_id
from slipway_gateway.caching.finality import is_final, is_final_stream
from slipway_gateway.caching.request_key import canonical, entry_key
from slipway_gateway.fast_lane.table import why_python
from slipway_gateway.routing.routes_file import parse
from slipway_gateway.routing.table import Problem, Route, RouteTable

CHAT = "/v1/chat/completions"
HEX = "0123456789abcdef" * 2
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
LEFT_OUT = {"user", "metadata", "stream_options", "stream", "safety_identifier", "prompt_cache_key", "priority"}
FIELDS = st.dictionaries(st.sampled_from(["user", "metadata", "n", "stop", "x", "y"]), VALUES, max_size=4)


def digest(fields: dict[str, Any], path: str = CHAT, **headers: str) -> bytes | None:
    body = json.dumps({"model": "m", "temperature": 0} | fields).encode()
    found = canonical(path, CIMultiDict(headers), body)
    return found.digest if found else None


def written(fields: dict[str, Any]) -> str:
    """What of the fields counts, so that 1, 1.0 and True differ."""
    return json.dumps({name: value for name, value in fields.items() if name not in LEFT_OUT}, sort_keys=True)


@given(FIELDS, FIELDS)
def test_requests_are_equal_if_all_fields_that_count_are(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (digest(one) == digest(other)) == (written(one) == written(other))
    backwards = dict(reversed(one.items()))
    assert digest(one) == digest(backwards)


def test_path_query_and_formats_are_part_of_a_key() -> None:
    found = {
        digest({}), digest({}, f"{CHAT}?a=1"), digest({}, "/v1/completions"), digest({}, **{"Content-Type": "a/b"}),
        digest({}, Accept="a/b"), digest({"stream": True}), digest({"stream": 1}),
        digest({"stream": True, "stream_options": {"include_usage": True}}),
    }  # fmt: skip
    assert len(found) == 7, "a `stream` that is not true is left out"
    assert digest({}, accept="a/b") == digest({}, Accept="a/b")
    assert digest({"stream": True, "stream_options": {"include_usage": False}}) == digest({"stream": True})


def test_no_part_of_a_key_runs_into_the_next() -> None:
    parts = [("a", "b", "", "", b""), ("ab", "", "", "", b""), ("", "ab", "", "", b""), ("a", "", "b", "", b"")]
    assert len({entry_key(*one) for one in parts}) == 4


@pytest.mark.parametrize(
    "body",
    [b"[]", b"1", b'{"temperature":0', b'{"temperature":0,"x":{"a":1,"a":1}}', b'{"temperature":NaN}', b"\xff", b"",
     b'{"temperature":0,"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}", b'{"temperature":0,"x":' + b"9" * 5000 + b"}"],
    ids=lambda body: repr(body[:30]),
)  # fmt: skip
def test_what_cannot_be_compared_is_no_request_with_one_response(body: bytes) -> None:
    assert canonical(CHAT, CIMultiDict(), body) is None


@pytest.mark.parametrize(
    ("fields", "kept"),
    [({}, False), ({"store": True}, False), ({"store": False}, True), ({"store": False, "background": True}, False),
     ({"store": False, "previous_response_id": "r"}, False), ({"store": False, "tools": [{"type": "mcp"}]}, False)],
)  # fmt: skip
def test_of_the_responses_api_what_its_server_does_not_store(fields: dict[str, Any], kept: bool) -> None:
    assert (digest(fields, "/v1/responses") is not None) == kept


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_what_no_model_computes_is_not_kept(path: str) -> None:
    assert digest({}, path) is None


@given(st.lists(st.text(max_size=40), max_size=4))
def test_any_directives_are_read(values: list[str]) -> None:
    found = directives_of(values)
    assert found.max_age_s is None or 0 <= found.max_age_s <= 1 << 31


def test_directives() -> None:
    assert directives_of(["no-cache, max-age=5", 'MAX-AGE="7"']) == Directives(no_cache=True, max_age_s=7)
    assert directives_of(["max-age=-1"]).max_age_s == 0
    assert directives_of(["max-age=" + "9" * 40]).max_age_s == 1 << 31
    assert directives_of(["max-age"]).max_age_s == 0


def choice(finish: str | None, **more: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"content": "a"}, "finish_reason": finish} | more


@pytest.mark.parametrize(
    ("path", "body", "final"),
    [
        (CHAT, {"choices": [choice("stop")]}, True),
        (CHAT, {"choices": [choice("tool_calls"), choice("length", index=1)]}, True),
        (CHAT, {"choices": [choice("stop"), choice(None, index=1)]}, False),
        (CHAT, {"choices": []}, False),
        (CHAT, {"choices": [choice("stop")], "error": {"message": "no"}}, False),
        (CHAT, {"error": {"message": "no"}}, False),
        (CHAT, {}, False),
        ("/v1/responses", {"object": "response", "status": "completed", "error": None}, True),
        ("/v1/responses", {"object": "response", "status": "incomplete"}, False),
        ("/v1/generate", {"text": "a", "finish_reason": "stop"}, True),
        ("/v1/generate", {"text": "a", "finish_reason": "error"}, False),
        ("/api/v1/generate", {"text": "a"}, True),
        ("/v1/rerank", {"results": []}, True),
        ("/rerank", [{"index": 0}], True),
        ("/v2/models/m/infer", {"error": "no"}, False),
        ("/v2/models/m/infer", {"outputs": []}, True),
    ],
    ids=str,
)  # fmt: skip
def test_whole_responses_are_final_or_not(path: str, body: Any, final: bool) -> None:
    assert is_final(path, json.dumps(body).encode(), is_json=True) == final
    assert not is_final(path, json.dumps(body).encode()[:-1], is_json=True)
    assert not is_final(path, b"", is_json=True)


def events(*parts: Any, done: bool = True) -> bytes:
    written = [b"data: %s\n\n" % json.dumps(part).encode() for part in parts]
    return b"".join(written) + b"data: [DONE]\n\n" * done


def delta(finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": "a"}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("stream", "final"),
    [
        (events(delta(), delta("stop")), True),
        (events(delta(), delta("stop"), {"choices": [], "usage": {}}), True),
        (events(delta(), delta(index=1), delta("stop")), False),
        (events(delta(), delta("content_filter")), False),
        (events(delta(), delta("stop"), done=False), False),
        (events(delta(), delta("stop"))[:-1], False),
        (events(delta(), {"error": {"message": "no"}}), False),
        (events(), False),
        (b"", False),
        (events({"type": "response.created"}, {"type": "response.completed", "response": {"status": "completed"}},
                done=False), True),
        (events({"type": "response.incomplete", "response": {"status": "incomplete"}}, done=False), False),
        (events({"type": "token", "token": "a"}, {"type": "done", "finish_reason": "stop"}, done=False), True),
        (events({"type": "token", "token": "a"}, {"type": "error", "error": {}}, done=False), False),
        (events({"token": "a"}, {"token": "b"}), True),
        (events({"token": "a"}, done=False), False),
    ],
)  # fmt: skip
def test_streams_are_final_or_not(stream: bytes, final: bool) -> None:
    assert is_final_stream(stream) == final


def test_a_copy_has_an_id_of_its_own_wherever_it_is_written() -> None:
    own = "chatcmpl-" + "a1" * 16
    body = json.dumps({"id": own, "x": f'"{own}"', "parts": [{"id": own}, {"id": "call_0"}]}).encode()
    found = json.loads(with_new_id(body, HEX))
    assert found["id"] == found["parts"][0]["id"] == f"chatcmpl-{HEX}"
    assert found["x"] == f'"{own}"', "a text is no id"
    assert found["parts"][1]["id"] == "call_0"
    uuid = b'{"id": "0b8b2b9e-3f0b-4c9e-9d4e-000000000000"}'
    assert with_new_id(uuid, HEX) == b'{"id": "01234567-9abc-ef01-3456-89abcdef0123"}'
    for other in (b'{"id": 5}', b'{"id": "c"}', b"", b"\x00\xff", b'{"a": "b"}'):
        assert with_new_id(other, HEX) == other


def test_kept_events_have_no_ids_and_no_comments() -> None:
    parts = [b": 1.ab 5\ndata: a\n\n", b": keep\n\nid: x\ndata: b\n\n: +\nretry: 3\ndata: c\n\n", b"data: [DONE]\n\n"]
    assert kept_events(parts) == b"data: a\n\ndata: b\n\ndata: c\n\ndata: [DONE]\n\n"


def test_headers_of_a_moment_are_not_kept() -> None:
    headers = CIMultiDict(
        {"Content-Type": "a/b", "Date": "x", "Age": "5", "X-Request-Id": "r", "X-Slipway-Cache": "hit", "X-Own": "o"}
    )
    assert dict(kept_headers(headers) or ()) == {"Content-Type": "a/b", "X-Own": "o"}
    assert kept_headers(CIMultiDict({"X-Own": "o" * 5000})) is None


def test_a_route_with_a_cache_is_pythons_where_the_lane_has_no_copies() -> None:
    route = Route("a/b", "u", "m", cache=ResponseCache(60))
    assert why_python(route, has_copies=False) == "cache"
    assert not why_python(route, has_copies=True)
    assert why_python(Route("a/b", "u", "m", cache=ResponseCache(60), feedback=True)) == "feedback"


@given(
    st.sampled_from(["chatcmpl-", "", "c_"]), st.text("0123456789abcdef-", min_size=8, max_size=40), st.integers(0, 3)
)
def test_places_of_an_id_are_those_that_a_copy_replaces(prefix: str, own: str, repeated: int) -> None:
    body = json.dumps({"id": prefix + own, "x": own, "more": [{"id": prefix + own}] * repeated}).encode()
    length, begins = own_id_places(body)
    made = bytearray(body)
    for begin in begins:
        for at in range(length):
            if made[begin + at] != ord("-"):
                made[begin + at] = ord(HEX[at % 32])
    assert bytes(made) == with_new_id(body, HEX)
    assert (length == 0) == (with_new_id(body, HEX) is body)


def test_a_routes_file_has_a_cache() -> None:
    text = "models: {m: {cache: {ttlSeconds: %s, shared: true}, backends: [{endpoints: ['http://a:1']}]}}"
    found = parse(text % 60, 1)
    assert isinstance(found, RouteTable)
    assert found.models["m"].cache == ResponseCache(60, True)
    refused = parse(text % 0, 1)
    assert isinstance(refused, Problem)
    assert "cache.ttlSeconds must be from 1 to 2592000, and is 0" in refused.text


@pytest.mark.parametrize(
    "inputs",
    [[1000] * 40_000, [f"{n % 90 + 10}" for n in range(2048)], [[500, 600]] * 2000, [[1000 + n] for n in range(2000)]],
    ids=["tokens", "texts", "lists", "small lists"],
)
def test_inputs_take_no_more_memory_than_is_counted(inputs: list[Any]) -> None:
    body = json.dumps({"model": "m", "input": inputs}, separators=(",", ":")).encode()
    tracemalloc.start()
    found = canonical("/v1/embeddings", CIMultiDict(), body)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert found is not None
    assert held <= caches._BYTES_PER_BYTE * len(body) + caches._INPUT_BYTES * len(found.items)
