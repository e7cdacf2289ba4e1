"""Buckets, quotas, prices, usage and the meter: as Rust counts them and as Python does, floats to the bit."""

import struct
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st

from slipway_gateway.quotas import gcra, prices, tenant, usage
from slipway_gateway.quotas.bounds import UsageBound
from slipway_gateway.quotas.estimate import Estimate, output_limit
from slipway_gateway.quotas.meter import Meter
from slipway_gateway.quotas.tenant import INPUT, OUTPUT, REQUESTS, Limits, Reservation, TenantQuota
from slipway_gateway.wire import request_fields
from tests.plane.mutation import cut_anywhere, varying
from tests.plane.native import FEW, MILLION, SKIPPED, Pair, name_of, needs_plane, rust, twins

pytestmark = needs_plane

NAMES = (REQUESTS, INPUT, OUTPUT)
Rate = tuple[int, int, int]


def bits(number: float) -> bytes:
    return struct.pack("<d", number)


def random_rate(random: Random) -> Rate:
    return (
        random.choice((1, 7, 60, 1000, 999_983, 10**9)),
        random.choice((1, 3, 100, 10**6)),
        random.choice((1, 2, 3, 7)),
    )


def compare_bucket(seed: int) -> None:
    """A life of a bucket: takes, settlements in any order, other rates."""
    random = Random(seed)
    rate = random_rate(random)
    ours, theirs = gcra.Bucket(gcra.Rate(*rate)), twins.Bucket(rate)
    holds: list[tuple[gcra.Hold, Any]] = []
    now_s = random.choice((0.0, 1e9, 123.456))
    for _ in range(random.randint(1, 12)):
        now_s += random.choice((0.0, 1e-6, random.random(), 61.0, -0.5))
        amount = random.choice((0, 1, 2, 50, rate[1], rate[1] + 1, 10**7))
        assert bits(ours.wait_s(amount, now_s)) == bits(theirs.wait_s(amount, now_s))
        kind = random.randrange(5)
        if kind < 2:
            holds.append((ours.take(amount, now_s), theirs.take(amount, now_s)))
        elif kind < 4 and holds:
            hold = random.choice(holds)
            used = random.choice((0, 1, amount, 10**12, 2**40))
            ours.settle(hold[0], used, now_s)
            theirs.settle(hold[1], used, now_s)
        else:
            rate = random_rate(random)
            ours.change(gcra.Rate(*rate), now_s)
            theirs.change(rate, now_s)
        assert bits(ours.tat_s) == bits(theirs.tat_s)
        assert bits(ours.full_in_s(now_s)) == bits(theirs.full_in_s(now_s))


def random_limits(random: Random) -> tuple[list[int], int, float, int]:
    per_minute = [random.choice((0, 1, 60, 997, 10**6)) for _ in NAMES]
    return per_minute, random.choice((0, 0, 1, 3)), random.choice((60.0, 1.0, 0.0, 7.5)), random.choice((1, 1, 3))


def python_limits(limits: tuple[list[int], int, float, int]) -> Limits:
    per_minute, concurrency, burst_s, parts = limits
    return Limits(*per_minute, concurrency=concurrency, burst_s=burst_s, parts=parts)


def shown(headers: list[list[str] | None]) -> dict[str, str]:
    return {
        f"x-ratelimit-{kind}-{what}": text
        for what, texts in zip(("requests", "tokens"), headers, strict=True)
        if texts
        for kind, text in zip(("limit", "remaining", "reset"), texts, strict=True)
    }


def compare_quota(seed: int) -> None:
    """A life of a tenant: requests that are admitted and refused, what they used, other limits."""
    random = Random(seed)
    limits = random_limits(random)
    ours, theirs = TenantQuota(python_limits(limits)), twins.TenantQuota(limits)
    reservations: list[tuple[Reservation, Any]] = []
    now_s = random.choice((0.0, 1e6))
    for _ in range(random.randint(1, 12)):
        now_s += random.choice((0.0, random.random(), 30.0))
        compare_arrivals(random, ours, theirs)
        kind = random.randrange(6)
        if kind < 3:
            amounts = [random.choice((0, 1, 5, 1000)) for _ in NAMES]
            reserved, refusal = theirs.reserve(amounts, now_s)
            expected = ours.reserve(dict(zip(NAMES, amounts, strict=True)), now_s)
            if isinstance(expected, Reservation):
                assert reserved is not None and refusal is None
                reservations.append((expected, reserved))
            else:
                assert refusal == (expected.limit, expected.wait_s)
        elif kind < 5 and reservations:
            reservation = random.choice(reservations)
            used = [random.choice((None, 0, 1, 7, 5000)) for _ in NAMES]
            known = {name: amount for name, amount in zip(NAMES, used, strict=True) if amount is not None}
            ours.settle(reservation[0], known, now_s)
            theirs.settle(reservation[1], used, now_s)
        else:
            limits = random_limits(random)
            ours.change(python_limits(limits), now_s)
            theirs.change(limits, now_s)
        assert ours.running == theirs.running
        assert ours.headers(now_s) == shown(theirs.headers(now_s))
        assert ours.is_idle(now_s) == theirs.is_idle(now_s)
        assert all(bits(ours.owed(name, now_s)) == bits(theirs.owed(name, now_s)) for name in (*NAMES, "concurrency"))


