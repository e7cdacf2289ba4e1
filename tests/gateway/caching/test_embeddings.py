"""Embeddings are kept by input: of a request only those are computed that are not kept."""

import json
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from slipway_gateway.caching.embeddings import apportioned, inputs_of

from .served import ask, cached, metric

PATH = "/v1/embeddings"


class Encoder:
    """One number for each input: its length. A token for each character."""

    def __init__(self) -> None:
        self.wanted: list[Any] = []
        self.status, self.broken = 200, False

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        inputs = (await request.json())["input"]
        self.wanted.append(inputs)
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        listed = [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else inputs
        data = [{"object": "embedding", "index": n, "embedding": [len(one)]} for n, one in enumerate(listed)]
        if self.broken:
            data.pop()
        tokens = sum(map(len, listed))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        # Servers need not keep the order.
        return web.json_response({"object": "list", "data": data[::-1], "model": "chat", "usage": usage})


def embed(*inputs: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "chat", "input": list(inputs)} | fields


def numbers(answer: Any) -> list[int]:
    by_index = {one["index"]: one["embedding"][0] for one in answer.json["data"]}
    return [by_index[n] for n in range(len(by_index))]


async def test_only_inputs_that_are_not_kept_are_computed() -> None:
    encoder = Encoder()
    async with cached(encoder) as (gate, _):
        first = await ask(gate, embed("a", "bb"), PATH)
        assert (first.cache, numbers(first)) == ("miss", [1, 2])
        part = await ask(gate, embed("bb", "ccc", "a", "dddd"), PATH)
        assert (part.cache, numbers(part)) == ("partial", [2, 3, 1, 4])
        assert encoder.wanted == [["a", "bb"], ["ccc", "dddd"]]
        assert part.json["usage"] == {
            "prompt_tokens": 10, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 3},
        }  # fmt: skip
        assert [one["index"] for one in part.json["data"]] == [0, 1, 2, 3]
        whole = await ask(gate, embed("dddd", "a"), PATH)
        assert (whole.cache, numbers(whole), len(encoder.wanted)) == ("hit", [4, 1], 2)
        single = await ask(gate, {"model": "chat", "input": "ccc"}, PATH)
        assert (single.cache, numbers(single)) == ("hit", [3])
        assert gate.outcomes() == {"ok": 4}
        assert metric(gate, "cache_requests_total", model="chat", revision="r1", result="partial") == 1
        assert metric(gate, "cache_saved_tokens_total", model="chat", revision="r1", kind="input") == 3 + 5 + 3


async def test_an_input_that_appears_twice_and_lists_of_tokens() -> None:
    encoder = Encoder()
    async with cached(encoder) as (gate, _):
        assert numbers(await ask(gate, embed("a", "a", "bb"), PATH)) == [1, 1, 2]
        assert numbers(await ask(gate, embed("ccc", "a", "ccc"), PATH)) == [3, 1, 3]
        assert numbers(await ask(gate, embed([1, 2], [1, 2, 3]), PATH)) == [2, 3]
        again = await ask(gate, {"model": "chat", "input": [1, 2]}, PATH)
        assert (again.cache, numbers(again)) == ("hit", [2])


async def test_other_fields_are_part_of_the_key() -> None:
    encoder = Encoder()
    async with cached(encoder) as (gate, _):
        await ask(gate, embed("a"), PATH)
        for fields in ({"dimensions": 5}, {"encoding_format": "base64"}, {"new": 1}):
            assert (await ask(gate, embed("a", **fields), PATH)).cache == "miss"
        assert (await ask(gate, embed("a", user="u"), PATH)).cache == "miss", "another tenant"
        assert (await ask(gate, embed("a", metadata={}), PATH)).cache == "hit"


@pytest.mark.parametrize("status", [400, 500])
async def test_an_error_of_the_missing_part_is_the_response(status: int) -> None:
    encoder = Encoder()
    async with cached(encoder) as (gate, _):
        await ask(gate, embed("a"), PATH)
        encoder.status = status
        answer = await ask(gate, embed("a", "bb"), PATH)
        assert (answer.status, answer.json["error"]["message"]) == (status, "no")
        assert encoder.wanted == [["a"], ["bb"]]
        assert sum(gate.outcomes().values()) == 2


async def test_a_response_that_lacks_an_embedding_is_neither_kept_nor_merged() -> None:
    encoder = Encoder()
    async with cached(encoder) as (gate, _):
        await ask(gate, embed("a"), PATH)
        encoder.broken = True
        answer = await ask(gate, embed("a", "bb"), PATH)
        assert answer.cache == "miss"
        assert encoder.wanted[-1] == ["a", "bb"], "the whole request, as without a cache"
        encoder.broken = False
        assert numbers(await ask(gate, embed("bb", "a"), PATH)) == [2, 1]


async def test_inputs_count_in_the_memory_of_requests() -> None:
    encoder = Encoder()
    async with cached(encoder, memory_budget_bytes=1 << 20) as (gate, _):
        assert [(await ask(gate, embed("a"), PATH)).cache for _ in range(2)] == ["miss", "hit"]
        large = embed(*["ab" * 10] * 2000)
        assert [(await ask(gate, large, PATH)).cache for _ in range(2)] == ["bypass", "bypass"]
        copies = gate.caches.copies  # in the fast lane
        assert gate.budget.used_bytes == gate.caches.store.size_bytes + (copies.size_bytes if copies else 0)


async def test_only_if_cached_wants_all() -> None:
    async with cached(Encoder()) as (gate, _):
        await ask(gate, embed("a"), PATH)
        assert (await ask(gate, embed("a", "b"), PATH, Cache_Control="only-if-cached")).status == 504
        assert (await ask(gate, embed("a"), PATH, Cache_Control="only-if-cached")).status == 200


@given(st.integers(0, 10**6), st.lists(st.integers(0, 1000), max_size=20))
def test_parts_of_tokens_sum_to_what_the_server_said(total: int, sizes: list[int]) -> None:
    parts = apportioned(total, sizes)
    assert len(parts) == len(sizes)
    assert all(part >= 0 for part in parts)
    assert sum(parts) == (total if sizes else 0)


@pytest.mark.parametrize("given_", [None, 1, [], [1.5], ["a", 1], [["a"]], [True], {"a": 1}, ["a"] * 2049])
def test_other_inputs_are_compared_as_a_whole(given_: Any) -> None:
    assert inputs_of({"input": given_}) is None
    assert json.dumps(given_)
