"""Hostile scorers: addresses that are not listed, redirects, names that change, endless and slow responses."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from pydantic import ValidationError

from slipway_gateway.scorers.client import MAX_RESULT_BYTES, CallFailure, ScorerClient
from slipway_gateway.scorers.hosts import ScorerHosts
from slipway_gateway.settings import GatewaySettings
from testkit.until import until_async
from tests.support.address_corpus import BLOCKED_ALWAYS, PRIVATE, PUBLIC, SPELLINGS

from .harness import Handler, Upstream, raw_upstream, upstream
from .loopback import Loopback

pytestmark = pytest.mark.attack_class(8)

HOST = "scorer.test"
LISTED = ScorerHosts((HOST, "*.tools.test"))
HERE = ScorerHosts((HOST,), loopback=True)
RESULT = b'{"preference": 0}'


async def result(request: web.Request) -> web.StreamResponse:
    return web.Response(body=RESULT, content_type="application/json")


@pytest.fixture
async def server() -> AsyncIterator[Upstream]:
    async with upstream(result) as started:
        yield started


def url_of(server: Upstream, host: str = HOST) -> str:
    return f"http://{host}:{server.url.rpartition(':')[2]}/score"


async def call(client: ScorerClient, url: str, timeout_s: float = 20.0) -> bytes | CallFailure:
    return await client.call(url, b'{"answers": []}', timeout_s)


# -- which hosts it calls


async def test_a_listed_host_gets_one_post(server: Upstream) -> None:
    assert await call(ScorerClient(HERE, Loopback()), url_of(server)) == RESULT
    assert [(request.method, request.path) for request in server.seen] == [("POST", "/score")]


@pytest.mark.parametrize("address", BLOCKED_ALWAYS)
async def test_a_listed_host_at_a_reserved_address_gets_nothing(address: str, server: Upstream) -> None:
    client = ScorerClient(LISTED, Loopback((address.partition("%")[0],)))
    assert await call(client, url_of(server)) is CallFailure.BLOCKED and not server.seen


@pytest.mark.parametrize("address", [*PRIVATE, *PUBLIC])
def test_a_listed_host_may_be_at_any_other_address(address: str) -> None:
    assert LISTED.may_connect(address, 443)
    assert not any(LISTED.may_connect(address, port) for port in (2379, 6443, 10250))


@pytest.mark.parametrize("port", [8001, 8443])
def test_ports_of_our_own_control_are_no_scorers(port: int) -> None:
    assert not LISTED.may_connect("10.0.0.7", port) and LISTED.may_connect("8.8.8.8", port)


@pytest.mark.parametrize("host", SPELLINGS)
async def test_no_spelling_of_an_address_is_a_listed_host(host: str, server: Upstream) -> None:
    assert await call(ScorerClient(HERE), url_of(server, host)) is CallFailure.BLOCKED and not server.seen


@pytest.mark.parametrize(
    "url",
    [
        "", "scorer.test", "ftp://scorer.test/", "http://", "http:///x", "http://scorer.test:0/", "http://scorer.test:x/",
        "http://user@scorer.test/", "http://user:word@scorer.test/", "http://scorer.test.evil.test/",
        "http://evil.test/scorer.test", "http://evil.test#@scorer.test/", "http://tools.test/", "http://scorer.test\\@evil.test/",
        "http://[::1]/", "http://scorer.test/" + "x" * 2048,
    ],
)  # fmt: skip
async def test_any_other_url_is_refused_without_a_lookup(url: str) -> None:
    resolver = Loopback()
    client = ScorerClient(HERE, resolver)
    assert not client.may_call(url) and await call(client, url) is CallFailure.BLOCKED and resolver.lookups == 0


@pytest.mark.parametrize("host", ["SCORER.test", "scorer.test.", "a.tools.test", "a.b.tools.test"])
def test_names_are_compared_as_resolvers_compare_them(host: str) -> None:
    assert ScorerClient(LISTED).may_call(f"https://{host}/score")


async def test_a_name_that_changes_between_two_lookups_changes_nothing(server: Upstream) -> None:
    """The address that is connected to is the one that is checked, in each call."""
    # It would be allowed where it is checked first, and is this machine where it is connected to.
    resolver = Loopback(("127.0.0.1",), ("169.254.169.254",))
    client = ScorerClient(HERE, resolver)
    assert await call(client, url_of(server)) == RESULT and resolver.lookups == 1
    assert await call(client, url_of(server)) is CallFailure.BLOCKED and resolver.lookups == 2
    assert len(server.seen) == 1


async def test_of_several_addresses_only_those_that_may_be_are_tried(server: Upstream) -> None:
    assert await call(ScorerClient(HERE, Loopback(("169.254.169.254", "127.0.0.1"))), url_of(server)) == RESULT


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int, server: Upstream) -> None:
    async def away(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers={"Location": url_of(server)})

    async with upstream(away) as redirecting:
        client = ScorerClient(HERE, Loopback())
        assert await call(client, url_of(redirecting)) is CallFailure.INVALID and not server.seen


async def test_no_proxy_of_the_environment_gets_contents(server: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    async with upstream(result) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert await call(ScorerClient(HERE, Loopback()), url_of(server)) == RESULT and not proxy.seen


async def test_a_name_that_takes_long_keeps_nothing_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup cannot be ended: without threads of its own it would take those that the rest of the gateway needs."""
    release, begun = threading.Event(), []

    def slow(*arguments: object, **options: object) -> list[object]:
        begun.append(arguments)
        release.wait(60)
        raise socket.gaierror("there is no such name")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    client = ScorerClient(HERE)
    try:
        calls = [call(client, f"http://{HOST}/", 0.05) for _ in range(100)]
        assert set(await asyncio.gather(*calls)) == {CallFailure.UNANSWERED} and 1 <= len(begun) <= 2
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(len, "free") == 4
    finally:
        release.set()
        await client.close()


