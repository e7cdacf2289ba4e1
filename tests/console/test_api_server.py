"""Calls to the API server are bounded: in bytes, in number, in time, and no redirect gets the token."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slipway_console.access import places
from slipway_console.access.api_server import MOST_BYTES, MOST_NUMBERS, ApiServer, Viewer
from slipway_console.access.refusal import ApiRefusal, Call
from testkit.until import until_async

CALL = Call("get", "modeldeployments.slipway.dev", "a", "chat")
LIST = Call("list", "modeldeployments.slipway.dev", "a")
SEEN: web.AppKey[list[web.BaseRequest]] = web.AppKey("seen", list)


@contextlib.asynccontextmanager
async def api_of(
    answer: web.Response | None = None, most: int = 32, wait: asyncio.Event | None = None
) -> AsyncIterator[tuple[ApiServer, list[web.BaseRequest]]]:
    """An API server that gives one answer; what it was sent."""
    seen: list[web.BaseRequest] = []

    async def handler(request: web.BaseRequest) -> web.Response:
        seen.append(request)
        if wait:
            await wait.wait()
        found = answer or web.json_response({"metadata": {}})
        return web.Response(status=found.status, body=found.body, headers=found.headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        yield ApiServer(session, str(server.make_url("")).rstrip("/"), most), seen


async def test_the_token_is_the_viewers_and_nothing_impersonates() -> None:
    async with api_of() as (api, seen):
        await api.get(Viewer("u", "token-of-u"), CALL)
    assert seen[0].headers["Authorization"] == "Bearer token-of-u"
    assert not [name for name in seen[0].headers if name.lower().startswith("impersonate")]
    assert seen[0].path == "/apis/slipway.dev/v1alpha1/namespaces/a/modeldeployments/chat"


async def test_no_redirect_gets_the_token() -> None:
    answer = web.Response(status=302, headers={"Location": "/elsewhere"})
    async with api_of(answer) as (api, seen):
        with pytest.raises(ApiRefusal, match="answered 302"):
            await api.get(Viewer("u", "t"), CALL)
    assert len(seen) == 1


async def test_an_answer_that_is_too_large_is_not_read() -> None:
    async with api_of(web.Response(body=b" " * (MOST_BYTES + 1))) as (api, _):
        with pytest.raises(ApiRefusal, match="more than 4 MiB"):
            await api.get(Viewer("u", "t"), CALL)


@pytest.mark.parametrize("value, count", [(b'"",', 100_000), (b"0,", MOST_NUMBERS + 1)])
async def test_an_answer_of_too_many_values_is_not_decoded(value: bytes, count: int) -> None:
    async with api_of(web.Response(body=b"[" + value * count + b"0]")) as (api, _):
        with pytest.raises(ApiRefusal, match="which a page cannot show"):
            await api.get(Viewer("u", "t"), CALL)


async def test_a_page_of_a_list_that_is_too_large_is_read_with_fewer_rows() -> None:
    async with api_of(web.Response(body=b" " * (MOST_BYTES + 1))) as (api, seen):
        with pytest.raises(ApiRefusal, match="more than 4 MiB"):
            await api.table(Viewer("u", "t"), LIST)
    assert [request.query["limit"] for request in seen] == ["50", "6", "1"]


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"", b"[" * 100_000, b"\xff"])
async def test_what_is_no_object_is_an_empty_one(body: bytes) -> None:
    async with api_of(web.Response(body=body)) as (api, _):
        if len(body) > 1000:
            with pytest.raises(ApiRefusal):
                await api.get(Viewer("u", "t"), CALL)
        else:
            assert await api.get(Viewer("u", "t"), CALL) == {}


async def test_one_user_leaves_calls_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "WAIT_S", 0.3)
    answered = asyncio.Event()
    async with api_of(most=8, wait=answered) as (api, seen):
        greedy = [asyncio.create_task(api.get(Viewer("greedy", "t"), CALL)) for _ in range(12)]
        await until_async(lambda: len(seen), "six calls", holds=lambda count: count == 6)
        other = asyncio.create_task(api.get(Viewer("other", "t"), CALL))
        await until_async(lambda: len(seen), "one more", holds=lambda count: count == 7)
        await asyncio.sleep(0.5)
        answered.set()
        found = await asyncio.gather(*greedy, other, return_exceptions=True)
        assert sum(isinstance(one, dict) for one in found[:-1]) == 6 and isinstance(found[-1], dict)
        refused = [one for one in found if isinstance(one, ApiRefusal)]
        assert len(refused) == 6 and "as many calls to the API server as it may" in refused[0].sentence
        assert await api.get(Viewer("greedy", "t"), CALL), "places come back"


async def test_users_of_one_namespace_leave_calls_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may create a ServiceAccount may create many, each a user of its own."""
    monkeypatch.setattr(places, "WAIT_S", 0.3)
    answered = asyncio.Event()
    async with api_of(most=8, wait=answered) as (api, seen):
        users = [f"system:serviceaccount:hostile:a{number}" for number in range(12)]
        greedy = [asyncio.create_task(api.get(Viewer(user, "t"), CALL)) for user in users]
        await until_async(lambda: len(seen), "six calls", holds=lambda count: count == 6)
        other = asyncio.create_task(api.get(Viewer("system:serviceaccount:other:a1", "t"), CALL))
        await until_async(lambda: len(seen), "one more", holds=lambda count: count == 7)
        answered.set()
        await asyncio.gather(*greedy, other, return_exceptions=True)
        assert isinstance(other.result(), dict)


async def test_a_token_without_a_user_is_refused() -> None:
    """All places are free to a user without a name."""
    async with api_of(web.json_response({"status": {"userInfo": {}}})) as (api, _):
        with pytest.raises(ApiRefusal, match="does not say whose token"):
            await api.user_of("t", "10.0.0.1")
