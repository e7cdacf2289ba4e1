"""What a request can cause bounds what its server may report of it."""

import json
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from slipway_contracts.headers import PROMPT_TOKENS
from slipway_gateway.quotas.bounds import (
    ADDED_TOKENS,
    HIDDEN_TOKENS,
    REFERENCE_TOKENS,
    TEMPLATE_TOKENS,
    UsageBound,
)
from slipway_gateway.quotas.estimate import Estimate
from slipway_gateway.quotas.meter import Meter
from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.prices import MAX_COST_NANO, Price, micro
from slipway_gateway.quotas.tenant import Limits
from slipway_gateway.quotas.usage import Usage
from tests.gateway import tenants as known
from tests.gateway.harness import gateway, table, upstream
from tests.gateway.quotas.test_admission import BODY, CHAT, charged, post, tenant
from tests.support.report import route_reports

HUGE = Usage((1 << 40) - 1, (1 << 40) - 1, (1 << 40) - 1)


def bound(body: dict[str, Any], *limits: Any, refers: bool = False) -> UsageBound:
    return UsageBound(msgspec.json.encode(body), limits, refers=refers)


def most(body: dict[str, Any], *limits: Any, relayed: int = 100, refers: bool = False) -> Usage:
    return bound(body, *limits, refers=refers).clamp(HUGE, relayed)


@pytest.mark.finding("F3")
def test_a_prompt_is_no_longer_than_what_was_sent_and_a_server_adds() -> None:
    body = {"prompt": "a" * 1000}
    size, texts = len(msgspec.json.encode(body)), 2
    assert most(body).input_tokens == size + ADDED_TOKENS + TEMPLATE_TOKENS * texts
    assert most(body).cached_tokens == most(body).input_tokens


@pytest.mark.finding("F3")
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://a/b"}},
        {"type": "video_url", "video_url": {"url": "https://a/b"}},
        {"type": "input_audio", "input_audio": {"data": ""}},
        {"type": "file", "file": {"file_id": "f"}},
    ],
)
def test_content_that_a_body_refers_to_has_room(part: dict[str, Any]) -> None:
    """Whoever writes the field with an escape is charged for its content all the same."""
    body = {"messages": [{"role": "user", "content": [part]}]}
    plain = most({"messages": [{"role": "user", "content": [{"type": "text", "text": "https://a/b"}]}]})
    assert most(body).input_tokens > plain.input_tokens + REFERENCE_TOKENS // 2
    name = str(part["type"])
    text = json.dumps(body).replace(f'"{name}":', f'"\\u{ord(name[0]):04x}{name[1:]}":').encode()
    assert json.loads(text) == body
    assert UsageBound(text).clamp(HUGE, 100).input_tokens > plain.input_tokens + REFERENCE_TOKENS // 2
    assert most({}, refers=True).input_tokens > REFERENCE_TOKENS


@pytest.mark.finding("F3")
@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ({}, 1),
        ({"prompt": "one, two"}, 1),
        ({"prompt": ["one, two", "b"]}, 2),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"n": 2, "best_of": 4}, 4),
        ({"n": "many", "best_of": -4, "prompt": {}}, 1),
    ],
)
def test_a_response_has_no_more_tokens_than_its_request_allows(body: dict[str, Any], texts: int) -> None:
    assert most(body, 10, None, relayed=10_000).output_tokens == 10 * texts
    assert most(body, 10**12, True, "x", relayed=500).output_tokens == 500 + HIDDEN_TOKENS * texts
    assert most(body, relayed=500).output_tokens == 500 + HIDDEN_TOKENS * texts


@given(st.binary(max_size=300), st.integers(0, 1 << 41), st.integers(0, 1 << 41), st.integers(0, 1 << 20))
def test_any_body_bounds_any_report(body: bytes, read: int, written: int, relayed: int) -> None:
    found = UsageBound(body).clamp(Usage(read, written, read), relayed)
    assert found.input_tokens <= min(read, len(body) + ADDED_TOKENS + len(body) * REFERENCE_TOKENS)
    assert found.output_tokens <= min(written, relayed + HIDDEN_TOKENS * (1 << 16))
    assert found.cached_tokens <= found.input_tokens


@given(st.text(max_size=200), st.integers(1, 5))
def test_an_honest_report_is_taken_as_it_is(text: str, count: int) -> None:
    """No token is shorter than a byte; a chat template adds some around each message."""
    body = {"messages": [{"role": "user", "content": text}] * count}
    usage = Usage(count * (len(text.encode()) + 12), 90, 5)
    assert bound(body, 90).clamp(usage, 120) == usage


