"""TLS of the API port: real handshakes, certificates that change, clients with certificates, hostile ones."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization

from devcluster.certificates import Authority
from slipway_gateway.serving import tls
from slipway_gateway.serving.tls import ServerTls, TlsFiles
from slipway_gateway.telemetry.metrics import GatewayMetrics
from testkit.until import until_async

from .harness import Gateway, Handler, echo, gateway, upstream

BODY = b'{"model":"chat"}'
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("tls") / "authority")
    for name in ("first", "second", "client"):
        made.issue(name, name, hosts=["127.0.0.1"])
    return made


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> TlsFiles:
    return installed(authority, "first", tmp_path)


def installed(authority: Authority, name: str, folder: Path) -> TlsFiles:
    """As the kubelet does it: a new file in place of the old one."""
    for ending, target in ((".crt", "tls.crt"), (".key", "tls.key")):
        shutil.copy(authority.path(name + ending), folder / "new")
        (folder / "new").rename(folder / target)
    return TlsFiles(str(folder / "tls.crt"), str(folder / "tls.key"))


def trusting(authority: Authority, client: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path("ca.crt")))
    if client:
        context.load_cert_chain(authority.path(f"{client}.crt"), authority.path(f"{client}.key"))
    return context


@contextlib.asynccontextmanager
async def serving(files: TlsFiles, handler: Handler = echo, **changes: Any) -> AsyncIterator[Gateway]:
    changes |= {"tls_client_ca_file": files.client_ca, "tls_min_version": files.min_version}
    changes |= {"tls_cert_file": files.certificate, "tls_private_key_file": files.private_key}
    async with upstream(handler) as server, gateway(**changes) as gate:
        gate.route(("rev", 100, [server.url]))
        yield gate


def port_of(gate: Gateway) -> int:
    return int(gate.url.rsplit(":", 1)[1])


async def answer(gate: Gateway, context: ssl.SSLContext) -> tuple[bytes, str]:
    """The first line of a response that is requested with the last bytes of the handshake; the server's name."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gate), ssl=context)
    try:
        writer.write(REQUEST)
        async with asyncio.timeout(30):
            line = await reader.readline()
        subject = writer.get_extra_info("peercert")["subject"]
    finally:
        writer.transport.abort()
    return line, dict(pair[0] for pair in subject)["commonName"]


def refusals(gate: Gateway, reason: str) -> float:
    found = gate.metrics.registry.get_sample_value("slipway_gateway_connections_refused_total", {"reason": reason})
    return found or 0.0


def connections(gate: Gateway) -> float:
    return gate.metrics.registry.get_sample_value("slipway_gateway_connections") or 0.0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_clients_of_each_version_are_served(
    files: TlsFiles, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    async with serving(files) as gate:
        for _ in range(5):
            assert await answer(gate, context) == (b"HTTP/1.1 200 OK\r\n", "first")
        await until_async(lambda: connections(gate) == 0)
        assert gate.outcomes() == {"ok": 5}


async def test_openai_chats_and_streams_over_tls(files: TlsFiles, authority: Authority) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await out.prepare(request)
        for word in ("one", "two"):
            chunk = (
                '{"id":"x","object":"text_completion","created":1,"model":"chat","choices":[{"index":0,"text":"%s"}]}'
            )
            await out.write(b"data: " + (chunk % word).encode() + b"\n\n")
        await out.write(b"data: [DONE]\n\n")
        return out

    async with serving(files, stream) as gate, openai.DefaultAsyncHttpxClient(verify=trusting(authority)) as http:
        client = openai.AsyncOpenAI(base_url=gate.url + "/v1", api_key="none", http_client=http)
        parts = await client.completions.create(model="chat", prompt="x" * 500_000, stream=True)
        assert [part.choices[0].text async for part in parts] == ["one", "two"]


async def test_a_new_certificate_is_for_new_connections_and_a_broken_one_changes_nothing(
    files: TlsFiles,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tls, "LOOK_AGAIN_S", 0.0)
    connector = aiohttp.TCPConnector(ssl=trusting(authority))
    async with serving(files) as gate, aiohttp.ClientSession(connector=connector) as kept:

        async def again() -> int:
            async with kept.post(gate.url + "/v1/completions", data=BODY) as response:
                await response.read()
                return response.status

        assert await again() == 200
        installed(authority, "second", tmp_path)

        async def is_second() -> bool:
            line, name = await answer(gate, trusting(authority))
            assert line == b"HTTP/1.1 200 OK\r\n"
            return name == "second"

        await until_async(is_second)
        caplog.clear()
        (tmp_path / "tls.crt").write_text("no certificate")

        def logged() -> list[str]:
            return [record.levelname for record in caplog.records if record.name == tls.__name__]

        async def is_logged() -> bool:
            """The data plane reads changed files within a quarter of a second, Python with the next handshake."""
            assert (await answer(gate, trusting(authority)))[1] == "second"
            return bool(logged())

        await until_async(is_logged)
        for _ in range(3):
            assert (await answer(gate, trusting(authority)))[1] == "second"
        assert logged() == ["ERROR"]
        (tmp_path / "tls.crt").unlink()
        assert (await answer(gate, trusting(authority)))[1] == "second"
        installed(authority, "first", tmp_path)

        async def is_first() -> bool:
            return (await answer(gate, trusting(authority)))[1] == "first"

        await until_async(is_first)
        assert await again() == 200
        assert connections(gate) == 1, "the first connection is still there"


async def test_clients_need_a_certificate_where_an_authority_is_given(
    files: TlsFiles, authority: Authority, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path / "other")
    other.issue("stranger", "stranger", hosts=["127.0.0.1"])
    stranger = trusting(authority)
    stranger.load_cert_chain(other.path("stranger.crt"), other.path("stranger.key"))
    mutual = TlsFiles(files.certificate, files.private_key, str(authority.path("ca.crt")), "1.3")
    async with serving(mutual) as gate:
        assert (await answer(gate, trusting(authority, "client")))[0] == b"HTTP/1.1 200 OK\r\n"
        for context in (trusting(authority), stranger):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                line, _ = await answer(gate, context)
                if not line:
                    raise ConnectionError("closed without a response")
        assert refusals(gate, "handshake") == 2 and gate.outcomes() == {"ok": 1}


async def test_old_versions_and_plain_http_fail_the_handshake(files: TlsFiles, authority: Authority) -> None:
    newest = TlsFiles(files.certificate, files.private_key, min_version="1.3")
    context = trusting(authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(newest) as gate:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await answer(gate, context)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gate))
        writer.write(REQUEST)
        async with asyncio.timeout(30):
            assert b"HTTP" not in await reader.read()
        writer.close()
        await until_async(lambda: refusals(gate, "handshake") == 2 and connections(gate) == 0)


