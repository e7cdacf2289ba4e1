"""The fields of a body, names of its client, and what it may cost: as Rust reads them and as Python does."""

from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st
from multidict import CIMultiDict

from slipway_gateway.quotas.bounds import UsageBound
from slipway_gateway.quotas.estimate import estimate, output_limit, repeated_bytes, responses
from slipway_gateway.wire import errors, json_values, request_fields
from slipway_gateway.wire.inference import ROUTED_PATHS
from slipway_gateway.wire.request_fields import SESSION_HEADERS, RequestFields
from tests.plane.bodies import FIELDS, ODD_VALUES, bodies, vary_body
from tests.plane.mutation import varying
from tests.plane.native import FEW, MILLION, SKIPPED, Pair, name_of, needs_plane, rust, twins

pytestmark = needs_plane

KINDS = {"empty": 1, "truncated": 2, "repetition": 4, "invalid_json": 8}
LARGEST = 2**126
PATHS = (*ROUTED_PATHS, "/v1/other")


def python_fields(body: bytes) -> RequestFields | None:
    """None where Python refuses it."""
    try:
        return request_fields.parse(body)
    except errors.RequestError:
        return None


def described(fields: RequestFields) -> dict[str, Any]:
    """What Rust returns of a body, from Python's fields."""
    raw = {name: bytes(getattr(fields, name)) for name in FIELDS if name != "model"}
    return {
        "model": fields.model,
        "values": {name: value for name, value in raw.items() if value},
        "streams": fields.streams,
        "lacks_usage": fields.lacks_usage,
        "version": fields.version,
        "wants_json": fields.wants_json,
        "excused": sum(KINDS[kind] for kind in fields.excused),
        "responses": responses(fields),
        "repeated_bytes": repeated_bytes(fields),
    }


def compare_fields(body: bytes) -> None:
    read = rust(twins.request_fields_of, body)
    if read == SKIPPED:
        return
    fields = python_fields(body)
    assert fields is not None, "Rust reads what Python refuses"
    expected = described(fields)
    read["responses"], expected["responses"] = (min(one["responses"], LARGEST) for one in (read, expected))
    assert read == expected
    for name in ("other", "n/m:v1@\u00e9"):
        changed = rust(twins.with_model, body, name)
        assert changed in (SKIPPED, request_fields.with_model(body, fields, name))
    if fields.lacks_usage:
        assert rust(twins.with_usage, body) == request_fields.with_usage(body, fields)


def compare_numbers(value: bytes) -> None:
    """Of a value that is valid JSON, as all are that were read."""
    compare_fields(b'{"n":%b}' % value)
    if python_fields(b'{"n":%b}' % value) is None or rust(twins.request_fields_of, b'{"n":%b}' % value) == SKIPPED:
        return
    raw = request_fields.parse(b'{"n":%b}' % value).n
    integer, lenient, items, nothing = twins.numbers_of(bytes(raw))
    wanted = json_values.lenient_integer_of(raw)
    assert integer == json_values.integer_of(raw)
    assert lenient == (None if wanted is None else max(-(2**127), min(wanted, 2**127 - 1)))
    assert (items, nothing) == (json_values.count_items(raw), json_values.does_nothing(raw))


def compare_estimates(case: tuple[bytes, str]) -> None:
    body, path = case
    fields = python_fields(body)
    for default, computes, writes in ((512, True, True), (4, True, True), (512, True, False), (512, False, True)):
        found = rust(twins.estimate_of, body, path, default, computes, writes)
        if found == SKIPPED or fields is None:
            assert found == SKIPPED
            return
        expected = estimate(fields, path, len(body), default, computes=computes, writes_text=writes)
        assert found == (expected.input_tokens, expected.output_tokens, output_limit(fields, path))


HEADER_VALUES = st.sampled_from(
    ["", "s1", "Bearer slw_x", "bearer  KEY ", "Bearer none", "Bearer NONE", "Basic x", "Bearer\tx", "Bearer", "abc "]
)
HEADERS = st.lists(
    st.tuples(st.sampled_from([*SESSION_HEADERS, "Authorization", "X-Session-Id", "AUTHORIZATION"]), HEADER_VALUES),
    max_size=4,
)


