"""TLS in the compiled data plane: the lane serves plain requests, Python the rest; both know the same of a client."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509

from devcluster.certificates import Authority
from slipway_gateway.identity.certificates import peer_of, read
from slipway_gateway.serving import tls
from slipway_gateway.serving.api import PublicApi
from slipway_plane import NATIVE, WHY_MISSING
from testkit.until import until_async

from . import harness
from .harness import Gateway, Handler, echo, upstream
from .test_client_certificates import Clients, uri
from .test_event_relays import CASES, stream_of
from .test_event_relays import marked as marked_event
from .test_fast_lane import answer, fast
from .test_tls import port_of, refusals, trusting

pytestmark = pytest.mark.skipif(NATIVE is None, reason=WHY_MISSING)

PATH, BREAKS = "/v1/chat/completions", "/v1/completions"
BODY = b'{"model":"chat"}'


def post(body: bytes = BODY, *lines: str) -> bytes:
    head = "".join(f"{line}\r\n" for line in ("Host: x", f"Content-Length: {len(body)}", *lines))
    return f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode() + body


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("tls") / "authority")
    made.issue("server", "server", hosts=["127.0.0.1"])
    return made


@contextlib.asynccontextmanager
async def serving(authority: Authority, handler: Handler = answer, **changes: Any) -> AsyncIterator[Gateway]:
    files = {"tls_cert_file": "server.crt", "tls_private_key_file": "server.key"}
    settings = {name: str(authority.path(file)) for name, file in files.items()} | {"plane": "required"} | changes
    async with upstream(handler) as server, harness.gateway(**settings) as gate:
        gate.route(("rev", 100, [server.url]))
        yield gate


def handed_over(gate: Gateway) -> dict[str, int]:
    """Connections that went to Python by reason."""
    fast(gate)
    families = gate.metrics.registry.collect()
    samples = (sample for family in families for sample in family.samples)
    return {
        one.labels["reason"]: int(one.value)
        for one in samples
        if one.name == "slipway_gateway_handovers_total" and one.value
    }


async def connect(
    gate: Gateway, context: ssl.SSLContext, **options: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port_of(gate), ssl=context, **options)


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of a response with a length."""
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        lines = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
        return int(head.split(b" ")[1]), await reader.readexactly(int(lines["content-length"]))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_plain_requests_are_the_lanes_and_a_connection_returns_from_python(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with serving(authority) as gate:
        reader, writer = await connect(gate, context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        for want in ("", "500", "long", "", "chunked"):
            writer.write(post(BODY, f"x-want: {want}"))
            assert (await response(reader))[0] == (500 if want == "500" else 200)
        writer.write(post(BODY, "Connection: close"))
        assert (await response(reader))[0] == 200
        assert await reader.read() == b"", "TLS says that nothing follows"
        assert fast(gate) == 3
        assert handed_over(gate) == {"status": 1, "long_response": 1, "chunked": 1}
        await until_async(lambda: gate.plane is not None and gate.plane.connections == 0)


async def test_what_rustls_does_not_serve_is_served_by_python_as_before(authority: Authority) -> None:
    old, other = trusting(authority), trusting(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers("ECDHE-ECDSA-AES256-SHA384:ECDHE-ECDSA-AES128-SHA256")  # CBC
    other.set_alpn_protocols(["h2"])
    async with serving(authority) as gate:
        for context in (old, other):
            reader, writer = await connect(gate, context)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() is None
            for _ in range(2):
                writer.write(post())
                assert (await response(reader))[0] == 200
            writer.transport.abort()
        assert handed_over(gate) == {"handshake": 2} and fast(gate) == 0
        await until_async(lambda: gate.plane is not None and gate.plane.connections == 0)


@pytest.mark.parametrize("size", [1, 700])
async def test_a_handshake_in_small_pieces_is_done_here(authority: Authority, size: int) -> None:
    context = trusting(authority)
    context.set_alpn_protocols(["x" * 200 + str(number) for number in range(8)] + ["http/1.1"])  # longer than a segment
    arrived, sends = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(arrived, sends, server_hostname="127.0.0.1")
    async with serving(authority) as gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gate))
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        async def until_done(step: Callable[[], Any]) -> Any:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    await send()
                    arrived.write(await reader.read(65536))

        async def send() -> None:
            data = sends.read()
            for at in range(0, len(data), size):
                writer.write(data[at : at + size])
                await asyncio.sleep(0)

        async with asyncio.timeout(30):
            await until_done(client.do_handshake)
            client.write(post())
            assert (await until_done(client.read)).startswith(b"HTTP/1.1 200")
        assert not handed_over(gate)
        writer.close()


async def test_both_lanes_know_the_same_of_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients(tmp_path)
    seen: list[tuple[Any, ...]] = []
    identify = PublicApi.identify

    async def note(api: PublicApi, request: web.Request) -> Any:
        certificate = request.get_extra_info("peercert")
        host, port = request.get_extra_info("peername")[:2]
        known = (certificate is None, read(certificate), request.scheme, request.secure, request.remote, host)
        seen.append((*known, port == writer.get_extra_info("sockname")[1], str(request.url)))
        return await identify(api, request)

    monkeypatch.setattr(PublicApi, "identify", note)
    contexts = [
        clients.context(uri(), x509.DNSName("app.example.org"), common=("App One", "second")),
        clients.context(x509.RFC822Name("a@example.org"), common=("Ä name",)),
        clients.stranger(),
    ]
    for plane in ("off", "required"):
        async with (
            upstream(echo) as server,
            harness.gateway(plane=plane, **clients.settings(tls_client_auth="optional")) as gate,
        ):
            gate.route(("rev", 100, [server.url]))
            for context in contexts:
                reader, writer = await connect(gate, context)
                writer.write(post(b'{"model":"none"}'))
                assert (await response(reader))[0] == 404
                writer.close()
            assert sum(handed_over(gate).values()) == (3 if plane == "required" else 0)
    assert seen[:3] == seen[3:] and len(seen) == 6
    assert [one[0] for one in seen[:3]] == [False, False, True]
    assert all(one[2:6] == ("https", True, "127.0.0.1", "127.0.0.1") and one[6] for one in seen)


def test_a_certificate_is_read_as_openssl_reads_it(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    names = (uri(), x509.DNSName("a.example.org"), x509.DNSName("B.example.org"), x509.RFC822Name("a@example.org"))
    for chosen, common in (((), ("client",)), (names, ("client", "another")), (names[:1], ("Ä",))):
        file = clients.files(*chosen, common=common)[0]
        decoded = ssl._ssl._test_decode_cert(file)  # type: ignore[attr-defined]
        der = ssl.PEM_cert_to_DER_cert(Path(file).read_text())
        assert read(peer_of(der)) == read(decoded) is not None
        assert peer_of(der)["notAfter"] == decoded["notAfter"]
    assert peer_of(b"no certificate") == {}


async def test_a_client_that_reads_slowly_holds_its_server_up(authority: Authority) -> None:
    """What it does not read waits at the server, not here."""
    sent = 0
    piece = b"x" * (256 << 10)

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        out = web.StreamResponse()
        await out.prepare(request)
        while True:
            await out.write(piece)
            sent += len(piece)

    async with serving(authority, endless, stall_timeout_s=2.0) as gate:
        reader, writer = await connect(gate, trusting(authority), limit=64 << 10)
        writer.write(post())
        async with asyncio.timeout(30):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.5)
        assert sent < 16 << 20
        await until_async(lambda: bool(gate.outcomes()), "it is cut when its client has not read for too long")
        await until_async(lambda: gate.plane is not None and gate.plane.connections == 0, "whether it reads or not")
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            async with asyncio.timeout(30):
                while data := await reader.read(1 << 20):
                    assert not data.endswith(b"0\r\n\r\n")
                raise EOFError  # without the last chunk
        writer.transport.abort()


async def test_a_client_that_never_reads_the_end_of_a_response_keeps_no_connection(authority: Authority) -> None:
    """Python has closed its end, and what it wrote waits in the kernel."""
    # More than the client's connection holds, and less than that and the pair of sockets to Python.
    body = b'{"model":"chat","prompt":"%b"}' % (b"x" * (200 << 10))

    def first_byte(plain: socket.socket) -> ssl.SSLSocket:
        plain.settimeout(30)
        plain.connect(("127.0.0.1", port_of(gate)))
        secure = trusting(authority).wrap_socket(plain, server_hostname="127.0.0.1")
        secure.sendall(post(body, "Connection: close"))
        assert secure.read(1) == b"H"
        return secure

    async with serving(authority, echo, stall_timeout_s=8.0) as gate:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with client, await asyncio.to_thread(first_byte, client):  # no loop reads behind its back
            await until_async(lambda: bool(gate.outcomes()))
            assert gate.plane is not None and gate.plane.connections == 1, "the client has not read it all"
            await until_async(lambda: gate.plane is not None and gate.plane.connections == 0)


async def test_a_body_of_any_size_and_its_response_pass_whole(authority: Authority) -> None:
    body = b'{"model":"chat","prompt":"%b"}' % (b"x" * (3 << 20))
    async with serving(authority, echo) as gate:
        reader, writer = await connect(gate, trusting(authority), limit=8 << 20)
        for _ in range(2):
            writer.write(post(body))
            status, whole = await response(reader)
            assert status == 200 and len(whole) > len(body)
        writer.close()


def _end(port: int, context: ssl.SSLContext, path: str) -> str:
    """How TLS ends a response that goes to the end of its connection."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=30)
    with context.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as secure:
        secure.sendall(post().replace(PATH.encode(), path.encode()).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        try:
            while secure.recv(65536):
                pass
        except (ssl.SSLEOFError, ConnectionError):
            return "cut"
        return "whole"


@pytest.mark.parametrize("plane", ["off", "required"])
async def test_a_response_that_breaks_is_not_ended_as_a_whole_one(authority: Authority, plane: str) -> None:
    async def parts(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse()
        await out.prepare(request)
        await out.write(b"a part")
        if request.path == BREAKS:
            await asyncio.sleep(0.05)
            assert request.transport is not None
            request.transport.abort()
        return out

    async with serving(authority, parts, plane=plane) as gate:
        ends = [await asyncio.to_thread(_end, port_of(gate), trusting(authority), path) for path in (PATH, BREAKS)]
        assert ends == ["whole", "cut"]


async def test_a_client_that_leaves_ends_its_request(authority: Authority) -> None:
    started = asyncio.Event()

    async def wait(request: web.Request) -> web.StreamResponse:
        started.set()
        await asyncio.sleep(60)
        raise AssertionError

    for lines in ((), ("Origin: http://a",)):  # of the lane, and of Python
        started.clear()
        async with serving(authority, wait) as gate:
            _, writer = await connect(gate, trusting(authority))
            writer.write(post(BODY, *lines))
            async with asyncio.timeout(30):
                await started.wait()
            writer.transport.abort()
            await until_async(lambda: bool(fast(gate) or gate.outcomes()))
            assert gate.outcomes() == {"client_closed": 1}
            await until_async(lambda: gate.plane is not None and gate.plane.connections == 0)


async def test_events_are_relayed_and_the_connection_returns(authority: Authority) -> None:
    parts = (*map(marked_event, range(1, 9)), *CASES["plain"][-2:])

    async def stream(request: web.Request) -> web.StreamResponse:
        if b"stream" in await request.read():
            return await stream_of(request, parts, marks=False, gap_s=0.01)
        return await answer(request)

    async with serving(authority, stream) as gate:
        reader, writer = await connect(gate, trusting(authority))
        rounds = 0
        # A request that comes before the connection has returned is Python's.
        while fast(gate) < 2 and rounds < 20:
            rounds += 1
            writer.write(post(b'{"model":"chat","stream":true}'))
            async with asyncio.timeout(30):
                received = await reader.readuntil(b"0\r\n\r\n")
            assert received.count(b"word") == 8 and b"[DONE]" in received
            writer.write(post())
            assert (await response(reader))[0] == 200
        writer.close()
        assert fast(gate) == 2
        relayed = gate.metrics.registry.get_sample_value("slipway_gateway_event_relays_total", {"end": "end"})
        assert relayed == rounds


async def test_many_handshakes_at_once_are_all_done(authority: Authority) -> None:
    async with serving(authority, max_connections=100) as gate:

        async def one() -> int:
            reader, writer = await connect(gate, trusting(authority))
            writer.write(post())
            status, _ = await response(reader)
            writer.transport.abort()
            return status

        assert await asyncio.gather(*(one() for _ in range(40))) == [200] * 40
        assert fast(gate) == 40 and refusals(gate, "handshake") == 0
        for junk in (b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\xff\xff" + b"x" * 30000, b"\x80", b"\x16"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gate))
            writer.write(junk)
            writer.write_eof()
            async with asyncio.timeout(30):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
        await until_async(lambda: refusals(gate, "handshake") == 4)


async def test_without_a_fast_lane_python_does_the_handshakes(authority: Authority) -> None:
    async with serving(authority, plane_max_body_bytes=0, header_timeout_s=1.0) as gate:
        reader, writer = await connect(gate, trusting(authority))
        writer.write(post())
        assert (await response(reader))[0] == 200
        silent, other = await asyncio.open_connection("127.0.0.1", port_of(gate))
        async with asyncio.timeout(30):
            assert await silent.read() == b""
        other.close()
        writer.close()
        await until_async(lambda: gate.plane is not None and gate.plane.connections == 0)


async def test_files_that_rustls_cannot_use_leave_handshakes_to_python(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An authority for clients that is no root: OpenSSL does not trust what it signed, other libraries do."""
    monkeypatch.setattr(tls.Pem, "has_roots_alone", lambda pem: False)
    async with serving(authority, tls_client_ca_file=str(authority.path("ca.crt")), tls_client_auth="optional") as gate:
        reader, writer = await connect(gate, trusting(authority))
        writer.write(post())
        assert (await response(reader))[0] == 200
        writer.close()
        assert handed_over(gate) == {"handshake": 1}
    assert "Python does the TLS handshakes" in caplog.text
