"""The official client of OpenAI against limits: it sees the headers, waits and tries again."""

from dataclasses import replace

import openai
import pytest
from aiohttp import web

from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.prices import Price
from slipway_gateway.quotas.tenant import Limits
from tests.gateway import tenants as known
from tests.gateway.harness import gateway, upstream

KEY = known.make_key()


async def answer(request: web.Request) -> web.StreamResponse:
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
    shape = {"id": "x", "object": "chat.completion", "created": 1, "model": "chat", "choices": [choice], "usage": usage}
    return web.json_response(shape)


@pytest.mark.integration
async def test_openai_sees_limits_waits_for_them_and_gives_up_without_budget() -> None:
    # One request at once, and another one after half a second.
    limited = Policy(Limits(requests_per_minute=120, burst_s=0.5))
    spent = Policy(prices=(Price("*", request_nano=1),), budget=Budget(day_nano=1))
    one = replace(known.tenant("team-a", KEY), policy=limited)
    async with (
        upstream(answer) as server,
        gateway(tenants=[one], pepper=known.PEPPER, auth_mode="required") as edge,
        openai.AsyncOpenAI(base_url=f"{edge.url}/v1", api_key=KEY, max_retries=5) as client,
    ):
        edge.route(("r1", 100, [server.url]))
        create = client.chat.completions.with_raw_response.create
        first = await create(model="chat", messages=[{"role": "user", "content": "hi"}])
        assert first.headers["x-ratelimit-limit-requests"] == "120"
        assert first.headers["x-ratelimit-remaining-requests"] == "0"
        second = await create(model="chat", messages=[{"role": "user", "content": "hi"}])
        assert second.parse().choices[0].message.content == "hello"
        edge.known.publish([replace(one, policy=spent)])
        await create(model="chat", messages=[{"role": "user", "content": "hi"}])
        seen = len(edge.outcomes()), sum(edge.outcomes().values())
        with pytest.raises(openai.RateLimitError) as refused:
            await create(model="chat", messages=[{"role": "user", "content": "hi"}])
        assert refused.value.code == "insufficient_quota"
        # It was sent once: the client knows that waiting does not help.
        assert sum(edge.outcomes().values()) == seen[1] + 1
