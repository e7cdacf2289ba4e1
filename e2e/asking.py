"""Single requests: plain ones, and through the real openai client who answers them and whether users stay put."""

import json
import math
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai

from examples.demo.load import API_KEY, REVISION

ATONCE = 8
# A two-sided bound that an exact split breaks less than once in 100,000 runs.
SIGMAS = 4.5


def client(url: str, *, retries: int = 0) -> openai.OpenAI:
    """The client as a user makes it, but without retries unless they are wanted: a failure must be seen."""
    return openai.OpenAI(base_url=url, api_key=API_KEY, max_retries=retries, timeout=60.0)


def post(url: str, body: dict[str, Any]) -> tuple[int, str]:
    """Status and text of an answer, for what the openai client has no method for or would refuse to send."""
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def revision_for(session: openai.OpenAI, model: str, user: str | None = None) -> str:
    """The revision that answers one short request."""
    named = user or openai.omit
    answer = session.completions.with_raw_response.create(model=model, prompt="And God said", max_tokens=1, user=named)
    assert answer.parse().choices
    return str(answer.headers[REVISION])


def split(url: str, model: str, count: int) -> Counter[str]:
    """Revision → requests, of `count` requests that nothing ties together."""
    with client(url) as session, ThreadPoolExecutor(ATONCE) as workers:
        return Counter(workers.map(lambda _: revision_for(session, model), range(count)))


def homes(url: str, model: str, users: Iterable[str]) -> dict[str, str]:
    """User → the revision that answers them."""
    users = list(users)
    with client(url) as session, ThreadPoolExecutor(ATONCE) as workers:
        found = workers.map(lambda user: revision_for(session, model, user), users)
        return dict(zip(users, found, strict=True))


def assert_share(counted: Counter[str], revision: str, percent: int) -> None:
    """The share of one revision is what its weight says, within what chance allows for this many requests."""
    count, share = counted.total(), percent / 100
    allowed = SIGMAS * math.sqrt(count * share * (1 - share)) + 1
    off = abs(counted[revision] - count * share)
    assert off <= allowed, (
        f"{counted[revision]} of {count} requests at weight {percent}: off by more than {allowed:.0f}"
    )
