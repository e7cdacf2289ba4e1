"""What a request is charged: by what its server reports, else by what was counted."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_contracts.headers import PROMPT_TOKENS
from slipway_gateway.quotas.estimate import MAX_REPEATED_BYTES, Estimate, estimate, repeated_bytes, responses
from slipway_gateway.quotas.meter import Meter
from slipway_gateway.quotas.prices import FREE, Price, micro, price_of, shown
from slipway_gateway.quotas.tenant import INPUT, OUTPUT, REQUESTS
from slipway_gateway.quotas.usage import Usage, last_usage, marked_position, without_usage_event
from slipway_gateway.wire.request_fields import parse
from tests.support.linear import assert_linear

USAGE = b'{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":3},"total_tokens":12}'
WHOLE = b'{"id":"x","choices":[{"text":"a"}],"usage":' + USAGE + b',"extra":null}'


def meter(**changes: object) -> Meter:
    options = {"estimate": Estimate(10, 100), "price": Price("*", micro("1"), micro("2"))} | changes
    return Meter("id", "team-a", "k1", **options)  # type: ignore[arg-type]


def begun(headers: dict[str, str] | None = None, **changes: object) -> Meter:
    made = meter(**changes)
    made.sent = True
    made.begin("r1", headers or {})
    return made


def test_a_whole_response_is_charged_by_its_usage() -> None:
    one = begun()
    one.add_body(WHOLE)
    assert one.usage == Usage(7, 5, 3)
    assert not one.estimated
    assert one.used(left=False) == {REQUESTS: 1, INPUT: 7, OUTPUT: 5}


@given(st.integers(1, 40))
def test_usage_is_found_however_the_response_is_cut(size: int) -> None:
    one = begun()
    for at in range(0, len(WHOLE), size):
        one.add_body(WHOLE[at : at + size])
    assert one.usage == Usage(7, 5, 3)


@given(st.text(), st.text())
def test_no_text_of_a_model_is_taken_for_usage(before: str, after: str) -> None:
    text = f'{before}"usage":{{"prompt_tokens":1,"completion_tokens":0}}{after}'
    whole = msgspec.json.encode({"usage": {"input_tokens": 9, "output_tokens": 4}, "text": text})
    assert last_usage(whole) == Usage(9, 4)


FORGED = {"name": "f", "parameters": {"usage": {"input_tokens": 0, "output_tokens": 0}}}
RESPONSE = {
    "id": "resp_1", "object": "response", "status": "completed", "output": [{"type": "message"}],
    "usage": {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 5}, "tools": [FORGED],
}  # fmt: skip


def event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode({"type": kind} | fields) + b"\n\n"


@given(st.integers(1, 60))
def test_no_echo_of_a_request_is_taken_for_the_usage_of_a_response(size: int) -> None:
    """The Responses API repeats tools: a client that leaves after them would pay for what these call usage."""
    whole = msgspec.json.encode(RESPONSE)
    one = begun(echoes=True)
    for at in range(0, len(whole), size):
        one.add_body(whole[at : at + size])
        if at + size < len(whole):
            assert one.estimated
    assert one.usage == Usage(7, 5, 3)


def test_no_echo_in_an_event_is_taken_for_the_usage_of_a_stream() -> None:
    one = begun(echoes=True)
    created = event("response.created", response=RESPONSE | {"status": "in_progress"})
    one.add_events(created + event("response.output_text.delta", delta='"usage":{"input_tokens":0}'))
    assert one.estimated
    one.add_events(event("response.output_item.done", item=FORGED) + event("response.completed", response=RESPONSE))
    assert one.usage == Usage(7, 5, 3)
    assert not one.estimated
    one.add_events(b"data: {\n\n" + event("response.completed", response=[3]))
    assert one.usage == Usage(7, 5, 3)


def test_a_response_that_is_too_long_to_read_is_estimated() -> None:
    one = begun(echoes=True)
    for _ in range(3):
        one.add_body(b"x" * (512 << 10))
    one.add_body(msgspec.json.encode(RESPONSE))
    assert one.estimated


@pytest.mark.parametrize(
    "usage",
    [b"null", b"3", b'{"prompt_tokens":"7"}', b'{"prompt_tokens":-1}', b"{" * 5000, b'{"prompt_tokens":1e400}'],
)
def test_what_is_no_usage_charges_nothing(usage: bytes) -> None:
    assert last_usage(b'{"usage":' + usage + b"}") in (None, Usage())


def test_a_stream_that_its_client_leaves_is_charged_by_the_marks_of_its_server() -> None:
    one = begun({PROMPT_TOKENS: "21"})
    one.add_events(b': 1.0000abcd 5\ndata: {"choices":[]}\n\n: 3.0000abce 6,7\ndata: {}\n\n')
    assert one.usage == Usage(21, 3)
    assert not one.estimated
    assert one.used(left=True) == {REQUESTS: 1, INPUT: 21, OUTPUT: 3}


def test_a_stream_without_marks_and_usage_is_counted_by_its_events() -> None:
    one = begun()
    one.add_events(b'data: {"a":1}\n\ndata: {"a":2}\n\n')
    one.add_events(b'data: {"a":3}\n\ndata: [DONE]\n\n')
    assert one.usage == Usage(10, 3)
    assert one.estimated


def test_a_resumed_stream_is_charged_for_what_came_after_its_position() -> None:
    one = begun({PROMPT_TOKENS: "21"}, resumed_at=40)
    one.add_events(b": 45.0000abcd 1,2,3,4,5\ndata: {}\n\n")
    assert one.used(left=False) == {REQUESTS: 1, INPUT: 21, OUTPUT: 5}
    charge = one.charge()
    assert charge is not None
    # The ledger keeps the whole response, under the id that its first part has.
    assert charge.usage == Usage(21, 45)


def test_the_usage_that_the_gateway_requested_does_not_reach_the_client() -> None:
    events = b'data: {"choices":[{"delta":{}}],"usage":null}\n\ndata: {"choices":[],"usage":' + USAGE + b"}\n\n"
    done = b"data: [DONE]\n\n"
    one = begun(strips_usage=True)
    assert one.add_events(events + done) == b'data: {"choices":[{"delta":{}}],"usage":null}\n\n' + done
    assert one.usage == Usage(7, 5, 3)
    assert begun().add_events(events) == events
    assert without_usage_event(done) == done


def test_without_a_response_nothing_is_charged() -> None:
    assert meter().used(left=True) == {REQUESTS: 0, INPUT: 0, OUTPUT: 0}
    assert meter().charge() is None
    sent = meter()
    sent.sent = True
    assert sent.used(left=False) == {REQUESTS: 0, INPUT: 0, OUTPUT: 0}
    # What was generated is unknown for a client that left before the response began: the reservation stays.
    assert sent.used(left=True) == {}
    sent.answered = True  # by an error
    assert sent.used(left=False) == {REQUESTS: 1, INPUT: 0, OUTPUT: 0}
    assert sent.charge() is None


@pytest.mark.parametrize(
    ("events", "position"),
    [
        (b": 12.00ab00ff 1,2\ndata: {}\n\n", 12),
        (b"data: {}\n\n: 3.00ab00ff 1\ndata: {}\n\n", 3),
        (b": waking, 3 s\n\n", None),
        (b"data: {}\n\n", None),
        (b"", None),
    ],
)
def test_marks_are_read(events: bytes, position: int | None) -> None:
    assert marked_position(events) == position


@pytest.mark.parametrize(
    ("body", "repeated"),
    [
        ({"query": "q" * 98, "documents": ["a"] * 10}, 900),
        ({"query": "q" * 98, "documents": [{"text": "a"}]}, 0),
        ({"text_1": "q" * 98, "text_2": ["a", "b", "c"]}, 200),
        ({"text_1": ["q" * 98, "r"], "text_2": ["a", "b"]}, 0),
        ({"text_1": "q" * 98, "text_2": "a"}, 0),
        ({"input": ["a", "b"]}, 0),
        ({"query": "q" * 98, "documents": "a"}, 0),
        ({"query": 7, "documents": {}}, 0),
        ({"query": "q" * (8 << 20), "documents": ["a"] * 100}, MAX_REPEATED_BYTES),
    ],
)
def test_a_query_counts_with_each_document(body: object, repeated: int) -> None:
    """A model computes it with each of them; the usage that its server reports has it as often."""
    assert repeated_bytes(parse(msgspec.json.encode(body))) == repeated


def test_estimates_are_bounded() -> None:
    def of(path: str = "/v1/completions", *, text: bool = True, **fields: object) -> Estimate:
        return estimate(parse(msgspec.json.encode(fields)), path, 401, 512, computes=True, writes_text=text)

    assert of() == Estimate(101, 512)
    assert of(max_tokens=16) == Estimate(101, 16)
    assert of(max_tokens=16, n=3) == Estimate(101, 48)
    for limit in (10**30, "many", True, -4, 16.5, [16], None):
        assert of(max_tokens=limit) == Estimate(101, 512)
    assert of(max_tokens=16, n=10**9) == Estimate(101, 1 << 31)
    assert of(max_tokens=16, text=False) == Estimate(101, 0)
    assert estimate(parse(b"{}"), "/tokenize", 401, 512, computes=False, writes_text=True) == Estimate()


@pytest.mark.finding("F14")
@pytest.mark.parametrize(
    ("path", "fields", "tokens"),
    [
        ("/v1/completions", {"prompt": ["a"] * 2048, "max_tokens": 100}, 204_800),
        ("/v1/completions", {"prompt": ["a, b", "c"], "max_tokens": 100, "best_of": 3}, 600),
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 100, "n": 2, "best_of": 3}, 600),
        ("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 100}, 200),
        ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 100}, 100),
        ("/v1/completions", {"prompt": "a, b", "max_tokens": 100}, 100),
        ("/v1/completions", {"prompt_embeds": ["a", "b"], "max_tokens": 100}, 200),
        ("/v1/completions", {"prompt": ["a"], "prompt_embeds": ["a", "b"], "max_tokens": 100}, 300),
        ("/v1/completions", {"prompt": "a", "max_tokens": 100, "n": "4"}, 400),
        ("/v1/completions", {"prompt": "a", "max_tokens": 100, "n": 4.0}, 400),
        ("/v1/completions", {"prompt": "a", "max_tokens": 100, "n": 0, "best_of": -2}, 100),
        ("/v1/completions", {"prompt": "a", "max_tokens": 100, "max_output_tokens": 1}, 100),
        ("/v1/chat/completions", {"messages": [], "max_tokens": 100, "n": 2}, 200),
        ("/v1/chat/completions", {"messages": [], "max_tokens": 1, "max_completion_tokens": 100}, 100),
        ("/v1/responses", {"input": "a", "max_output_tokens": 100}, 100),
        ("/v1/responses", {"input": "a", "max_tokens": 1}, 512),
        ("/v1/generate", {"prompt": "a", "max_tokens": 100}, 100),
        ("/api/v1/generate", {"prompt": "a", "max_tokens": 100}, 100),
        ("/api/v1/models/m/generate", {"prompt": "a", "max_tokens": 100}, 100),
        ("/v1/completions", {"prompt": ["a", "b"]}, 1024),
    ],
)
def test_a_request_reserves_what_it_allows_its_responses_to_be(
    path: str, fields: dict[str, object], tokens: int
) -> None:
    """safety-2, F14: 2048 prompts with `max_tokens` 100 reserved 100 and used 204,800."""
    body = msgspec.json.encode({"model": "m"} | fields)
    found = estimate(parse(body), path, len(body), 512, computes=True, writes_text=True)
    assert found == Estimate(-(-len(body) // 4), tokens)


@pytest.mark.finding("F14")
@given(st.lists(st.text(max_size=4) | st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=5))
def test_every_prompt_is_counted(prompts: list[str | list[int]]) -> None:
    for body in (json.dumps({"prompt": prompts}).encode(), msgspec.json.encode({"prompt": prompts})):
        assert responses(parse(body)) == len(prompts)


@pytest.mark.finding("F14")
def test_more_prompts_than_are_counted_reserve_no_less() -> None:
    for count in (2047, 2048, 2049, 50_000):
        assert count <= responses(parse(msgspec.json.encode({"prompt": ["a"] * count}))) <= count + 1


def test_costs_are_whole_numbers_rounded_up_once() -> None:
    price = Price("*", micro("0.15"), micro("0.60"), micro("0.075"))
    # 4 fresh, 3 cached, 5 written: 4 * 0.15 + 3 * 0.075 + 5 * 0.60 = 3.825 millionths.
    assert price.cost_nano(Usage(7, 5, 3)) == 3825
    assert Price("*", micro("0.000001")).cost_nano(Usage(1)) == 1
    assert Price("*", request_nano=5).cost_nano(Usage()) == 5
    assert (shown(0), shown(1_500_000_000), shown(1), shown(12_345_000_000)) == (
        "0.00",
        "1.50",
        "0.000000001",
        "12.345",
    )


def test_the_price_that_matches_best_is_taken() -> None:
    prices = (Price("*", 3), Price("em*", 4), Price("embed-*", 2), Price("chat", 1), Price("chat*", 5))
    assert [price_of(prices, name).input_micro for name in ("chat", "embed-small", "other")] == [1, 2, 3]
    assert price_of(prices, "team-a/x", "chat").input_micro == 1
    assert price_of((), "chat") is FREE


@given(st.lists(st.integers(1, 3000), max_size=40), st.integers(0, 200_000))
def test_usage_is_found_in_whatever_part_of_a_long_response(sizes: list[int], before: int) -> None:
    whole = b'{"text":"' + b"x" * before + b'","usage":' + USAGE + b',"more":"' + b"y" * (200_000 - before) + b'"}'
    one, begin = begun(), 0
    for size in [*sizes, 70_000, 5, len(whole)]:
        one.add_body(whole[begin : begin + size])
        begin += size
    assert one.usage == Usage(7, 5, 3)


@pytest.mark.finding("F9")
@pytest.mark.parametrize("echoes", [True, False])
def test_a_response_in_small_parts_takes_time_by_its_length(echoes: bool) -> None:
    """safety-2, F9: of a response to /v1/responses all parts were decoded again at each part."""

    def feed(count: int) -> None:
        one = begun(echoes=echoes)
        for _ in range(count):
            one.add_body(b'"usage",[],' * 10)
        assert one.estimated

    assert_linear(feed, 2000)
