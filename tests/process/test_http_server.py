"""aiohttp's server with less around a request: what a client sees is the same."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import http_exceptions, web

from slipway_process.network import http_server
from slipway_process.network.http_server import Handler, HttpRunner
from slipway_process.network.request_heads import BoundedHeads
from testkit.until import until_async


class App:
    """A server with one middleware; `seen` has what it was called with. `runner`: HttpRunner, or aiohttp's own."""

    def __init__(self, runner: type[web.AppRunner] = HttpRunner) -> None:
        self.seen: list[tuple[str, str]] = []
        self.cancelled = asyncio.Event()
        self.waits = asyncio.Event()
        self.port = 0
        self.app = web.Application(middlewares=[self._middleware])
        self.app.add_routes(
            [
                web.get("/models/{name:.+}/ready", self._name),
                web.get("/models/{name:.+}", self._name),
                web.post("/echo", self._echo),
                web.post("/ignore", self._ignore),
                web.get("/wait", self._wait),
                web.get("/fail", self._fail),
                *(web.get(f"/made/{name}", _makes(response)) for name, response in RESPONSES.items()),
            ]
        )
        self.runner = runner(self.app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)

    async def start(self) -> None:
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.port = self.runner.addresses[0][1]

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        self.seen.append((request.path, resource.canonical if resource else "*"))
        return await handler(request)

    async def _name(self, request: web.Request) -> web.Response:
        return web.Response(text=request.match_info["name"])

    async def _echo(self, request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def _ignore(self, _: web.Request) -> web.Response:
        return web.Response(text="ignored")

    async def _wait(self, _: web.Request) -> web.Response:
        self.waits.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return web.Response()

    async def _fail(self, _: web.Request) -> web.Response:
        raise ValueError("of a handler")


def _makes(response: Callable[[], web.Response]) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return response()

    return handler


def _with(change: Callable[[web.Response], Any]) -> web.Response:
    response = web.Response(text="changed")
    change(response)
    return response


RESPONSES: dict[str, Callable[[], web.Response]] = {
    "json": lambda: web.Response(body=b"{}", content_type="application/json", headers={"X-Own": "a"}),
    "bytes": lambda: web.Response(body=b"no type"),
    "text": lambda: web.Response(text="ä"),
    "empty": lambda: web.Response(),
    "no-content": lambda: web.Response(status=204),
    "refused": lambda: web.Response(status=429, text="later", headers={"Retry-After": "1", "Server": "own"}),
    "reason": lambda: web.Response(status=200, reason="Fine", text="x"),
    "closed": lambda: _with(lambda response: response.force_close()),
    "cookie": lambda: _with(lambda response: response.set_cookie("a", "b")),
    "compressed": lambda: _with(lambda response: response.enable_compression(web.ContentCoding.gzip)),
    "chunked": lambda: _with(lambda response: response.enable_chunked_encoding()),
}


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, method: str, path: str, body: bytes = b"", *headers: str) -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self._writer.drain()

    async def response(self) -> tuple[int, bytes]:
        async with asyncio.timeout(30):
            head = await self._reader.readuntil(b"\r\n\r\n")
            [length] = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            return int(head[9:12]), await self._reader.readexactly(int(length.split(b":")[1]))

    async def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> tuple[int, bytes]:
        await self.send(method, path, body, *headers)
        return await self.response()

    async def rest(self) -> bytes:
        async with asyncio.timeout(30):
            return await self._reader.read()

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
async def app() -> AsyncIterator[App]:
    made = App()
    await made.start()
    yield made
    await made.runner.cleanup()


@pytest.fixture
async def client(app: App) -> AsyncIterator[Client]:
    made = Client(*await asyncio.open_connection("127.0.0.1", app.port))
    yield made
    made.close()


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_responses_are_those_of_aiohttp_byte_for_byte(version: str, method: str) -> None:
    ours, theirs = [await _responses(runner, method, version) for runner in (HttpRunner, web.AppRunner)]
    assert ours == theirs and all(each.startswith(b"HTTP/") for each in ours.values())


async def _responses(runner: type[web.AppRunner], method: str, version: str) -> dict[str, bytes]:
    """What a connection gets that sends two requests for each response."""
    made, seen = App(runner), {}
    await made.start()
    for name in RESPONSES:
        if (name, version) == ("chunked", "1.0"):
            continue  # which aiohttp refuses
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        for end in ("keep-alive", "close"):
            head = f"{method} /made/{name} HTTP/{version}\r\nHost: x\r\nConnection: {end}\r\n\r\n"
            writer.write(head.encode())
        async with asyncio.timeout(30):
            seen[name] = re.sub(rb"Date: [^\r]*", b"Date: now", await reader.read())
        writer.close()
    await made.runner.cleanup()
    return seen


async def test_requests_of_a_connection_follow_each_other(client: Client) -> None:
    for number in range(3):
        assert await client.ask("POST", "/echo", b"%d" % number) == (200, b"%d" % number)
    for number in range(5):  # behind each other, before any response is read
        await client.send("POST", "/echo", b"%d" % number)
    assert [await client.response() for _ in range(5)] == [(200, b"%d" % number) for number in range(5)]