# -- what comes back


async def drip(request: web.Request) -> web.StreamResponse:
    out = web.StreamResponse()
    await out.prepare(request)
    while request.transport is not None and not request.transport.is_closing():
        await out.write(b" ")
        await asyncio.sleep(0.02)
    return out


async def hang(request: web.Request) -> web.StreamResponse:
    await until_async(lambda: request.transport is None or request.transport.is_closing())
    return web.Response()


async def endless(request: web.Request) -> web.StreamResponse:
    out = web.StreamResponse()
    await out.prepare(request)
    while request.transport is not None and not request.transport.is_closing():
        await out.write(b" " * 65536)
    return out


@pytest.mark.parametrize("slow", [drip, hang])
async def test_a_slow_response_ends_at_the_timeout(slow: Handler) -> None:
    async with upstream(slow) as server:
        began = time.monotonic()
        assert await call(ScorerClient(HERE, Loopback()), url_of(server), 0.3) is CallFailure.UNANSWERED
        assert time.monotonic() - began >= 0.3


async def test_an_endless_response_is_left_after_a_few_kilobytes() -> None:
    async with upstream(endless) as server:
        # Within its time, which is long: what ends it is its size.
        assert await call(ScorerClient(HERE, Loopback()), url_of(server), 60.0) is CallFailure.INVALID


@pytest.mark.parametrize("size_bytes", [MAX_RESULT_BYTES, MAX_RESULT_BYTES + 1])
async def test_a_response_has_a_limit(size_bytes: int) -> None:
    async def sized(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b" " * size_bytes)

    async with upstream(sized) as server:
        found = await call(ScorerClient(HERE, Loopback()), url_of(server))
        assert found == (b" " * size_bytes if size_bytes == MAX_RESULT_BYTES else CallFailure.INVALID)


async def test_a_compressed_response_is_not_inflated() -> None:
    async def bomb(request: web.Request) -> web.StreamResponse:
        answer = web.Response(body=RESULT + b" " * 4_000_000)
        answer.enable_compression(web.ContentCoding.gzip)
        return answer

    async with upstream(bomb) as server:
        found = await call(ScorerClient(HERE, Loopback()), url_of(server))
        assert found is CallFailure.INVALID or (isinstance(found, bytes) and not found.startswith(RESULT))


@pytest.mark.parametrize("sent", [b"no http at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b""])
async def test_what_is_no_whole_response_is_none(sent: bytes) -> None:
    async with raw_upstream(sent) as url:
        host = f"http://{HOST}:{url.rpartition(':')[2]}/"
        assert await call(ScorerClient(HERE, Loopback()), host) is CallFailure.UNANSWERED


# -- the setting


@pytest.mark.parametrize("hosts", ["10.0.0.1", "http://scorer.test", "a b", "*", "-x.test"])
def test_a_host_that_is_none_is_refused(hosts: str) -> None:
    with pytest.raises(ValidationError, match="is no host name"):
        GatewaySettings(scorer_hosts=hosts)


def test_hosts_are_read_from_a_list() -> None:
    found = GatewaySettings(scorer_hosts="Scorer.test, *.tools.svc")
    assert found.scorer_hosts == ("scorer.test", "*.tools.svc") and GatewaySettings().scorer_hosts == ()
