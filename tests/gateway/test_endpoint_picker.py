"""Which endpoint a prompt gets: the one whose cache has it, until that one has too much to do."""

import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_gateway.balancing.endpoint_picker import REQUEST_BYTES, LeastLoad, PrefixAffinity
from slipway_gateway.balancing.prefix_affinity import Prefill, PrefixRouting
from slipway_gateway.balancing.prompt_blocks import blocks_of
from slipway_gateway.routing.router import EndpointPicker
from slipway_gateway.routing.table import Route, RouteTable

A, B, C = URLS = ("http://a:8000", "http://b:8000", "http://c:8000")
SYSTEM = b"You are helpful. " * 1000
LOADS = st.dictionaries(st.sampled_from(URLS), st.integers(0, 3))


def routing(clock: Callable[[], float] = time.monotonic) -> PrefixRouting:
    route = Route("default/chat", "uid", "chat", prefix_affinity=True)
    prefixes = PrefixRouting(1 << 16, clock)
    prefixes.follow(RouteTable({route.name: route}, endpoints={(route.name, "r1"): URLS}))
    return prefixes


@given(loads=LOADS, own=LOADS, key=st.text(max_size=5))
def test_a_prompt_that_no_cache_has_gets_the_least_loaded_endpoint(
    loads: dict[str, int], own: dict[str, int], key: str
) -> None:
    least = LeastLoad(loads, own)
    found = routing().picker(blocks_of([SYSTEM]), least).pick(URLS, key)
    assert least.loads([found]) == [min(least.loads(URLS))]


def test_a_prompt_goes_where_its_beginning_was() -> None:
    prefixes = routing()
    first = blocks_of([SYSTEM, b"first question"])
    prefixes.begin(first, B).end()
    for question in (b"second question", b"another one"):
        prompt = blocks_of([SYSTEM, question])
        assert prefixes.picker(prompt, LeastLoad()).pick(URLS, "key") == B
        assert prefixes.is_cached(prompt, B)
        assert not prefixes.is_cached(prompt, A)


def test_affinity_ends_where_waiting_prompts_cost_more_than_computing_again() -> None:
    prefixes = routing()
    prompt = blocks_of([SYSTEM])
    prefixes.begin(prompt, B).end()
    waiting = [prefixes.begin(blocks_of([bytes([n]) * (len(SYSTEM) // 2)]), B) for n in range(3)]
    assert prefixes.picker(prompt, LeastLoad()).pick(URLS, "key") != B
    waiting.pop().end()
    waiting.pop().end()
    assert prefixes.picker(prompt, LeastLoad()).pick(URLS, "key") == B


def test_one_beginning_for_all_does_not_fill_one_endpoint_alone() -> None:
    """A system prompt that every request has spreads as soon as its endpoint is busy."""
    prefixes, in_flight = routing(), Counter[str]()
    for question in range(90):
        prompt = blocks_of([SYSTEM, b"%d" % question])
        url = prefixes.picker(prompt, LeastLoad(in_flight)).pick(URLS, f"{question}")
        prefixes.begin(prompt, url).end()
        in_flight[url] += 1
    assert max(in_flight.values()) - min(in_flight.values()) <= 2 + len(SYSTEM) // REQUEST_BYTES


def test_an_endpoint_that_did_not_answer_has_an_empty_cache() -> None:
    prefixes = routing()
    prompt = blocks_of([SYSTEM])
    prefixes.begin(prompt, B).end()
    prefixes.forget(B)
    assert not prefixes.is_cached(prompt, B)
    assert prefixes.blocks == 0


def test_gateways_that_know_nothing_of_each_other_choose_the_same_endpoint_at_equal_load() -> None:
    """By the beginning of the prompt, not by the session: else each gateway would fill another cache."""
    prompts = [blocks_of([b"%d" % n * 600, b"question"]) for n in range(50)]
    first, second = ([routing().picker(one, LeastLoad()).pick(URLS, key) for one in prompts] for key in ("u1", "u2"))
    assert first == second
    assert set(first) == set(URLS)


def test_what_a_pod_reports_of_other_gateways_counts_while_it_is_new() -> None:
    now = [100.0]
    prefixes = routing(lambda: now[0])
    prompt = blocks_of([SYSTEM])
    prefixes.begin(prompt, B).end()
    prefixes.reported(B, "TEXT named_metrics.waiting_prompt_tokens=9000")
    assert prefixes.picker(prompt, LeastLoad()).pick(URLS, "key") != B
    now[0] += 5
    assert prefixes.picker(prompt, LeastLoad()).pick(URLS, "key") == B


def test_requests_that_wait_at_vllm_count_as_usual_prompts() -> None:
    prefixes = routing()
    for n in range(100):
        prefixes.begin(blocks_of([b"%d" % n * 2000]), A).end()
    prompt = blocks_of([SYSTEM])
    prefixes.begin(prompt, B).end()
    prefixes.reported(B, "TEXT named_metrics.kv_cache_usage_perc=0.9,named_metrics.num_requests_waiting=40")
    assert prefixes.picker(prompt, LeastLoad()).pick(URLS, "key") != B


@pytest.mark.parametrize("tokens", ["1e300", "nan", "-5", "9" * 400, "1e12"])
def test_a_report_that_cannot_be_true_keeps_no_request_away(tokens: str) -> None:
    prefixes = routing()
    prompt = blocks_of([SYSTEM])
    prefixes.begin(prompt, B).end()
    prefixes.reported(B, f"TEXT named_metrics.waiting_prompt_tokens={tokens}")
    prefixes.reported("http://stranger:80", "TEXT named_metrics.waiting_prompt_tokens=5")
    assert prefixes.picker(prompt, LeastLoad()).pick(URLS, "key") == B
    assert not any(report.waiting_bytes for report in prefixes._reports.values())


def test_a_request_without_a_prompt_has_the_policy_of_the_load() -> None:
    least = LeastLoad({A: 1})
    policy: EndpointPicker = routing().picker(None, least)
    assert policy is least


@given(loads=LOADS, waiting=LOADS, matched=st.dictionaries(st.sampled_from(URLS), st.integers(1, 9), min_size=1))
def test_the_cheapest_endpoint_is_chosen(
    loads: dict[str, int], waiting: dict[str, int], matched: dict[str, int]
) -> None:
    def cost(url: str) -> int:
        return waiting.get(url, 0) - matched.get(url, 0) + REQUEST_BYTES * loads.get(url, 0)

    found = PrefixAffinity(LeastLoad(loads), matched, waiting, "name").pick(URLS, "key")
    assert cost(found) == min(map(cost, URLS))


def test_the_end_of_a_prompt_counts_once() -> None:
    waiting = Counter[str]()
    prefill, other = Prefill(waiting, A, 100), Prefill(waiting, A, 11)
    assert waiting[A] == 111
    prefill.end()
    prefill.end()
    assert waiting[A] == 11
    other.end()
    assert not waiting