async def test_a_known_path_has_its_route_and_middlewares_again(app: App, client: Client) -> None:
    for _ in range(3):
        assert await client.ask("GET", "/models/a/b/ready") == (200, b"a/b")
        assert await client.ask("GET", "/models/c?d=e") == (200, b"c")
    route, other = ("/models/a/b/ready", "/models/{name}/ready"), ("/models/c", "/models/{name}")
    assert app.seen == [route, other] * 3


async def test_a_path_that_failed_is_looked_for_again(app: App, client: Client) -> None:
    for _ in range(2):
        assert (await client.ask("GET", "/none"))[0] == 404
        assert (await client.ask("GET", "/echo"))[0] == 405
    assert await client.ask("POST", "/echo", b"now") == (200, b"now"), "the method counts"
    assert app.seen == [("/none", "*"), ("/echo", "*")] * 2 + [("/echo", "/echo")]


async def test_paths_that_clients_choose_take_bounded_memory(
    client: Client, monkeypatch: pytest.MonkeyPatch, known: Callable[[], dict[Any, Any]]
) -> None:
    monkeypatch.setattr(http_server, "MAX_KNOWN_PATHS", 4)
    for number in range(11):
        assert await client.ask("GET", f"/models/{number}") == (200, b"%d" % number)
        assert len(known()) <= 4
    kept = dict(known())
    assert await client.ask("GET", "/models/query?a=b") == (200, b"query")
    assert known() == kept, "a query is no path"
    long = "x" * http_server.MAX_KNOWN_PATH_CHARACTERS
    assert await client.ask("GET", f"/models/{long}") == (200, long.encode())
    assert all(len(path) < 20 for _, path in known())


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[Any, Any]]:
    """The known paths of the last server that was used."""
    last: list[http_server.KnownPaths] = []
    keep = http_server.KnownPaths._keep

    def kept(self: http_server.KnownPaths, request: web.Request) -> None:
        last[:] = [self]
        keep(self, request)

    monkeypatch.setattr(http_server.KnownPaths, "_keep", kept)
    return lambda: last[0]._known


async def test_a_client_that_leaves_cancels_its_handler(app: App, client: Client) -> None:
    await client.send("GET", "/wait")
    async with asyncio.timeout(30):
        await app.waits.wait()
        client.close()
        await app.cancelled.wait()


async def test_a_body_that_no_handler_reads_does_not_end_the_connection(client: Client) -> None:
    body = bytes(300_000)
    assert await client.ask("POST", "/ignore", body) == (200, b"ignored")
    assert await client.ask("POST", "/echo", b"next") == (200, b"next")


async def test_a_handler_that_fails_is_a_500_and_the_connection_ends(client: Client) -> None:
    await client.send("GET", "/fail")
    assert (await client.rest()).startswith(b"HTTP/1.1 500 ")


async def test_a_malformed_request_is_a_400_and_the_connection_ends(client: Client) -> None:
    client._writer.write(b"GET / HTTP/1.1\r\nno header\r\n\r\n")
    assert b" 400 " in (await client.rest())[:20]


async def test_connection_close_is_honoured(client: Client) -> None:
    assert await client.ask("POST", "/echo", b"last", "Connection: close") == (200, b"last")
    assert await client.rest() == b""


async def test_expectations_are_met_on_a_known_path_too(client: Client) -> None:
    for _ in range(2):
        await client.send("POST", "/echo", b"", "Expect: 100-continue")
        async with asyncio.timeout(30):
            assert await client._reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert await client.response() == (200, b"")
        assert await client.ask("POST", "/echo", b"x") == (200, b"x")


async def test_idle_connections_end_with_the_server(app: App, client: Client) -> None:
    assert await client.ask("POST", "/echo", b"x") == (200, b"x")
    await app.runner.cleanup()
    assert await client.rest() == b""


async def test_a_request_without_its_body_ends_with_the_server(app: App, client: Client) -> None:
    client._writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
    await until_async(lambda: bool(app.seen))
    async with asyncio.timeout(20):
        await app.runner.cleanup()
    assert b" 200 " not in await client.rest()


LINES = "".join(f"x-{n}: {'a' * 8000}\r\n" for n in range(9))


async def test_a_head_is_bounded_as_a_whole_and_a_body_is_not(app: App, client: Client) -> None:
    """aiohttp bounds each line and their number: 128 lines of 8 KB held a megabyte of each connection."""
    body = bytes(1_000_000)
    assert await client.ask("POST", "/echo", body) == (200, body)
    assert await client.ask("POST", "/echo", b"a", LINES[: 7 * 8005].rstrip()) == (200, b"a")
    await client.send("POST", "/echo", b"a", LINES.rstrip())
    assert b" 400 " in (await client.rest()).splitlines()[0]


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_a_head_that_comes_in_pieces_is_bounded(size: int) -> None:
    heads = BoundedHeads(Pieces(), 5000)
    sent = 0
    with pytest.raises(http_exceptions.LineTooLong):
        while True:
            sent += size
            heads.feed_data(bytes(size))
    assert sent <= 5000 + size and heads.pending_bytes == sent


class Pieces:
    """A parser that never has a whole request."""

    def feed_data(self, data: bytes) -> tuple[list[object], bool, bytes]:
        return [], False, b""
