"""Tenants share no cached prompts at vLLM itself (on a CPU): what one sent is not in another's `cached_tokens`."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.vllm import serving

from . import tenants as known
from .harness import Gateway, gateway
from .test_isolation import KEY, OTHER, SECOND_KEY, TENANTS, publish

pytestmark = [
    pytest.mark.integration,
    pytest.mark.extended,
    pytest.mark.timeout(3600),
    pytest.mark.finding("F13"),
    pytest.mark.attack_class(19),
]

# Several blocks of vLLM's cache on CPUs (128 tokens each).
STORY = "And it came to pass in those days, that there went out a decree from the king. " * 16


@pytest.fixture
async def vllm(tmp_path: Path) -> AsyncIterator[str]:
    async with serving(tmp_path) as made:
        yield made.url


async def cached(edge: Gateway, key: str, story: str, **fields: Any) -> int:
    """How many tokens of the prompt vLLM had in its cache."""
    body = {"model": "chat", "prompt": story, "max_tokens": 1, **fields}
    async with await edge.post(body, "/v1/completions", headers=known.bearer(key)) as answer:
        found = await answer.json()
    assert answer.status == 200, found
    return int((found["usage"]["prompt_tokens_details"] or {"cached_tokens": 0})["cached_tokens"])


async def test_tenants_share_no_cached_prompts_at_vllm(vllm: str) -> None:
    async with gateway(tenants=TENANTS, pepper=known.PEPPER, priority_limit=-10) as edge:
        # Without the engine's type the cache is shared: the figures below are those of the salt.
        publish(edge, ("r0", 100, "", [vllm]))
        assert await cached(edge, KEY, "1 " + STORY) == 0
        assert await cached(edge, OTHER, "1 " + STORY) > 0
        publish(edge, ("r0", 100, "vllm", [vllm]))
        assert await cached(edge, KEY, "2 " + STORY) == 0
        assert await cached(edge, OTHER, "2 " + STORY) == 0
        assert await cached(edge, SECOND_KEY, "2 " + STORY) > 0, "another key of the same tenant"
        assert await cached(edge, KEY, "2 " + STORY, cache_salt="mine") == 0, "a client divides its own"
        assert await cached(edge, KEY, "2 " + STORY, cache_salt="mine") > 0
        assert await cached(edge, OTHER, "2 " + STORY, cache_salt="mine") == 0
        assert await cached(edge, KEY, "2 " + STORY, priority=-1000) > 0
