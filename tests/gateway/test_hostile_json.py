"""JSON of clients and pods in which anything may be: no objects are made of it, and it takes the time of one look."""

import contextlib
import json
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from slipway_gateway.feedback import entries
from slipway_gateway.grpc_api import messages, statuses
from slipway_gateway.identity import tokens
from slipway_gateway.mirror.scoring import build_scoring_request
from slipway_gateway.mirror.shadow_request import ShadowRequest, make_pair_copy, make_repeatable
from slipway_gateway.quotas.estimate import estimate
from slipway_gateway.scorers import ballot
from slipway_gateway.wire import errors, json_values, predictions, request_fields, responses
from slipway_gateway.wire.errors import RequestError
from slipway_gateway.wire.json_values import ABSENT
from slipway_gateway.wire.request_fields import RequestFields
from tests.support.linear import assert_linear

SIZE = 256 << 10
SPARE_BYTES = 64 << 10


def filled(piece: bytes, begin: bytes, end: bytes, size: int = SIZE) -> bytes:
    return begin + piece * ((size - len(begin) - len(end)) // len(piece)) + end


VALUES = {
    "lists": filled(b"[],", b"[", b"[]]"),
    "objects": filled(b'{"":0},', b"[", b"{}]"),
    "keys": b"{" + b",".join(b'"%07d":0' % n for n in range(SIZE // 12)) + b"}",
    "one key": filled(b'"":0,', b"{", b'"":0}'),
    "texts": filled(b'"",', b"[", b'""]'),
    "numbers": filled(b"1,", b"[", b"1]"),
    "digits": filled(b"1", b"1", b"1"),
    "text": filled(b"a", b'"', b'"'),
    "escapes": filled(b"\\n", b'"', b'"'),
    "wide text": filled(b"\\u00e9", b'"\\ud83d\\ude00', b'"'),
    "no text": filled(b"\xff", b'"', b'"'),
    "nested": b"[" * 900 + b"]" * 900,
}
NAMES = [name for name in RequestFields.__struct_fields__ if name != "model"]


def peak_bytes(work: Callable[[], object]) -> int:
    """Most memory that is held at once while work is done, beyond that of before."""
    with contextlib.suppress(RequestError, ValueError):
        work()  # what is made once and kept
    tracemalloc.start()
    try:
        with contextlib.suppress(RequestError, ValueError):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def looked_at(body: bytes) -> None:
    """What the gateway reads of a request's body, in its order."""
    fields = request_fields.parse(body)
    request_fields.sticky_key({}, fields, "id", request_fields.STICKY_SOURCES)
    request_fields.tenant({}, fields, request_fields.TENANT_SOURCES, "salt")
    _ = (fields.streams, fields.version, fields.wants_json, fields.excused, fields.lacks_usage)
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/rerank"):
        estimate(fields, path, len(body), 512, computes=True, writes_text=path != "/v1/rerank")


@pytest.mark.finding("F6")
@pytest.mark.parametrize("value", VALUES)
def test_a_field_with_anything_in_it_takes_no_memory(value: str) -> None:
    """safety-2, F6: 16 MiB of lists in `n` took 400 MiB, and 1.5 million keys 360 MiB."""
    for name in [*NAMES, "unknown"]:
        body = b'{"model":"m","%b":%b}' % (name.encode(), VALUES[value])
        copies = len(body) if name in ("prompt", "prompt_embeds", "documents", "text_2") else 0  # to count its commas
        assert peak_bytes(partial(looked_at, body)) < copies + SPARE_BYTES, name


@pytest.mark.finding("F6")
@pytest.mark.parametrize("value", VALUES)
def test_a_member_is_set_by_one_copy(value: str) -> None:
    body = b'{"model":"a/m","stream":true,"x":%b}' % VALUES[value]
    fields = request_fields.parse(body)
    assert peak_bytes(lambda: request_fields.with_model(body, fields, "m")) < len(body) + SPARE_BYTES
    assert peak_bytes(lambda: request_fields.with_usage(body, fields)) < len(body) + SPARE_BYTES


@pytest.mark.finding("F6")
@pytest.mark.parametrize("value", VALUES)
def test_a_body_takes_the_time_of_one_look_at_it(value: str) -> None:
    """safety-2, F6: other requests waited for half a second, where those of as much text wait for 20 ms."""
    body = b'{"model":"m","n":%b}' % VALUES[value]

    def seconds(work: Callable[[bytes], object]) -> float:
        began_s = time.thread_time()
        with contextlib.suppress(RequestError, msgspec.MsgspecError):
            work(body)
        return time.thread_time() - began_s

    look = msgspec.json.Decoder(msgspec.Raw).decode
    once_s, read_s = (min(seconds(work) for _ in range(5)) for work in (look, request_fields.parse))
    assert read_s < 5 * max(once_s, 0.001)


@pytest.mark.finding("F6")
@pytest.mark.parametrize(
    "before",
    [
        b'{"choices":',
        b'{"choices":[{"message":{"content":',
        b'{"choices":[{"message":{"tool_calls":',
        b'{"choices":[{"message":{"tool_calls":[{"function":',
        b'{"error":',
        b'{"error":{"code":',
        b'{"text":',
        b'{"object":"response","output":',
        b'{"object":"response","output":[{"type":"message","content":',
        b'{"object":"response","incomplete_details":',
        b'{"type":"response.completed","response":',
        b'{"unknown":',
    ],
)
def test_a_response_with_anything_in_it_takes_little_memory(before: bytes) -> None:
    """A pod's whole response of 1 MiB became objects for 340 ms, and 30 MiB."""
    closed = b"".join({123: b"}", 91: b"]"}[one] for one in reversed(before) if one in b"{[")
    readers: tuple[Callable[[bytes], object], ...] = (
        partial(responses.find_failures, wants_json=True),
        responses.read_text,
        responses.is_deadline_exceeded,
        errors.code_and_message,
        errors.reports_crash,
        partial(statuses.details_of, 500),
        messages.model_metadata,
    )
    for name, value in VALUES.items():
        # A text is read as one, and joined: its characters may take four bytes each.
        most = 20 * SIZE if name in ("text", "escapes", "wide text") else 3 * SIZE
        for read in readers:
            assert peak_bytes(partial(read, before + value + closed)) < most, (name, read)


@pytest.mark.finding("F6")
def test_choices_are_counted_before_they_are_read() -> None:
    choices = [{"index": n, "message": {"content": "x"}, "finish_reason": "length"} for n in range(2049)]
    assert responses.find_failures(json.dumps({"choices": choices[:-1]}).encode()) == ("truncated",)
    assert responses.find_failures(json.dumps({"choices": choices}).encode()) == ()


@pytest.mark.finding("F6")
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "name", ["temperature", "seed", "store", "background", "tools", "web_search_options", "prompt"]
)
def test_a_copy_is_made_without_objects(name: str, value: str) -> None:
    body = b'{"model":"m","%b":%b}' % (name.encode(), VALUES[value])
    request = ShadowRequest("/v1/chat/completions", CIMultiDict(), body)

    def copied() -> None:
        build_scoring_request(request, ("text",))
        ballot.prompt_of("/v1/chat/completions", body)
        make_repeatable(request, "id")

    assert peak_bytes(copied) < len(body) + SPARE_BYTES


@pytest.mark.finding("F6")
def test_entries_that_are_too_many_become_no_objects() -> None:
    body = filled(b'{"id":"a"},', b"[", b'{"id":"a"}]', entries.MAX_BODY_BYTES)
    assert peak_bytes(lambda: entries.parse(body)) < 1 << 20
    with pytest.raises(RequestError) as refused:
        entries.parse(body)
    assert refused.value.code == "invalid_feedback"


@pytest.mark.finding("F6")
@pytest.mark.parametrize("value", VALUES)
def test_keys_of_an_issuer_are_read_one_by_one(value: str) -> None:
    body = b'{"keys":[{"kty":"RSA","n":%b}]}' % VALUES[value]
    assert peak_bytes(lambda: tokens.parse_keys(body)) < SPARE_BYTES


@pytest.mark.finding("F9")
@pytest.mark.parametrize("piece", [b"{},", b'{"parameters":{"binary_data_size":0}},', b'{"datatype":"FP32"},'])
def test_the_outputs_of_a_classic_model_are_read_in_linear_time(piece: bytes) -> None:
    """6 KB of outputs cost 0.34 s and 64 KiB 40 s: each one added up the sizes of all before it."""

    def read(count: int) -> None:
        body = b'{"outputs":[' + piece * count + b"{}]}"
        predictions.read_predictions("/v2/models/m/infer", {}, body[: predictions.MAX_BYTES])

    assert_linear(read, 200)


def test_a_shape_of_many_dimensions_is_no_shape() -> None:
    body = b'{"outputs":[{"datatype":"FP32","shape":[1' + b",65535" * 9000 + b'],"data":[1.5]}]}'
    found = predictions.read_predictions("/v2/models/m/infer", {}, body)
    assert found is not None and [row and row.value for row in found.rows] == [1.5]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.finding("F6")
@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6))
def test_a_value_of_any_type_is_forwarded(fields: dict[str, object]) -> None:
    """The server names the error; the gateway takes what it cannot use as absent."""
    body = msgspec.json.encode({"model": "m", "prompt": "p"} | fields)
    looked_at(body)
    read = request_fields.parse(body)
    assert read.streams is (fields.get("stream") is True)
    if read.lacks_usage:
        options = fields.get("stream_options")
        wanted = (options if isinstance(options, dict) else {}) | {"include_usage": True}
        changed = msgspec.json.decode(request_fields.with_usage(body, read))
        assert changed == msgspec.json.decode(body) | {"stream_options": wanted}
    else:
        options = fields["stream_options"]
        assert not isinstance(options, dict) or options["include_usage"] is True


