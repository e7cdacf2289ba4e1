"""Requests over connections of the gateway's own, to servers that answer in every way that HTTP has, and in others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from multidict import CIMultiDict

from slipway_gateway.settings import GatewaySettings
from slipway_gateway.upstream import connection, pool
from slipway_gateway.upstream.direct import DirectResponse, DirectSender
from slipway_gateway.upstream.endings import is_death
from slipway_gateway.upstream.session import open_direct, open_session
from testkit.until import until_async

from .harness import echo, upstream

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
EVIL = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"

Serve = Callable[["Peer"], Awaitable[None]]


class Peer:
    """One connection of a raw server."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number, self._reader, self._writer = number, reader, writer

    async def request(self) -> bytes:
        """The next one, with its body. Raises IncompleteReadError at the end."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next((one for one in head.lower().split(b"\r\n") if one.startswith(b"content-length:")), b": 0")
        return head + await self._reader.readexactly(int(length.partition(b":")[2]))

    async def write(self, *parts: bytes) -> None:
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            if len(parts) > 1:
                await asyncio.sleep(0.01)

    async def answer(self, *parts: bytes) -> None:
        """The same to every request."""
        while True:
            await self.request()
            await self.write(*parts)

    async def ended(self) -> None:
        await self._reader.read()

    def abort(self) -> None:
        self._writer.transport.abort()


class Server:
    """`open`: connections that are. `ended`: those that the gateway closed."""

    def __init__(self) -> None:
        self.url = ""
        self.listener: asyncio.Server
        self.made = self.ended = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, handle: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        self.made += 1
        try:
            await handle(Peer(self.made, reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            self.ended += 1
        finally:
            writer.close()

    async def wait(self) -> None:
        await asyncio.wait(self._tasks, timeout=5) if self._tasks else None


@contextlib.asynccontextmanager
async def serving(handle: Serve, **changes: float) -> AsyncIterator[tuple[Server, DirectSender]]:
    made = Server()
    made.listener = listener = await asyncio.start_server(
        lambda reader, writer: made.serve(handle, reader, writer), "127.0.0.1", 0
    )
    made.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        async with open_session(GatewaySettings(**changes)) as session:  # type: ignore[arg-type]
            yield made, open_direct(session)
    finally:
        listener.close()
        await made.wait()


async def post(sender: DirectSender, url: str, body: bytes = b"{}") -> DirectResponse:
    return await asyncio.wait_for(sender.post(url, "/", CIMultiDict(), body), 10)


async def read(reply: DirectResponse) -> bytes:
    parts = []
    while part := await asyncio.wait_for(reply.content.readany(), 10):
        parts.append(part)
    return b"".join(parts)


async def bodies(sender: DirectSender, url: str, requests: int = 2) -> list[bytes]:
    return [await read(await post(sender, url)) for _ in range(requests)]


HEAD = b"HTTP/1.1 200 OK\r\n"
WHOLE = {
    "length": (OK, b"ok"),
    "no body": (HEAD + b"Content-Length: 0\r\n\r\n", b""),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "304 with the length of what it leaves out": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b""),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n", b"ok"),
    "trailers": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\n", b"ok"),
    "a blank line in the body": (HEAD + b"Content-Length: 6\r\n\r\n\r\n\r\nok", b"\r\n\r\nok"),
}


@pytest.mark.parametrize(("response", "body"), WHOLE.values(), ids=WHOLE)
async def test_a_whole_response_leaves_its_connection_to_the_next_request(response: bytes, body: bytes) -> None:
    async with serving(lambda peer: peer.answer(response)) as (server, sender):
        assert await bodies(sender, server.url, 3) == [body] * 3
        assert server.made == 1


@pytest.mark.parametrize(("response", "body"), WHOLE.values(), ids=WHOLE)
async def test_a_response_in_pieces_is_the_same(response: bytes, body: bytes) -> None:
    pieces = [response[at : at + 7] for at in range(0, len(response), 7)]
    async with serving(lambda peer: peer.answer(*pieces)) as (server, sender):
        assert await bodies(sender, server.url) == [body] * 2


async def test_a_request_that_is_cancelled_when_its_response_has_come_leaves_its_connection_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that leaves ends no other client's request."""
    receive, taken = connection.EndpointConnection.data_received, []

    async with serving(lambda peer: peer.answer(OK)) as (server, sender):

        def cancel_behind_another() -> None:
            # It takes the connection at once, before the first one runs again.
            with contextlib.suppress(StopIteration):
                sender.pool.take(sender.pool.origin(server.url, sender.session)).send(None)
                raise AssertionError("there is no idle connection")
            taken.extend(sender.pool._open)
            first.cancel()

        def received(made: connection.EndpointConnection, data: bytes) -> None:
            asyncio.get_running_loop().call_soon(cancel_behind_another)
            receive(made, data)

        monkeypatch.setattr(connection.EndpointConnection, "data_received", received)
        first = asyncio.create_task(sender.post(server.url, "/", CIMultiDict(), b"{}"))
        with pytest.raises(asyncio.CancelledError):
            await first
        monkeypatch.undo()
        (made,) = taken
        assert made.is_open
        message, _ = await asyncio.wait_for(made.send(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), 10)
        assert message.code == 200 and server.made == 1