async def test_silent_handshakes_count_as_connections_and_end_in_time(files: TlsFiles, authority: Authority) -> None:
    limits = {"header_timeout_s": 1.0, "max_connections": 10, "max_connections_per_address": 4}
    async with serving(files, **limits) as gate:
        silent = [await asyncio.open_connection("127.0.0.1", port_of(gate)) for _ in range(6)]
        await until_async(lambda: refusals(gate, "address") == 2)
        assert connections(gate) == 4
        async with asyncio.timeout(30):
            for reader, _ in silent:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        await until_async(lambda: connections(gate) == 0)
        assert refusals(gate, "handshake") == 4
        for _, writer in silent:
            writer.close()
        assert (await answer(gate, trusting(authority)))[0] == b"HTTP/1.1 200 OK\r\n"


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    key = serialization.load_pem_private_key(authority.path("first.key").read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    (tmp_path / "locked").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    )
    certificate, good = str(authority.path("first.crt")), str(authority.path("first.key"))
    for files, message in (
        (TlsFiles(certificate, str(authority.path("second.key"))), "no pair: KEY_VALUES_MISMATCH"),
        (TlsFiles(good, certificate), "are no pair"),
        (TlsFiles(str(tmp_path / "empty"), good), "are no pair"),
        (TlsFiles(certificate, str(tmp_path / "locked")), "the private key is encrypted"),
        (TlsFiles(certificate, good, str(tmp_path / "empty")), "empty has no certificates"),
        (TlsFiles(certificate, str(tmp_path / "absent")), "absent"),
    ):
        with pytest.raises((OSError, ValueError), match=message):
            ServerTls(files, GatewayMetrics("test"))


def test_the_end_of_its_validity_is_a_metric(files: TlsFiles) -> None:
    metrics = GatewayMetrics("test")
    ServerTls(files, metrics)
    name = "slipway_gateway_certificate_expiration_timestamp_seconds"
    assert (metrics.registry.get_sample_value(name) or 0) > 2_000_000_000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tls-cert-file=x"], "belong together"),
        (["--tls-client-ca-file=x"], "needs --tls-cert-file"),
        (["--tls-cert-file=absent", "--tls-private-key-file=absent"], "No such file or directory: 'absent'"),
        (["--tls-min-version=1.1"], "--tls-min-version: '1.1' is not one of"),
    ],
)
def test_the_process_ends_with_a_sentence_about_wrong_flags(flags: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "routes.yaml").write_text("routes: []\n")
    command = [sys.executable, "-m", "slipway_gateway", "--routes=routes.yaml", "--port=0", "--admin-port=0", *flags]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode and message in ended.stderr and "Traceback" not in ended.stderr


def test_files_are_looked_at_every_two_seconds_at_most(files: TlsFiles, tmp_path: Path, authority: Authority) -> None:
    now_s = iter([0.0, 1.0, 2.5, 3.0])
    own = ServerTls(files, GatewayMetrics("test"), clock=lambda: next(now_s))
    installed(authority, "second", tmp_path)
    first = own.context()
    second = own.context()
    assert second is not first and own.context() is second