@pytest.mark.finding("F3")
@pytest.mark.parametrize("number", ["1099511627775", "1e300", "1" + "0" * 400])
def test_every_number_that_a_server_reports_is_bounded(number: str) -> None:
    made = Meter("id", "team-a", "k1", estimate=Estimate(1, 1), bound=UsageBound(b"{}"), price=Price("*", 10**15))
    made.begin("r1", {})
    made.add_body(b'{"usage":{"prompt_tokens":%s,"completion_tokens":%s}}' % (number.encode(), number.encode()))
    assert made.usage.input_tokens == 2 + ADDED_TOKENS
    assert made.usage.output_tokens < 2 * HIDDEN_TOKENS
    assert made.implausible is not None
    charge = made.charge()
    assert charge is not None
    assert charge.cost_nano <= MAX_COST_NANO


@pytest.mark.finding("F3")
def test_marks_and_headers_of_a_stream_are_bounded_too() -> None:
    made = Meter("id", "team-a", "k1", estimate=Estimate(1, 1), bound=UsageBound(b"{}", [50]))
    made.begin("r1", {PROMPT_TOKENS: "999999999"})
    made.add_events(b": 999999999.0000abcd 5\ndata: {}\n\n")
    assert made.usage == Usage(2 + ADDED_TOKENS, 50)
    assert made.implausible == Usage(999999999, 999999999)


def test_what_is_counted_here_is_no_report() -> None:
    """A stream has events that are no tokens: its role, its end."""
    made = Meter("id", "team-a", "k1", estimate=Estimate(1, 1), bound=UsageBound(b"{}", [1]))
    made.begin("r1", {})
    made.add_events(b"data: {}\n\n" * 4)
    assert made.usage.output_tokens == 1
    assert made.implausible is None


@pytest.mark.finding("F3")
@pytest.mark.parametrize("stream", [False, True])
async def test_one_report_of_a_model_locks_its_tenant_out_of_no_other(stream: bool) -> None:
    """It was refused for 41 years, by all models of all namespaces, and 824,633 of its budget were spent."""

    async def lies(request: web.Request) -> web.StreamResponse:
        usage = {"prompt_tokens": (1 << 40) - 1, "completion_tokens": (1 << 40) - 1}
        if not stream:
            return web.json_response({"choices": [], "usage": usage})
        event = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"
        return web.Response(body=event, content_type="text/event-stream")

    async def honest(request: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 5}})

    limits = Limits(600, 200_000, 50_000)
    prices = (Price("*", micro("0.15"), micro("0.60")),)
    policy = {"prices": prices, "budget": Budget(day_nano=10**9)}
    one = tenant(limits, **policy)
    async with (
        upstream(lies) as bad,
        upstream(honest) as good,
        gateway(tenants=[one], pepper=known.PEPPER, auth_mode="required") as edge,
    ):
        edge.balancer.publish(table(1, ("r1", 100, [bad.url]), model="chat"))
        response = await post(edge, CHAT, BODY | {"stream": stream})
        await response.read()
        seen = route_reports(edge.balancer)["default/chat"]["implausible_usage"]
        assert seen["reported"] == 2 * ((1 << 40) - 1)
        assert 0 < seen["possible"] < 10_000
        edge.balancer.publish(table(2, ("r1", 100, [good.url]), model="other"))
        response = await post(edge, CHAT, BODY | {"model": "other"})
        assert response.status == 200, await response.text()
        found = await charged(edge)
        assert found["requests"] == 2
        assert found["cost_nano"] < 10**7, "0.01 of the currency"
        assert route_reports(edge.balancer)["default/other"]["implausible_usage"] is None
        name = "slipway_gateway_implausible_usage_total"
        assert edge.metrics.registry.get_sample_value(name, {"model": "chat", "revision": "r1"}) == 1
        assert edge.metrics.registry.get_sample_value(name, {"model": "other", "revision": "r1"}) is None


@pytest.mark.finding("F3")
def test_the_largest_price_of_the_largest_request_fits_a_column() -> None:
    policy = Policy(prices=(Price("*", micro("999999999"), micro("999999999"), request_nano=10**18),))
    assert policy.price_of("a", "b").cost_nano(HUGE) == MAX_COST_NANO < 1 << 62