@given(JSON)
def test_values_are_read_as_what_they_are(value: object) -> None:
    raw = msgspec.Raw(msgspec.json.encode(value))
    assert json_values.is_null(raw) is (value is None) and json_values.is_true(raw) is (value is True)
    assert json_values.text_of(raw) == (value if isinstance(value, str) else None)
    assert json_values.does_nothing(raw) is (not value and not isinstance(value, float))
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**19
    assert json_values.integer_of(raw) == (value if whole else None)
    numbers = isinstance(value, list) and value and type(value[0]) in (int, float)
    assert json_values.count_items(raw) == (len(value) if isinstance(value, list) and value and not numbers else 1)
    assert [msgspec.json.decode(item) for item in json_values.first_items(raw)] == (
        value if isinstance(value, list) else []
    )


def test_what_is_absent_is_nothing() -> None:
    assert json_values.is_null(ABSENT) and json_values.does_nothing(ABSENT) and not json_values.is_text(ABSENT)
    assert (
        json_values.text_of(ABSENT) is json_values.integer_of(ABSENT) is json_values.lenient_integer_of(ABSENT) is None
    )
    assert json_values.count_items(ABSENT) == 1 and json_values.first_items(ABSENT) == []


def test_a_long_name_counts_by_its_hash() -> None:
    short, long, other = (json.dumps({"user": "u" * size}).encode() for size in (1000, 100_000, 100_001))
    keys = [request_fields.sticky_key({}, request_fields.parse(body), "id", ("user",)) for body in (short, long, other)]
    assert keys[0] == "user:" + "u" * 1000 and len(set(keys)) == 3
    assert all(key.startswith("user:sha256:") and len(key) < 100 for key in keys[1:])


def test_pairs_are_copied_of_requests_whose_tools_are_functions() -> None:
    def copied(**fields: object) -> bool:
        body = msgspec.json.encode({"model": "m", "messages": []} | fields)
        return make_pair_copy(ShadowRequest("/v1/chat/completions", CIMultiDict(), body), "id") is not None

    assert (
        copied() and copied(tools=[]) and copied(tools=None) and copied(tools=[{"type": "function"}, {"function": {}}])
    )
    assert copied(tools=[{"type": "function"}] * 256) and copied(background=False) and copied(store=True)
    for tools in ([{"type": "mcp"}], [{"type": 3}], [3], {}, "x", [{"type": "function"}] * 257):
        assert not copied(tools=tools)
    assert not copied(background=True) and not copied(web_search_options={})