def compare_names(case: tuple[list[tuple[str, str]], bytes, tuple[bool, bool, bool], str]) -> None:
    listed, body, flags, own = case
    fields = python_fields(body)
    plain = [(name, value.encode()) for name, value in listed]
    found = rust(twins.names_of, plain, body, "id-1", flags, own, "salt", "10.0.0.1")
    if found == SKIPPED or fields is None:
        assert found == SKIPPED
        return
    headers = CIMultiDict(listed)
    sources = [name for name, on in zip(("session", "user", "key"), flags, strict=True) if on]
    key = request_fields.sticky_key(headers, fields, "id-1", sources, own)
    tenant = request_fields.tenant(headers, fields, sources, "salt")
    client = request_fields.client(headers, "10.0.0.1", sources)
    assert found == (key.encode("utf-8", "surrogatepass"), tenant, client)


def vary_names(case: Any, random: Random) -> Any:
    return case[0], vary_body(case[1], random), tuple(random.random() < 0.7 for _ in range(3)), case[3]


def compare_bounds(case: tuple[bytes, str]) -> None:
    """The most that a server may report for a body, by a report that is above everything."""
    body, path = case
    fields = python_fields(body)
    if fields is None or rust(twins.request_fields_of, body) == SKIPPED:
        return
    meter = twins.Meter((1, 1), body, path, 0, False, path == "/v1/responses")
    meter.begin(None, False, False, False)
    usage = b'"input_tokens":1000000000000,"output_tokens":900000000000'
    meter.add_body(b'{"usage":{%b}}' % usage)
    repeated = repeated_bytes(fields) if path in PATHS[11:-1] else 0
    limits, refers = (output_limit(fields, path),), path == "/v1/responses"
    bound = UsageBound(body, limits, repeated_bytes=repeated, refers=refers)
    from slipway_gateway.quotas.usage import Usage

    expected = bound.clamp(Usage(10**12, 9 * 10**11), len(usage) + 12)
    assert meter.usage()[0] == (expected.input_tokens, expected.output_tokens, expected.cached_tokens)


BODIES_AND_PATHS = st.tuples(bodies(), st.sampled_from(PATHS))
REFERENCES = (
    *(
        b'"input_image" :',
        b'"file_id":',
        b'"video":',
        b'"audio_url"\n:',
        b'"input_file":',
        b'"image":',
        b'"input_text":',
    ),
    *(b'"imageS":', b'"images":', b'"a\\u0041":', b'"\\u005f":', b'"\\u0030":', b'"input_input_image":', b'"a":'),
)


def vary_bounds(case: tuple[bytes, str], random: Random) -> tuple[bytes, str]:
    body, path = vary_body(case[0], random), random.choice(PATHS)
    if random.random() < 0.5:
        members = b",".join(name + b'"image"' for name in random.choices(REFERENCES, k=random.randint(1, 4)))
        body = body.rstrip().removesuffix(b"}") + b',"input":[{%b}]}' % members
    return body, path


PAIRS = [
    Pair("fields", bodies(), compare_fields, vary_body),
    Pair("numbers", st.sampled_from(ODD_VALUES), compare_numbers, varying((b"_", b"1", b".", b"e", b'"', b"0", b"-"))),
    Pair("estimates", BODIES_AND_PATHS, compare_estimates, lambda case, random: (vary_body(case[0], random), case[1])),
    Pair("bounds", BODIES_AND_PATHS, compare_bounds, vary_bounds),
    Pair(
        "names",
        st.tuples(HEADERS, bodies(), st.tuples(*[st.booleans()] * 3), st.sampled_from(["", "key:t/k"])),
        compare_names,
        vary_names,
    ),
]


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_rust_reads_a_body_as_python_does_or_leaves_it(pair: Pair) -> None:
    pair.run(FEW)


@pytest.mark.extended
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_a_million_bodies(pair: Pair) -> None:
    pair.run(MILLION)


def test_what_is_unusual_is_left_to_python() -> None:
    """Each of these is read by Python, or refused in its words."""
    reasons = {
        b"": "json",
        b"[]": "json",
        b"\xef\xbb\xbf{}": "json",
        b'{"model":"m"} x': "json",
        b'{"model":1}': "model_type",
        b'{"model":"m","model":"m"}': "repeated_name",
        b'{"mo\\u0064el":"m"}': "escaped_name",
        b'{"model":"m","messages":"\xff"}': "utf8",
        b'{"model":"\\ud800"}': "json",
        b'{"a":' + b"[" * 300 + b"]" * 300 + b"}": "depth",
        b'{"model":"m","a":"' + b"x" * (1 << 20) + b'"}': "body_size",
    }
    for body, reason in reasons.items():
        try:
            twins.request_fields_of(body)
        except twins.NotSure as error:
            assert str(error) == reason, body[:60]
        else:
            raise AssertionError(f"read {body[:60]!r}")
