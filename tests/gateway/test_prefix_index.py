"""Blocks of prompts by endpoint: what is matched, what is forgotten, and how much memory they take."""

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_gateway.balancing.prefix_index import BLOCK_BYTES, MAX_BLOCKS_OF_ENDPOINT, OWNER_SHARE, PrefixIndex
from slipway_gateway.balancing.prompt_blocks import BLOCK_ENDS, BLOCK_SIZES, MAX_TEXT_BYTES, blocks_of

URLS = ("http://a:8000", "http://b:8000", "http://c:8000")


def index_of(*urls: str, max_blocks: int = 1 << 17) -> PrefixIndex:
    index = PrefixIndex(max_blocks)
    index.follow(urls)
    return index


def names(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16) for number in numbers]


def test_blocks_of_equal_beginnings_are_equal_up_to_the_first_difference() -> None:
    first = blocks_of([b"x" * 1000 + b"y" * 5000])
    second = blocks_of([b"x" * 1000 + b"z" * 5000])
    assert first.hashes[:3] == second.hashes[:3]
    assert not set(first.hashes[3:]) & set(second.hashes)
    assert len(first.hashes) == 6000 // BLOCK_SIZES[0]
    assert first.size == 6000


@pytest.mark.parametrize("other", [{"owner": "b"}, {"scope": "b"}, {"owner": "ab", "scope": ""}])
def test_prompts_of_other_owners_or_scopes_share_no_block(other: dict[str, str]) -> None:
    text = [b"x" * 4096]
    assert not set(blocks_of(text, owner="a", scope="b").hashes) & set(blocks_of(text, **other).hashes)


def test_parts_are_one_text() -> None:
    assert blocks_of([b"ab" * 300, b"", b"cd" * 300]).hashes == blocks_of([b"ab" * 300 + b"cd" * 300]).hashes


def test_a_prompt_below_one_block_has_no_name() -> None:
    assert not blocks_of([b"x" * 255]).name
    assert blocks_of([b"x" * 256]).name == blocks_of([b"x" * 9000]).name


def test_a_long_prompt_has_a_bounded_number_of_blocks() -> None:
    text = b"x" * (MAX_TEXT_BYTES + 10_000_000)
    prompt = blocks_of([text[:5], text[5:]])
    assert len(prompt.hashes) == len(BLOCK_ENDS) == 192
    assert prompt.size == len(text)


def test_each_endpoint_has_its_own_depth() -> None:
    index = index_of(*URLS)
    index.add(URLS[0], "", names(1, 2, 3, 4))
    index.add(URLS[1], "", names(1, 2))
    assert index.matched(names(1, 2, 3, 9)) == {URLS[0]: 3, URLS[1]: 2}
    assert index.matched(names(9, 2, 3)) == {}
    assert index.matched([]) == {}


def test_an_endpoint_that_is_gone_is_forgotten_and_its_place_is_used_again() -> None:
    index = index_of(*URLS)
    for url in URLS:
        index.add(url, "", names(1, 2))
    index.follow(URLS[1:])
    assert index.matched(names(1, 2)) == dict.fromkeys(URLS[1:], 2)
    index.follow([*URLS[1:], "http://d:8000"])
    assert "http://d:8000" not in index.matched(names(1))
    index.add("http://d:8000", "", names(1))
    assert index.matched(names(1)) == dict.fromkeys([*URLS[1:], "http://d:8000"], 1)
    for url in (*URLS, "http://d:8000"):
        index.forget(url)
    assert index.matched(names(1)) == {}
    assert index.size == 0


def test_the_last_used_blocks_stay_and_beginnings_outlive_their_ends() -> None:
    index = index_of(URLS[0], max_blocks=10)
    index.add(URLS[0], "", names(1, 2, 3, 4, 5))
    index.add(URLS[0], "", names(11, 12, 13, 14, 15))
    index.add(URLS[0], "", names(1, 2))
    index.add(URLS[0], "", names(21, 22))
    assert index.matched(names(1, 2, 3, 4, 5)) == {URLS[0]: 3}
    assert index.matched(names(21, 22)) == {URLS[0]: 2}
    assert index.size == 10


def test_a_tenant_with_many_prompts_leaves_the_others_half() -> None:
    index = index_of(URLS[0], max_blocks=1000)
    for tenant in range(4):
        index.add(URLS[0], f"quiet-{tenant}", names(*range(tenant * 100 + 1, tenant * 100 + 101)))
    for number in range(10_000, 30_000, 100):
        index.add(URLS[0], "loud", names(*range(number, number + 100)))
    assert all(index.matched(names(tenant * 100 + 1)) for tenant in range(4))
    assert index.size <= 1000


def test_endpoints_share_the_blocks_that_are_remembered() -> None:
    index = index_of(*URLS, max_blocks=300)
    for url in URLS:
        for number in range(1, 1001, 50):
            index.add(url, "", names(*range(number, number + 50)))
    assert index.size == 300
    index.follow([*URLS, *(f"http://x{n}:8000" for n in range(27))])
    assert index.size == 30


USES = st.lists(
    st.tuples(st.sampled_from(URLS), st.sampled_from("ab"), st.integers(0, 6), st.integers(1, 9)), max_size=60
)


@settings(max_examples=200)
@given(uses=USES, most=st.integers(0, 40))
def test_what_is_matched_was_seen_and_what_is_held_is_bounded(
    uses: Sequence[tuple[str, str, int, int]], most: int
) -> None:
    index, seen = index_of(*URLS, max_blocks=most), set[tuple[str, bytes]]()
    for url, owner, prompt, length in uses:
        hashes = [f"{owner}{prompt}{n:014}".encode() for n in range(length)]
        index.add(url, owner, hashes)
        seen.update((url, block) for block in hashes)
        assert index.size <= most
        for found, depth in index.matched(hashes).items():
            assert all((found, block) in seen for block in hashes[:depth])
    for url in URLS:
        index.forget(url)
    assert not index._holders
    assert index.size == 0


def test_a_block_takes_no_more_memory_than_is_reckoned_with() -> None:
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    index = index_of("http://a", max_blocks=1 << 20)
    for number in range(0, MAX_BLOCKS_OF_ENDPOINT, 64):
        index.add("http://a", f"{number % 1024}", [b"%016d" % one for one in range(number, number + 64)])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.size == MAX_BLOCKS_OF_ENDPOINT
    assert (after - before) / index.size <= BLOCK_BYTES
    assert OWNER_SHARE == 2