def compare_arrivals(random: Random, ours: TenantQuota, theirs: Any) -> None:
    """Bodies that are awaited, and requests that take from no bucket."""
    most = random.randrange(3)
    reached = ours.arrive(most)
    assert theirs.arrive(most) == (reached and (reached.limit, reached.wait_s))
    if not reached and most % 2:
        ours.arrived()
        theirs.arrived()
    if random.random() < 0.2:
        ours.enter()
        theirs.enter()
    elif random.random() < 0.2:
        ours.leave()
        theirs.leave()


def compare_durations(seconds: float) -> None:
    assert twins.duration(seconds) == tenant.duration(seconds)


# -- prices

MODELS = ("*", "m", "m*", "ns/m", "ns/*", "mo", "m**", "", "\u00e9*")


def random_price(random: Random) -> tuple[str, int, int, int | None, int, int]:
    micro = [random.choice((0, 1, 150_000, 10**15 - 1)) for _ in range(3)]
    of_request, of_hit = random.choice((0, 1, 10**18)), random.choice((0, 1, 33, 100))
    return random.choice(MODELS), micro[0], micro[1], random.choice((None, micro[2])), of_request, of_hit


def compare_prices(seed: int) -> None:
    random = Random(seed)
    listed = [random_price(random) for _ in range(random.randint(0, 5))]
    names = [random.choice(("m", "mo", "ns/m", "other", "\u00e9t", "m*")) for _ in range(2)]
    read, written = (random.choice((0, 1, 999, 10**6, 2**40)) for _ in range(2))
    used = usage.Usage(read, written, random.choice((0, read, read // 3)))
    at, cost, hit_cost = twins.price_of(listed, names, (used.input_tokens, used.output_tokens, used.cached_tokens))
    known = [prices.Price(model, *rest) for model, *rest in listed]
    best = prices.price_of(known, *names)
    assert (prices.FREE if at is None else known[at]) is best
    assert (cost, hit_cost) == (best.cost_nano(used), best.hit_cost_nano(used))


# -- usage

USAGES = (
    b'"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}',
    b'"usage": {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}',
    b'"usage":{"input_tokens":5,"output_tokens":7,"input_tokens_details":{"cached_tokens":9},"a":[1]}',
    b'"usage":null',
    b'"usage":{}',
    b'"usage" : {"prompt_tokens":1.5,"completion_tokens":-1}',
    b'"usage":{"prompt_tokens":1e400}',
    b'"usage":{"prompt_tokens":"5","completion_tokens":true}',
    b'"usage":{"completion_tokens":99999999999999999999,"prompt_tokens_details":null}',
    b'"usage":{"x":{"y":{"z":{}}},"completion_tokens":3}',
    b'"usage":{"prompt_tokens_details":[],"completion_tokens":3}',
    b'"usage":{"prompt_tokens":1,"prompt_tokens":2}',
    b'"usage":{"prompt\\u005ftokens":1}',
    b'"usage":{"a":"}","prompt_tokens":4}',
    b'"usage":{"a":"%b","prompt_tokens":4}' % (b"x" * 4100),
)
EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
    b': 12.0a1b2c3d 5,6\ndata: {"choices":[{"index":0,"delta":{"content":"b"}}],"usage":null}\n\n',
    b'data: {"choices":[],%b}\n\n' % USAGES[0],
    b'data: {"choices": [],%b}\n\n' % USAGES[1],
    b"data: [DONE]\n\n",
    b": 13.ffffffff\n\n",
    b": 99999999999.0\n\n",
    b'event: response.completed\ndata: {"type":"response.completed","response":{%b}}\n\n' % USAGES[2],
    b'data: {"type":"response.incomplete","response":{"tools":[{%b}],%b}}\r\n\r\n' % (USAGES[0], USAGES[2]),
    b'data: {"type":"response.created","response":{"usage":null}}\n\n',
    b'data: {"type":1,"response":{%b}}\n\n' % USAGES[0],
    b'data: {"response":[]}\n\n',
)
BODIES = tuple(b'{"object":"response","tools":[],%b}' % one for one in USAGES)
USAGE_TOKENS = (
    *(*USAGES, *EVENTS, b'"usage"', b'"usage":{', b"{", b"}", b":", b",", b"\n\n", b"data:", b"data: [DONE]", b": 1."),
    *(b'"prompt_tokens":', b'"output_tokens":', b'"choices":[]', b"\r", b"\xff", b"-", b"1e5", b".5", b"null", b" "),
    *(b'"type":"response.failed"', b"\x0b", b'"cached_tokens":2', b'"prompt_tokens_details":{', b"[", b'"'),
)
DATA = st.lists(st.sampled_from([*EVENTS, *BODIES]), min_size=1, max_size=3).map(b"".join)
vary_usage = varying(USAGE_TOKENS)


def described(found: usage.Usage | None) -> tuple[int, int, int] | None:
    return (found.input_tokens, found.output_tokens, found.cached_tokens) if found else None


def compare_usage(data: bytes) -> None:
    for theirs, ours in (
        (twins.last_usage, usage.last_usage),
        (twins.usage_of_response, usage.usage_of_response),
        (twins.usage_of_final_event, usage.usage_of_final_event),
    ):
        found = rust(theirs, data)
        assert found in (SKIPPED, described(ours(data))), theirs.__name__
    expected = usage.marked_position(data), usage.count_events(data), usage.without_usage_event(data)
    assert twins.read_events(data) == expected


# -- the meter

REQUEST_BODIES = (
    b'{"model":"m","max_tokens":5,"n":2,"prompt":["a","b"]}',
    b'{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}',
    b'{"model":"m","query":"q","documents":["a","b","c"]}',
)
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/rerank")
Case = tuple[int, list[bytes], bool]


def begun(random: Random, echoes: bool) -> tuple[Any, Meter]:
    """Both meters of one request, whose response began or did not."""
    body, path = random.choice(REQUEST_BODIES), "/v1/responses" if echoes else random.choice((PATHS[0], PATHS[1]))
    resumed_at, strips = random.choice((0, 0, 3, 999_999_999)), random.random() < 0.5
    fields = request_fields.parse(body)
    bound = UsageBound(body, (output_limit(fields, path),), refers=echoes)
    if random.random() < 0.2:
        body = None
    ours = Meter(
        "id", "t", "k", estimate=Estimate(4, 16), bound=bound if body else None, resumed_at=resumed_at,
        strips_usage=strips, echoes=echoes,
    )  # fmt: skip
    theirs = twins.Meter((4, 16), body, path, resumed_at, strips, echoes)
    if random.random() < 0.8:
        ours.sent = True
        ours.answered = random.random() < 0.5
        theirs.was_sent(ours.answered)
    if random.random() < 0.9:
        prompt = random.choice((None, 7))
        flags = {name: random.random() < 0.3 for name in ("continues", "recomputes", "goes_on")}
        ours.begin("r", {} if prompt is None else {"X-Slipway-Prompt-Tokens": str(prompt)}, **flags)
        theirs.begin(prompt, *flags.values())
    return theirs, ours


def compare_meters(case: Case) -> None:
    seed, parts, is_stream = case
    random = Random(seed)
    theirs, ours = begun(random, echoes=random.random() < 0.3)
    for part in parts:
        if is_stream:
            assert theirs.add_events(part) == ours.add_events(part)
        else:
            ours.add_body(part)
            theirs.add_body(part)
        if random.random() < 0.3 and compare_counts(theirs, ours):
            return
    compare_counts(theirs, ours)


def compare_counts(theirs: Any, ours: Meter) -> bool:
    """Compares what both counted; returns whether Rust left it to Python."""
    counts = rust(theirs.usage)
    if counts == SKIPPED:
        return True
    assert counts == (described(ours.usage), ours.estimated, described(ours.implausible))
    for left in (False, True):
        used = ours.used(left=left)
        assert theirs.used(left) == [used.get(name) for name in NAMES]
    return False


def vary_meters(case: Case, random: Random) -> Case:
    data = vary_usage(b"".join(case[1]), random)
    if random.random() < 0.1:
        data += b" " * random.choice((5_000, 40_000, 90_000)) + random.choice(USAGES)
    parts = [part + b"\n\n" for part in data.split(b"\n\n")] if case[2] else cut_anywhere(data, random)
    return random.randrange(10**9), parts, random.random() < 0.5


SEEDS = st.integers(0, 2**32)
PAIRS = [
    Pair("bucket", SEEDS, compare_bucket, lambda _, random: random.randrange(2**40)),
    Pair("quota", SEEDS, compare_quota, lambda _, random: random.randrange(2**40)),
    Pair(
        "durations",
        st.floats(0, 1e7),
        compare_durations,
        lambda _, random: random.choice((random.random() * 100, random.randrange(10**7) / 2000, random.random() * 1e6)),
    ),
    Pair("prices", SEEDS, compare_prices, lambda _, random: random.randrange(2**40)),
    Pair("usage", DATA, compare_usage, vary_usage),
    Pair(
        "meters",
        st.tuples(SEEDS, st.lists(st.sampled_from([*EVENTS, *BODIES]), max_size=5), st.booleans()),
        compare_meters,
        vary_meters,
    ),
]


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_rust_counts_as_python_does(pair: Pair) -> None:
    pair.run(FEW)


@pytest.mark.extended
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_a_million_counts(pair: Pair) -> None:
    pair.run(MILLION)