LAST = {
    "announced": (HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    "http 1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    "switched protocols": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b""),
    "the beginning of another response": (OK + EVIL[:-1], b"ok"),
    "the beginning of another head": (OK + b"HTTP/1.1 200", b"ok"),
    "another response": (OK + EVIL, b"ok"),
    "a beginning after chunks": (WHOLE["chunks"][0] + b"HTTP/1.1 2", b"ok"),
    "a response after chunks": (WHOLE["chunks"][0] + EVIL, b"ok"),
    "a head after chunks": (WHOLE["chunks"][0] + EVIL[:-4], b"ok"),
    "a response after none": (WHOLE["204"][0] + EVIL, b""),
}


@pytest.mark.parametrize(("response", "body"), LAST.values(), ids=LAST)
async def test_a_connection_that_may_not_be_at_the_end_of_a_response_is_closed(response: bytes, body: bytes) -> None:
    async with serving(lambda peer: peer.answer(response)) as (server, sender):
        for n in range(1, 4):
            reply = await post(sender, server.url)
            assert await read(reply) == body
            assert server.made == n
        await until_async(lambda: server.ended == 3)


async def test_bytes_that_no_request_waits_for_close_an_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server writes ahead of a request is no response to it."""
    monkeypatch.setattr(pool, "IDLE_S", 600.0)

    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.write(OK)
        if peer.number == 1:
            await asyncio.sleep(0.05)
            await peer.write(EVIL)
        await peer.answer(OK)

    async with serving(handle) as (server, sender):
        assert await bodies(sender, server.url, 1) == [b"ok"]
        await until_async(lambda: server.ended == 1)
        assert await bodies(sender, server.url, 1) == [b"ok"]
        assert server.made == 2


async def test_the_end_of_the_connection_ends_a_body_without_a_length() -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.write(HEAD + b"\r\n", b"o", b"k")

    async with serving(handle) as (server, sender):
        assert await bodies(sender, server.url) == [b"ok"] * 2
        assert server.made == 2


async def test_a_response_that_comes_before_its_request_is_sent_ends_the_connection() -> None:
    async def handle(peer: Peer) -> None:
        await peer.write(OK)
        await peer.ended()

    async with serving(handle) as (server, sender):
        reply = await post(sender, server.url, bytes(64 << 20))
        assert await read(reply) == b"ok"
        reply.close()
        assert await bodies(sender, server.url, 1) == [b"ok"]
        assert server.made == 2


async def test_interim_responses_are_passed_over_and_their_number_is_not_limited() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    async with serving(lambda peer: peer.answer(*interim * 5, OK)) as (server, sender):
        assert await bodies(sender, server.url) == [b"ok"] * 2
        assert server.made == 1


# -- failures


async def test_an_idle_connection_that_its_server_closed_is_not_used() -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.write(OK)

    async with serving(handle) as (server, sender):
        for _ in range(3):
            assert await bodies(sender, server.url, 1) == [b"ok"]
            await until_async(lambda: len(sender.pool) == 0)
        assert server.made == 3


@pytest.mark.finding("F1")
@pytest.mark.parametrize("reset", [False, True])
async def test_a_server_that_closes_an_idle_connection_gets_the_request_over_a_new_one(reset: bool) -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.write(OK)
        await peer.request()
        if reset:
            peer.abort()

    async with serving(handle) as (server, sender):
        assert await bodies(sender, server.url, 2) == [b"ok"] * 2
        assert server.made == 2


@pytest.mark.finding("F1")
@pytest.mark.parametrize("case", ["new", "slow", "answered"])
async def test_a_connection_that_ends_in_any_other_way_is_a_failure(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was new; the request was there for long; the response had begun."""
    monkeypatch.setattr(connection, "IDLE_CLOSE_S", -1.0 if case == "slow" else 600.0)

    async def handle(peer: Peer) -> None:
        if case != "new":
            await peer.request()
            await peer.write(OK)
        await peer.request()
        if case == "answered":
            await peer.write(HEAD[:8])
            await asyncio.sleep(0.05)
        peer.abort()

    async with serving(handle) as (server, sender):
        if case != "new":
            assert await bodies(sender, server.url, 1) == [b"ok"]
        with pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
            await post(sender, server.url)
        assert server.made == 1


@pytest.mark.finding("F1")
async def test_a_server_that_ends_and_takes_no_new_connection_is_a_failure() -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.write(OK)
        await peer.request()
        server.listener.close()
        peer.abort()

    async with serving(handle) as (server, sender):
        assert await bodies(sender, server.url, 1) == [b"ok"]
        with pytest.raises(aiohttp.ServerDisconnectedError) as raised:
            await post(sender, server.url)
        assert is_death(raised.value) and server.made == 1


MALFORMED = {
    "no http": b"SSH-2.0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "a length beside chunks": HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a long header": HEAD + b"X-A: " + b"x" * 9000 + b"\r\nContent-Length: 2\r\n\r\nok",
    "many headers": HEAD + b"X-A: 1\r\n" * 200 + b"Content-Length: 2\r\n\r\nok",
    "a chunk without a size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
}


@pytest.mark.parametrize("response", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_response_is_a_response_error(response: bytes) -> None:
    async with serving(lambda peer: peer.answer(response), max_header_bytes=8192) as (server, sender):
        for n in (1, 2):
            with pytest.raises(aiohttp.ClientResponseError):
                await post(sender, server.url)
            assert server.made == n


BROKEN = {
    "a length": (HEAD + b"Content-Length: 9\r\n\r\nok", b""),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", b""),
    "a chunk without a size": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", b"xyz\r\n"),
}


@pytest.mark.parametrize(("response", "more"), BROKEN.values(), ids=BROKEN)
async def test_a_body_that_breaks_off_is_a_payload_error(response: bytes, more: bytes) -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.write(response)
        await asyncio.sleep(0.05)
        if more:
            await peer.write(more)
            await peer.ended()

    async with serving(handle) as (server, sender):
        reply = await post(sender, server.url)
        with pytest.raises(aiohttp.ClientPayloadError):
            await read(reply)
        reply.close()
        assert len(sender.pool) <= 1


async def test_a_server_that_answers_nothing_is_given_up_after_its_silence() -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.ended()
        raise ConnectionError

    async with serving(handle, idle_timeout_s=1.0) as (server, sender):
        with pytest.raises(aiohttp.SocketTimeoutError):
            await post(sender, server.url)
        await until_async(lambda: server.ended == 1)


@pytest.mark.parametrize("parts", [(), (HEAD,), (HEAD + b"Content-Length: 9\r\n\r\nok",)])
async def test_a_cancelled_request_closes_its_connection(parts: tuple[bytes, ...]) -> None:
    arrived = asyncio.Event()

    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.write(*parts)
        arrived.set()
        await peer.ended()
        raise ConnectionError

    async def one() -> None:
        reply = await post(sender, server.url)
        try:
            await read(reply)
        finally:
            reply.close()

    async with serving(handle) as (server, sender):
        running = asyncio.create_task(one())
        await arrived.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until_async(lambda: server.ended == 1)
        assert len(sender.pool) == 0


async def test_what_its_reader_does_not_take_stays_at_the_server() -> None:
    size, written = 32 << 20, 0

    async def handle(peer: Peer) -> None:
        nonlocal written
        await peer.request()
        await peer.write(HEAD + b"Content-Length: %d\r\n\r\n" % size)
        while written < size:
            await peer.write(bytes(1 << 16))
            written += 1 << 16
        await peer.answer(OK)

    async with serving(handle, idle_timeout_s=1.0) as (server, sender):
        reply = await post(sender, server.url)
        before = -1
        while before != written:
            before = written
            await asyncio.sleep(1.2)  # longer than the limit of silence, which is the server's and not the reader's
        assert written < size // 2
        assert len(await read(reply)) == size
        assert await bodies(sender, server.url, 1) == [b"ok"]
        assert server.made == 1


# -- the pool


async def test_idle_connections_are_closed_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_S", 0.2)
    async with serving(lambda peer: peer.answer(OK)) as (server, sender):
        await asyncio.gather(*(bodies(sender, server.url, 1) for _ in range(3)))
        assert server.made == 3
        await until_async(lambda: server.ended == 3)
        assert len(sender.pool) == 0
        assert await bodies(sender, server.url, 1) == [b"ok"]


async def test_idle_connections_and_endpoints_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_IDLE", 2)
    monkeypatch.setattr(pool, "MAX_ORIGINS", 1)
    async with serving(lambda peer: peer.answer(OK)) as (server, sender):
        await asyncio.gather(*(bodies(sender, server.url, 1) for _ in range(5)))
        await until_async(lambda: server.ended == 3)
        assert len(sender.pool) == 2
        # The same address under another URL takes the place of the first.
        assert await bodies(sender, server.url + "/x", 1) == [b"ok"]
        await until_async(lambda: server.ended == 5)
        assert len(sender.pool) == 1


async def test_the_end_of_the_session_closes_connections_in_use() -> None:
    async def handle(peer: Peer) -> None:
        await peer.request()
        await peer.ended()
        raise ConnectionError

    async with serving(handle) as (server, sender):
        running = asyncio.create_task(post(sender, server.url))
        await until_async(lambda: server.made == 1 and len(sender.pool) == 1)
        await sender.session.close()
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await running
        await until_async(lambda: server.ended == 1)
        with pytest.raises(aiohttp.ClientConnectionError):
            await post(sender, server.url)


async def test_requests_at_once_have_connections_of_their_own() -> None:
    async with upstream(echo) as server, open_session(GatewaySettings()) as session:
        sender = open_direct(session)
        sent = [b'{"n":%d}' % n for n in range(20)]
        for _ in range(3):
            replies = await asyncio.gather(*(post(sender, server.url, body) for body in sent))
            assert len(replies) == 20
            for reply in replies:
                await read(reply)
        assert sorted(server.bodies) == sorted(sent * 3)
        assert len(sender.pool) == 20
    for _ in range(10):
        await asyncio.sleep(0)
