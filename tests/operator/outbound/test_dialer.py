"""The guarded dialer on real sockets: it opens no connection to a forbidden address, however a URL leads there."""

import asyncio
import socket

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver
from aiohttp.test_utils import TestServer

from slipway_operator.outbound.addresses import EgressPolicy
from slipway_operator.outbound.dialer import Blocked, Dialer, NoAnswer, OutboundRequest, TooLate
from tests.support.address_corpus import BLOCKED_ALWAYS, PRIVATE, SPELLINGS

pytestmark = pytest.mark.attack_class(8)

LOCAL = EgressPolicy(loopback=True)


class Resolver(AbstractResolver):
    """A resolver with fixed answers, used in turn; the last one repeats."""

    def __init__(self, *answers):
        self.answers, self.lookups = list(answers), 0

    async def resolve(self, host, port=0, family=socket.AF_INET):
        self.lookups += 1
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
            for address in addresses
        ]

    async def close(self):
        """Nothing to close."""


@pytest.fixture
async def server():
    """Counts connections."""

    async def take(request):
        server.got.append(request.path)
        return web.Response(text="answer")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", take)
    server = TestServer(application)
    server.got = []
    async with server:
        yield server


@pytest.fixture
def connections(monkeypatch):
    """Addresses that sockets were really connected to."""
    tried = []
    connect = asyncio.SelectorEventLoop.sock_connect

    async def spy(loop, sock, address):
        tried.append(address)
        return await connect(loop, sock, address)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", spy)
    return tried


async def refused(url, policy=None, resolver=None):
    with pytest.raises(Blocked) as caught:
        await Dialer(policy or EgressPolicy(), "hooks", resolver).send(OutboundRequest("POST", url, timeout_s=10))
    return str(caught.value)


@pytest.mark.parametrize("address", [*BLOCKED_ALWAYS, *PRIVATE])
async def test_name_that_resolves_to_a_blocked_address_is_refused(address, connections):
    message = await refused("http://quality.example.com/", resolver=Resolver([address.partition("%")[0]]))
    assert message.startswith("hooks may not call quality.example.com: it is ")
    assert connections == []


@pytest.mark.parametrize("address", [*BLOCKED_ALWAYS, *PRIVATE])
async def test_blocked_address_in_the_url_is_refused(address, connections):
    plain = address.partition("%")[0]
    await refused(f"http://[{plain}]/" if ":" in plain else f"http://{plain}/")
    assert connections == []


@pytest.mark.parametrize("host", [*SPELLINGS, "localhost.", "[::1]", "[::ffff:7f00:1]", "127。0。0。1", "①②⑦.0.0.1"])
async def test_no_spelling_of_this_machine_helps(server, host):
    with pytest.raises(NoAnswer):
        await Dialer(EgressPolicy(), "hooks").send(
            OutboundRequest("GET", f"http://{host}:{server.port}/", timeout_s=10)
        )
    assert server.got == []


async def test_dns_rebinding_cannot_change_the_checked_address(server):
    """Rebinding: a name is resolved once, and the checked address is the one that is dialed."""
    resolver = Resolver(["8.8.8.8"], ["127.0.0.1"])
    policy = EgressPolicy()
    looked_at = []

    class Watched(EgressPolicy):
        def refusal(self, host, address, port):
            looked_at.append(address)
            return "watched" if address == "8.8.8.8" else policy.refusal(host, address, port)

    assert "watched" in await refused(f"http://a.example.com:{server.port}/", Watched(), resolver)
    assert (resolver.lookups, looked_at) == (1, ["8.8.8.8"])
    assert "this machine" in await refused(f"http://a.example.com:{server.port}/", policy, resolver)
    assert resolver.lookups == 2, "nothing is remembered between two requests"
    assert server.got == []


async def test_of_several_addresses_only_those_that_may_be_are_tried(server):
    mixed = Resolver(["169.254.169.254", "10.0.0.1", "127.0.0.1"])
    dialer = Dialer(LOCAL, "hooks", mixed)
    assert (await dialer.send(OutboundRequest("GET", f"http://mixed.svc:{server.port}/"))).status == 200
    assert "hooks may not call mixed.svc" in await refused(f"http://mixed.svc:{server.port}/", resolver=mixed)


async def test_a_redirect_leads_nowhere(server):
    async def away(request):
        raise web.HTTPTemporaryRedirect(f"http://127.0.0.1:{server.port}/inner")

    application = web.Application()
    application.router.add_get("/", away)
    async with TestServer(application) as outer:
        answer = await Dialer(LOCAL, "hooks").send(OutboundRequest("GET", str(outer.make_url("/"))))
    assert (answer.status, server.got) == (307, [])


@pytest.mark.attack_class(22)
@pytest.mark.parametrize("url", ["http://user:s3cret@127.0.0.1/", "http://s3cret@host/", "http://127.0.0.1:80@s3cret/"])
async def test_credentials_in_a_url_are_refused_and_not_repeated(url):
    message = await refused(url, LOCAL)
    assert message.startswith("the URL holds credentials") and "s3cret" not in message


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "must start with http:// or https://"),
        ("file:///etc/passwd", "must start with http:// or https://"),
        ("gopher://127.0.0.1:2379/", "must start with http:// or https://"),
        ("http://", "not valid"),
        ("http://[", "not valid"),
        ("http://host:99999/", "not valid"),
        ("http://host:0/", "not valid"),
        ("http://host/" + "x" * 5000, "longer than 4096"),
    ],
)
async def test_invalid_url_is_refused(url, message):
    assert message in await refused(url, LOCAL)


async def test_no_proxy_of_the_environment_is_used(server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await Dialer(LOCAL, "hooks").send(OutboundRequest("GET", str(server.make_url("/"))))).status == 200


async def test_the_body_is_kept_to_its_limit_and_no_further(server):
    dialer, url = Dialer(LOCAL, "hooks"), str(server.make_url("/"))
    for keep, body, cut in ((0, b"", False), (3, b"ans", True), (6, b"answer", False), (100, b"answer", False)):
        answer = await dialer.send(OutboundRequest("GET", url, keep_bytes=keep))
        assert (answer.body, answer.cut) == (body, cut)


async def test_time_is_bounded_from_the_resolver_on():
    class Slow(Resolver):
        async def resolve(self, *_, **__):
            await asyncio.sleep(30)

    with pytest.raises(TooLate, match=r"no answer within 0\.05 s"):
        await Dialer(EgressPolicy(), "hooks", Slow([])).send(
            OutboundRequest("GET", "http://a.example.com/", timeout_s=0.05)
        )


@pytest.mark.parametrize(
    "garbage", [b"s3cret\r\n\r\n", b"HTTP/1.1 999999 s3cret\r\n\r\n", b"HTTP/1.1 200 OK\r\nX\x00s3cret\r\n\r\n"]
)
async def test_response_that_is_not_http_is_refused_and_not_quoted(garbage):
    """The banner of another protocol must not appear in the status."""

    async def answer(reader, writer):
        writer.write(garbage)
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(NoAnswer) as caught:
            await Dialer(LOCAL, "hooks").send(OutboundRequest("GET", f"http://127.0.0.1:{port}/"))
    assert "s3cret" not in str(caught.value) and str(caught.value).startswith(f"127.0.0.1:{port} cannot be reached")
