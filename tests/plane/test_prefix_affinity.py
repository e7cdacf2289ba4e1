"""Prefix affinity as Rust has it and as Python does: blocks of prompts, what endpoints have seen, and the choice."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_gateway.balancing.endpoint_picker import LeastLoad, PrefixAffinity
from slipway_gateway.balancing.prefix_affinity import PrefixRouting
from slipway_gateway.balancing.prefix_index import BLOCK_BYTES, MAX_BLOCKS, MAX_BLOCKS_OF_ENDPOINT
from slipway_gateway.balancing.prompt_blocks import PromptBlocks, blocks_of, prompt_of
from slipway_gateway.balancing.shared_prefixes import SharedPrefixRouting
from slipway_gateway.routing.table import Route, RouteTable
from slipway_gateway.wire import request_fields
from slipway_plane import NATIVE
from tests.plane.native import FEW, SKIPPED, Pair, name_of, needs_plane, rust, twins

pytestmark = needs_plane

URLS = tuple(f"http://10.0.0.{n}:8000" for n in range(4))
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v2/models/m/infer")

# -- prompts of requests

VALUES = st.recursive(
    st.one_of(st.text(max_size=300), st.none(), st.integers(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
BODIES = st.dictionaries(
    st.sampled_from(["tools", "instructions", "messages", "prompt", "input", "cache_salt", "model", "other"]), VALUES
)


def compare_prompts(case: tuple[str, bytes, str]) -> None:
    path, body, tenant = case
    found = rust(twins.prompt_of, path, body, "default/chat", tenant)
    if found == SKIPPED:
        return
    route = Route("default/chat", "uid", "chat", prefix_affinity=True)
    prompt = prompt_of(path, request_fields.parse(body), route, tenant, "key")
    assert found == ((b"".join(prompt.hashes), prompt.size, prompt.name) if prompt else None)


def vary_prompts(case: tuple[str, bytes, str], random: Random) -> tuple[str, bytes, str]:
    text = "".join(random.choices('abc é\\"', k=random.choice((10, 255, 300, 5000, 20_000))))
    fields: dict[str, Any] = {random.choice(("tools", "messages", "prompt", "input")): text, "model": "chat"}
    if random.random() < 0.3:
        fields["cache_salt"] = random.choice((None, "", "salt", 3))
    body = json.dumps(fields, indent=random.choice((None, 1)), ensure_ascii=random.random() < 0.5).encode()
    return random.choice(PATHS), body, random.choice(("", "t" * 32))


# -- the choice of an endpoint

PODS = st.lists(
    st.tuples(
        st.sampled_from(URLS),
        *[st.integers(0, 3)] * 2,
        st.booleans(),
        st.sampled_from([0, 256, 512, 344_064]),
        st.sampled_from([0, 1, 256, 512, 1 << 30]),
    ),
    max_size=4,
    unique_by=lambda one: one[0],
)
Pods = list[tuple[str, int, int, bool, int, int]]


def compare_choice(case: tuple[Pods, str, str]) -> None:
    pods, name, key = case
    open_ = [pod for pod in pods if not pod[3]]
    loads, own, matched, waiting = ({pod[0]: pod[at] for pod in open_ if pod[at]} for at in (1, 2, 4, 5))
    found = rust(twins.pick_for_prompt, pods, name, key.encode())
    policy = PrefixAffinity(LeastLoad(loads, own), matched, waiting, name)
    assert found == (policy.pick([pod[0] for pod in open_], key) if open_ else None)


def vary_choice(case: tuple[Pods, str, str], random: Random) -> tuple[Pods, str, str]:
    sizes = (0, 0, 256, 1024, 4096)
    pods = [
        (
            url,
            random.randrange(4),
            random.randrange(2),
            random.random() < 0.2,
            random.choice(sizes),
            random.choice(sizes),
        )
        for url in random.sample(URLS, random.randrange(5))
    ]
    return pods, random.choice(("", "ab12")), random.choice("abc")


PAIRS = [
    Pair(
        "prompts",
        st.tuples(
            st.sampled_from(PATHS), BODIES.map(lambda body: json.dumps(body).encode()), st.text("ab", max_size=3)
        ),
        compare_prompts,
        vary_prompts,
    ),
    Pair("choice", st.tuples(PODS, st.sampled_from(["", "ab12"]), st.text(max_size=3)), compare_choice, vary_choice),
]


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_rust_looks_up_prompts_as_python_does(pair: Pair) -> None:
    pair.run(FEW)


# -- what is known of endpoints

HEADERS = st.one_of(
    st.sampled_from(
        [
            "TEXT named_metrics.waiting_prompt_tokens=9000",
            "text named_metrics.num_requests_waiting=3,named_metrics.kv_cache_usage_perc=0.1",
            "TEXT named_metrics.waiting_prompt_tokens= 1_0.5e1 ,named_metrics.num_requests_waiting=2",
            "TEXT named_metrics.waiting_prompt_tokens=nan,named_metrics.num_requests_waiting=1e999",
            "TEXT named_metrics.waiting_prompt_tokens=1e12",
            "TEXT named_metrics.waiting_prompt_tokens=1,named_metrics.waiting_prompt_tokens=-2",
            "JSON {}",
            "TEXT",
            "TEXT " + "a," * 64 + "named_metrics.waiting_prompt_tokens=5",
            "TEXT named_metrics.waiting_prompt_tokens=5," + "a" * 2048,
        ]
    ),
    st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=40).map(
        lambda text: f"TEXT named_metrics.waiting_prompt_tokens={text}"
    ),
)
# Of a prompt: its owner, which of three beginnings it has, and how long it is.
PROMPTS = st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 2), st.integers(0, 4000))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from(URLS), PROMPTS),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("reported"), st.sampled_from(URLS), HEADERS),
        st.tuples(st.just("forget"), st.sampled_from(URLS)),
        st.tuples(st.just("follow"), st.sets(st.sampled_from(URLS), min_size=1)),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 3.0])),
    ),
    max_size=40,
)


def blocks(owner: str, beginning: int, size: int) -> PromptBlocks:
    return blocks_of([bytes([beginning]) * 1500, b"x" * size], owner=owner, scope="s")


def followed(urls: Sequence[str]) -> RouteTable:
    route = Route("default/chat", "uid", "chat", prefix_affinity=True)
    return RouteTable({route.name: route}, endpoints={(route.name, "r1"): tuple(urls)})


class BothRoutings:
    """The state in Python and the one in Rust, with one clock."""

    def __init__(self, most: int) -> None:
        assert NATIVE is not None
        self.now_s, self.most = 100.0, most
        self.python = PrefixRouting(most, lambda: self.now_s)
        self.shared = SharedPrefixRouting(NATIVE.PrefixRouting(most), lambda: self.now_s)
        self._begun: list[tuple[Any, Any]] = []
        self.follow(set(URLS))

    def begin(self, url: str, which: tuple[str, int, int]) -> None:
        prompt = blocks(*which)
        one, other = self.python.begin(prompt, url), self.shared.begin(prompt, url)
        assert one.size == other.size
        self._begun.append((one, other))

    def end(self, number: int) -> None:
        for prefill in self._begun[number % len(self._begun)] if self._begun else ():
            prefill.end()

    def reported(self, url: str, header: str) -> None:
        self.python.reported(url, header)
        self.shared.reported(url, header)

    def forget(self, url: str) -> None:
        self.python.forget(url)
        self.shared.forget(url)

    def follow(self, urls: set[str]) -> None:
        self.python.follow(followed(sorted(urls)))
        self.shared.follow(followed(sorted(urls)))

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def compare(self, prompt: PromptBlocks, least: LeastLoad) -> None:
        """What they know of a prompt, and the endpoint that follows from it."""
        first, second = self.python.picker(prompt, least), self.shared.picker(prompt, least)
        assert isinstance(first, PrefixAffinity) and isinstance(second, PrefixAffinity)
        assert first.pick(URLS, "key") == second.pick(URLS, "key")
        assert dict(first.matched) == second.matched
        assert {url: size for url, size in first.waiting.items() if size} == second.waiting
        assert self.python.blocks == self.shared.blocks <= self.most
        assert all(self.python.is_cached(prompt, url) == self.shared.is_cached(prompt, url) for url in URLS)


@settings(max_examples=150, deadline=None, database=None)
@given(steps=STEPS, most=st.sampled_from([0, 7, 40, 100_000]), which=PROMPTS, loads=st.tuples(*[st.integers(0, 3)] * 4))
def test_both_know_the_same_after_any_steps(
    steps: list[tuple[Any, ...]], most: int, which: tuple[str, int, int], loads: tuple[int, ...]
) -> None:
    both = BothRoutings(most)
    prompt, least = blocks(*which), LeastLoad(dict(zip(URLS, loads, strict=True)))
    for what, *arguments in steps:
        getattr(both, what)(*arguments)
        both.compare(prompt, least)


def test_more_than_64_endpoints_have_their_own_blocks() -> None:
    assert NATIVE is not None
    urls = [f"http://10.0.1.{n}:8000" for n in range(200)]
    python, shared = PrefixRouting(MAX_BLOCKS), SharedPrefixRouting(NATIVE.PrefixRouting(MAX_BLOCKS), lambda: 0.0)
    waiting = []
    for one in (python, shared):
        one.follow(followed(urls))
        prompts = {url: blocks("", number % 2, 10 * number) for number, url in enumerate(urls) if number % 3}
        waiting.append([one.begin(prompt, url) for url, prompt in prompts.items()])
        one.forget(urls[64])
    least = LeastLoad()
    for beginning in (0, 1, 2):
        first, second = (one.picker(blocks("", beginning, 1500), least) for one in (python, shared))
        assert isinstance(first, PrefixAffinity) and isinstance(second, PrefixAffinity)
        assert dict(first.matched) == second.matched
        assert first.waiting == second.waiting and len(second.waiting) == len(waiting[0])
    shared.follow(followed(urls[150:]))
    found = shared.picker(blocks("", 1, 1500), least)
    assert isinstance(found, PrefixAffinity)
    assert found.matched.keys() == {url for n, url in enumerate(urls) if n >= 150 and n % 3 and n % 2}


def test_hashes_of_another_size_are_refused() -> None:
    assert NATIVE is not None
    with pytest.raises(ValueError, match="16 bytes"):
        NATIVE.PrefixRouting(1).known(b"x" * 17, 0.0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("blocks_of_owner", [1, 64])
def test_a_block_takes_no_more_memory_than_is_reckoned_with(blocks_of_owner: int) -> None:
    """Also where each block has an owner of its own: strangers may choose as many names."""
    assert NATIVE is not None
    before, shared = resident_bytes(), NATIVE.PrefixRouting(MAX_BLOCKS)
    shared.follow(set(URLS))
    for at, url in enumerate(URLS):
        for number in range(0, MAX_BLOCKS_OF_ENDPOINT, blocks_of_owner):
            hashes = b"".join(f"{at}{one:015}".encode() for one in range(number, number + blocks_of_owner))
            shared.begin(hashes, 0, f"owner {number}", url)
    assert shared.blocks == MAX_BLOCKS
    assert (resident_bytes() - before) / MAX_BLOCKS <= BLOCK_BYTES
