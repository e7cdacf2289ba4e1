"""Pages and streams in progress are bounded, in number and in time, with no API server behind them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slipway_console.access import places
from slipway_console.access.api_server import ApiServer, Viewer
from slipway_console.access.places import Places
from slipway_console.access.refusal import ApiRefusal
from slipway_console.serving import streams
from slipway_console.serving.app import MOST_PAGES, public_app
from slipway_console.serving.guard import SESSION
from slipway_console.serving.sessions import Session, SessionStore
from slipway_console.serving.streams import Sections, Streams, Version
from slipway_console.settings import ConsoleSettings
from testkit.until import until_async


@contextlib.asynccontextmanager
async def stream_of(sections: Sections, version: Version, lasts_s: float = 60.0) -> AsyncIterator[tuple[int, Session]]:
    """The port of a stream of these sections, and the session that opens it."""
    sessions = SessionStore(16, lasts_s)
    session = sessions.open(Viewer("u", "t"))
    assert session
    answer = Streams(sessions, 8, 0.05, Places(8, "none")).handler(sections, version)

    async def handler(request: web.Request) -> web.StreamResponse:
        request[SESSION] = session
        return await answer(request)

    app = web.Application()
    app.router.add_get("/stream", handler)
    async with TestServer(app) as server:
        assert server.port
        yield server.port, session


async def news(_: web.Request) -> str:
    return str(time.monotonic())


async def test_a_browser_that_does_not_read_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would hold its place also after its session has ended, for as long as its host lives."""
    monkeypatch.setattr(streams, "WRITE_S", 0.3)
    looks = 0

    async def sections(_: web.Request) -> Mapping[str, str]:
        nonlocal looks
        looks += 1
        return {"state": str(looks) + "x" * (4 << 20)}

    async with stream_of(sections, news) as (port, session):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
        await until_async(lambda: session.streams, "it has a place", holds=lambda count: count == 1)
        await until_async(lambda: session.streams, "the place is free", holds=lambda count: count == 0)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 20):
                pass
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_stream_that_fails_ends_with_a_sentence_and_no_second_response(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def sections(_: web.Request) -> Mapping[str, str]:
        raise KeyError("high")

    async with (
        stream_of(sections, news) as (port, _),
        aiohttp.ClientSession() as client,
        client.get(f"http://127.0.0.1:{port}/stream") as answer,
    ):
        text = await answer.text()
    assert text.startswith("event: ended") and "its log has the reason" in text and "HTTP/1.1" not in text
    assert "a stream failed inside of the console" in caplog.text


async def test_pages_in_progress_are_bounded_with_a_share_for_each_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds answers of the API server: a hundred at once would be more than the memory of the process."""
    monkeypatch.setattr(places, "WAIT_S", 0.3)
    begun, go_on = 0, asyncio.Event()

    async def api_answer(request: web.Request) -> web.Response:
        nonlocal begun
        if request.path.endswith("selfsubjectreviews"):
            user = request.headers["Authorization"].removeprefix("Bearer ")
            return web.json_response({"status": {"userInfo": {"username": user}}})
        begun += 1
        await go_on.wait()
        return web.json_response({"columnDefinitions": [], "rows": []})

    upstream = web.Application()
    upstream.router.add_route("*", "/{path:.*}", api_answer)
    async with TestServer(upstream) as api, aiohttp.ClientSession() as calls:
        app = public_app(ConsoleSettings(), ApiServer(calls, str(api.make_url("")).rstrip("/"), 32))
        async with TestServer(app) as console:
            origin = str(console.make_url("")).rstrip("/")
            async with contextlib.AsyncExitStack() as stack:
                greedy, other = [await _client(stack, origin, user) for user in ("greedy", "other")]
                flood = [asyncio.create_task(_status(greedy)) for _ in range(30)]
                own = MOST_PAGES - -(-MOST_PAGES // 4)
                await until_async(lambda: begun, "pages of one viewer", holds=lambda count: count == own)
                another = asyncio.create_task(_status(other))
                await until_async(lambda: begun, "one of another", holds=lambda count: count == own + 1)
                await asyncio.sleep(0.5)
                assert begun == own + 1
                go_on.set()
                assert await another == 200
                assert sorted(await asyncio.gather(*flood)) == [200] * own + [503] * (30 - own)


async def _client(stack: contextlib.AsyncExitStack, origin: str, token: str) -> aiohttp.ClientSession:
    client = await stack.enter_async_context(
        aiohttp.ClientSession(origin, headers={"Origin": origin}, cookie_jar=aiohttp.DummyCookieJar())
    )
    async with client.post("/sign-in", data={"token": token}, allow_redirects=False) as answer:
        assert answer.status == 303
        client.headers["Cookie"] = answer.headers["Set-Cookie"].partition(";")[0]
    return client


async def _status(client: aiohttp.ClientSession) -> int:
    async with client.get("/deployments") as answer:
        return answer.status


@pytest.mark.parametrize(
    ("path", "status"),
    [("/deployments/team/stream", 303), ("/deployments/stream", 401), ("/deployments/team/chat/stream", 401)],
)
async def test_a_deployment_called_stream_has_a_page_as_any_other(path: str, status: int) -> None:
    """Streams take no place of the pages: a page must not pass for one by its name."""
    async with aiohttp.ClientSession() as calls:
        app = public_app(ConsoleSettings(), ApiServer(calls, "https://127.0.0.1:1", 4))
        async with TestServer(app) as console, calls.get(console.make_url(path), allow_redirects=False) as answer:
            assert answer.status == status


async def test_a_place_comes_back_also_when_its_holder_is_cancelled() -> None:
    few, go_on = Places(4, "none"), asyncio.Event()

    async def hold(number: int) -> None:
        async with few.of("u" if number % 2 else "v"):
            await go_on.wait()

    for turns in range(40):
        go_on.clear()
        tasks = [asyncio.create_task(hold(number)) for number in range(12)]
        await asyncio.sleep(0)
        go_on.set()
        for _ in range(turns % 7):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(20), few.of("u"), few.of("u"), few.of("u"):
        pass


URLENCODED = "application/x-www-form-urlencoded"
PART = b'--x\r\nContent-Disposition: form-data; name="token"\r\n'


@pytest.mark.parametrize(
    ("body", "kind", "encoding"),
    [
        (b"token=\xff", URLENCODED, ""),
        (b"token=%ff", URLENCODED, ""),
        (b"token=a", f"{URLENCODED}; charset=undefined", ""),
        (b"a=b&" * 100, URLENCODED, ""),
        (b"token=a", "text/plain", ""),
        (b"no parts", "multipart/form-data", ""),
        (PART + b"Content-Transfer-Encoding: foo\r\n\r\na\r\n--x--\r\n", "multipart/form-data; boundary=x", ""),
        (b"no gzip", URLENCODED, "gzip"),
    ],
)
async def test_a_form_of_any_bytes_is_refused_in_words_and_fills_no_log(
    body: bytes, kind: str, encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with aiohttp.ClientSession() as calls:
        app = public_app(ConsoleSettings(), ApiServer(calls, "https://127.0.0.1:1", 4))
        async with TestServer(app) as console:
            origin = str(console.make_url("")).rstrip("/")
            headers = {"Origin": origin, "Content-Type": kind} | ({"Content-Encoding": encoding} if encoding else {})
            async with (
                aiohttp.ClientSession(auto_decompress=False) as client,
                client.post(f"{origin}/sign-in", data=body, headers=headers) as answer,
            ):
                assert answer.status in (400, 503) and "failed inside" not in await answer.text()
    assert "a request failed inside of the console" not in caplog.text


def test_places_of_one_share_are_refused_with_their_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "WAIT_S", 0.05)

    async def take_too_many() -> None:
        few = Places(1, "There is no place.")
        async with few.of("u"), few.of("u"):
            raise AssertionError("two places of one")

    with pytest.raises(ApiRefusal, match="There is no place"):
        asyncio.run(take_too_many())
