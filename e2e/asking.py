"""Single requests, by the real openai client and without one; and of many small ones, who answers them."""

import asyncio
import json
import math
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import aiohttp
import openai

from testkit.load.client import API_KEY, REVISION

ATONCE = 8
# A two-sided bound that an exact split breaks less than once in 100,000 runs.
SIGMAS = 4.5


def client(url: str, *, retries: int = 0) -> openai.OpenAI:
    """The client as a user makes it, but without retries unless they are wanted: a failure must be seen."""
    return openai.OpenAI(base_url=url, api_key=API_KEY, max_retries=retries, timeout=60.0)


def post(url: str, body: dict[str, Any]) -> tuple[int, str]:
    """Status and text of an answer, for what the openai client has no method for or would refuse to send."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def split(url: str, model: str, count: int) -> Counter[str]:
    """Revision → requests, of `count` requests that nothing ties together."""
    return Counter(asyncio.run(_revisions(url, model, [None] * count)))


def homes(url: str, model: str, users: Iterable[str]) -> dict[str, str]:
    """User → the revision that answers them."""
    users = list(users)
    return dict(zip(users, asyncio.run(_revisions(url, model, users)), strict=True))


async def _revisions(url: str, model: str, users: Sequence[str | None]) -> list[str]:
    """Who answers a short request of each user. Plain ones: what is counted here is the gateway's work."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=ATONCE),
        headers={"Authorization": f"Bearer {API_KEY}"},
        timeout=aiohttp.ClientTimeout(total=60),
    ) as session:

        async def one(user: str | None) -> str:
            named = {"user": user} if user else {}
            body = {"model": model, "prompt": "And God said", "max_tokens": 1, **named}
            async with session.post(f"{url}/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                assert (await answer.json())["choices"]
                return answer.headers[REVISION]

        return await asyncio.gather(*map(one, users))


def assert_share(counted: Counter[str], revision: str, percent: int) -> None:
    """The share of one revision is its weight, within what chance allows for this many requests."""
    count, share = counted.total(), percent / 100
    allowed = SIGMAS * math.sqrt(count * share * (1 - share)) + 1
    off = abs(counted[revision] - count * share)
    assert off <= allowed, (
        f"{counted[revision]} of {count} requests at weight {percent}: off by more than {allowed:.0f}"
    )
